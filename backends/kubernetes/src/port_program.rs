//! The process that holds published ports where whoever published them does not stay: a program is started that does it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bastide::{Error, ErrorKind, Machine, Result, SessionId};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, Command};

use crate::job_keep_alive::Renewal;

/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

/// The longest description of a machine.
const MOST: u64 = 4 << 20;

/// What it is told once the session lives on without whoever made it. Until then it ends with that.
const LIVE_ON: u8 = b'L';

/// A program that holds published ports.
#[derive(Debug, Clone)]
pub(crate) struct PortProgram {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
}

/// The sessions that end with this process.
#[derive(Debug, Default)]
pub(crate) struct TiedSessions(Mutex<HashMap<SessionId, Tied>>);

/// What is to be done when such a session is let go of.
#[derive(Debug)]
struct Tied {
    renewal: Arc<Renewal>,
    /// By what the holder of its ports hears that it lives on.
    holder: Option<ChildStdin>,
}

impl TiedSessions {
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<SessionId, Tied>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A session was made that ends with this process.
    pub(crate) fn add(&self, id: &SessionId, renewal: Arc<Renewal>) {
        self.with(|all| all.insert(id.clone(), Tied { renewal, holder: None }));
    }

    /// It is gone.
    pub(crate) fn remove(&self, id: &SessionId) {
        self.with(|all| all.remove(id));
    }

    /// Its deadline is not moved any more.
    pub(crate) async fn stop_renewal(&self, id: &SessionId) {
        if let Some(renewal) = self.with(|all| all.get(id).map(|tied| Arc::clone(&tied.renewal))) {
            renewal.stop().await;
        }
    }

    /// It lives on.
    pub(crate) async fn detach(&self, id: &SessionId) {
        let tied = self.with(|all| all.remove(id));
        if let Some(mut holder) = tied.and_then(|tied| tied.holder) {
            // One that is gone holds nothing.
            drop(holder.write_all(&[LIVE_ON]).await);
        }
    }

    /// Has it tell a holder of its ports when it lives on; gives the way back where it does already.
    fn hold(&self, id: &SessionId, holder: ChildStdin) -> Option<ChildStdin> {
        self.with(|all| match all.get_mut(id) {
            Some(tied) => {
                tied.holder = Some(holder);
                None
            }
            None => Some(holder),
        })
    }
}

impl PortProgram {
    /// Starts the program for a session. It is ready when this returns.
    pub(crate) async fn start<T: Serialize + Sync>(
        &self,
        id: &SessionId,
        machine: &T,
        tied: &TiedSessions,
    ) -> Result<()> {
        let failed = |error: io::Error| {
            let message = format!("cannot hold ports of session {id}: {error}");
            Error::new(ErrorKind::Io, message)
                .with_context("program", self.path.display().to_string())
        };
        let mut line = serde_json::to_vec(machine).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        let started = async {
            let mut child = Command::new(&self.path)
                .args(&self.args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()?;
            let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
            let mut orders = child.stdin.take().ok_or_else(missing)?;
            let mut ready = child.stdout.take().ok_or_else(missing)?;
            // It outlives this call and may outlive this process; here it is only collected when it ends.
            tokio::spawn(async move { child.wait().await });
            orders.write_all(&line).await?;
            ready.read_u8().await?;
            io::Result::Ok(orders)
        };
        let orders = match tokio::time::timeout(START, started).await {
            Ok(orders) => orders.map_err(failed)?,
            Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        };
        match tied.hold(id, orders) {
            Some(mut orders) => orders.write_all(&[LIVE_ON]).await.map_err(failed),
            None => Ok(()),
        }
    }
}

/// What such a program is told: the machine, and then when it is to end.
pub(crate) struct ControlInput<R>(BufReader<R>);

impl<R: AsyncRead + Unpin> ControlInput<R> {
    /// Reads which machine it is about.
    pub(crate) async fn read(from: R) -> io::Result<(Machine, Self)> {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        (&mut from).take(MOST).read_until(b'\n', &mut line).await?;
        Ok((serde_json::from_slice(&line)?, Self(from)))
    }

    /// Waits until whoever made the session is gone with it; for ever if it lives on.
    pub(crate) async fn over(mut self) {
        if let Ok(LIVE_ON) = self.0.read_u8().await {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn ends_with_its_maker_unless_it_is_detached() {
        let machine = br#"{"id":"00000000000000000000000000000000","backend":"kubernetes","state":{},"receipt":"#;
        let (orders, mut far) = tokio::io::duplex(64);
        let reading = tokio::spawn(ControlInput::read(orders));
        far.write_all(machine).await.unwrap();
        far.write_all(b"\n").await.unwrap();
        assert!(reading.await.unwrap().is_err(), "that is no machine");
        let (orders, far) = tokio::io::duplex(64);
        drop(far);
        ControlInput(BufReader::new(orders)).over().await;
        let (orders, mut far) = tokio::io::duplex(64);
        far.write_all(&[LIVE_ON]).await.unwrap();
        drop(far);
        assert!(
            ControlInput(BufReader::new(orders)).over().now_or_never().is_none(),
            "it lives on"
        );
    }
}
