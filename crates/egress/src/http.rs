//! Requests that are read: each is decided by itself, and sent in the form it was decided in.

mod exchange;
mod headers;
mod server;
mod upgraded;
mod upstream;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::flow::OpenFlow;
use crate::state::ProxyState;

pub(crate) use exchange::{MAX_SHOWN_PATH, explain};
pub(crate) use server::{serve_http1, serve_http2};
pub(crate) use upstream::Sender;

/// A connection of a program inside whose requests are read, and the connections outside that answer them.
pub(crate) struct Connection {
    shared: Arc<ProxyState>,
    flow: Arc<OpenFlow>,
    is_tls: bool,
    /// Whether the program inside speaks HTTP/2.
    is_http2: bool,
    /// Connections of HTTP/1 that nobody uses now.
    idle: Mutex<Vec<Sender>>,
    /// One more of them is idle.
    given_back: Notify,
    /// Room for the one connection outside that every connection of a program has.
    own_slot: Arc<Semaphore>,
    /// The one connection of HTTP/2.
    http2: tokio::sync::Mutex<upstream::Http2State>,
    /// Why the program's last request is none.
    bad: OnceLock<&'static str>,
    /// What goes on after a request has become something else.
    upgraded: Mutex<JoinSet<()>>,
}

impl Connection {
    pub(crate) fn new(
        shared: Arc<ProxyState>,
        flow: Arc<OpenFlow>,
        is_tls: bool,
        is_http2: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            flow,
            is_tls,
            is_http2,
            idle: Mutex::default(),
            given_back: Notify::new(),
            own_slot: Arc::new(Semaphore::new(1)),
            http2: tokio::sync::Mutex::default(),
            bad: OnceLock::new(),
            upgraded: Mutex::default(),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Sender>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what goes on after the last request.
    pub(crate) async fn finish(&self) {
        let mut tasks = {
            let mut upgraded = self.upgraded.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *upgraded)
        };
        while tasks.join_next().await.is_some() {}
    }
}
