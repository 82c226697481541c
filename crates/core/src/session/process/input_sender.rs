//! The way to a command: what it is to read, and what is wanted of it while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide_proto::Control;
use bastide_proto::frame::MAX_DATA;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::link::{Sender, link_closed};
use crate::{Input, Result};

/// How many messages may wait to be sent.
const QUEUE: usize = 16;

/// What is sent to a process while it runs.
#[derive(Debug)]
pub(super) enum InputMessage {
    Input(Bytes),
    InputEnd,
    Control(Control),
}

/// Sends input to a command. Most never get any, so no task is spawned before the first message.
#[derive(Debug, Clone)]
pub(super) struct InputSender {
    messages: mpsc::Sender<InputMessage>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    /// The stream to the guest is kept open, and no task uses it.
    Idle(Sender, mpsc::Receiver<InputMessage>, Handle),
    Sending(JoinHandle<()>),
    Closed,
}

impl InputSender {
    /// A way to the guest, on which `input` goes first.
    pub(super) fn new(to_guest: Sender, input: Input) -> Self {
        let (messages, waiting) = mpsc::channel(QUEUE);
        let state = match input {
            Input::Bytes(bytes) => {
                State::Sending(tokio::spawn(send_all(to_guest, Some(bytes), waiting)))
            }
            _ => State::Idle(to_guest, waiting, Handle::current()),
        };
        Self { messages, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) async fn send(&self, message: InputMessage) -> Result<()> {
        self.begin();
        self.messages.send(message).await.map_err(|_| link_closed())
    }

    fn begin(&self) {
        let mut state = self.state();
        *state = match std::mem::replace(&mut *state, State::Closed) {
            // The first message may come from outside the runtime.
            State::Idle(to_guest, messages, runtime) => {
                State::Sending(runtime.spawn(send_all(to_guest, None, messages)))
            }
            other => other,
        };
    }

    /// Closes the way to the guest, for everybody: that means that we gave up.
    pub(super) fn close(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Closed);
        if let State::Sending(sending) = before {
            sending.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can fail half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends what there is to send, and keeps the way to the guest open.
async fn send_all(
    mut to_guest: Sender,
    input: Option<Bytes>,
    mut messages: mpsc::Receiver<InputMessage>,
) {
    if let Some(mut rest) = input {
        while !rest.is_empty() {
            let chunk = rest.split_to(rest.len().min(MAX_DATA));
            if to_guest.input(chunk).await.is_err() {
                return;
            }
        }
        if to_guest.input_end().await.is_err() {
            return;
        }
    }
    while let Some(message) = messages.recv().await {
        let sent = match message {
            InputMessage::Input(data) => to_guest.input(data).await,
            InputMessage::InputEnd => to_guest.input_end().await,
            InputMessage::Control(control) => to_guest.control(&control).await,
        };
        if sent.is_err() {
            return;
        }
    }
}
