//! The way to a command: what it is to read, and what is wanted of it while it runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide_proto::Control;
use bastide_proto::frame::MAX_DATA;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::fault::agent_lost;
use crate::link::Sender;
use crate::{Input, Result};

/// How many words may wait to be sent.
const QUEUE: usize = 16;

/// What is sent to a process while it runs.
#[derive(Debug)]
pub(super) enum Word {
    Input(Bytes),
    InputEnd,
    Control(Control),
}

/// Speaks to a command. Most are never told anything, so nobody is made to speak before the first word.
#[derive(Debug, Clone)]
pub(super) struct Voice {
    words: mpsc::Sender<Word>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
enum State {
    /// The way to the guest is kept open, and nobody walks it.
    Quiet(Sender, mpsc::Receiver<Word>, Handle),
    Speaking(JoinHandle<()>),
    Silent,
}

impl Voice {
    /// A way to the guest, on which `input` goes first.
    pub(super) fn new(to_guest: Sender, input: Input) -> Self {
        let (words, waiting) = mpsc::channel(QUEUE);
        let state = match input {
            Input::Bytes(bytes) => {
                State::Speaking(tokio::spawn(speak(to_guest, Some(bytes), waiting)))
            }
            _ => State::Quiet(to_guest, waiting, Handle::current()),
        };
        Self { words, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) async fn say(&self, word: Word) -> Result<()> {
        self.begin();
        self.words.send(word).await.map_err(|_| agent_lost("the link closed"))
    }

    fn begin(&self) {
        let mut state = self.state();
        *state = match std::mem::replace(&mut *state, State::Silent) {
            // Whoever speaks first may do so from elsewhere.
            State::Quiet(to_guest, words, runtime) => {
                State::Speaking(runtime.spawn(speak(to_guest, None, words)))
            }
            other => other,
        };
    }

    /// Closes the way to the guest, for everybody: that means that we gave up.
    pub(super) fn fall_silent(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Silent);
        if let State::Speaking(speaking) = before {
            speaking.abort();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can fail half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends what there is to send, and keeps the way to the guest open.
async fn speak(mut to_guest: Sender, input: Option<Bytes>, mut words: mpsc::Receiver<Word>) {
    if let Some(mut rest) = input {
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(MAX_DATA));
            if to_guest.input(piece).await.is_err() {
                return;
            }
        }
        if to_guest.input_end().await.is_err() {
            return;
        }
    }
    while let Some(word) = words.recv().await {
        let sent = match word {
            Word::Input(data) => to_guest.input(data).await,
            Word::InputEnd => to_guest.input_end().await,
            Word::Control(control) => to_guest.control(&control).await,
        };
        if sent.is_err() {
            return;
        }
    }
}
