//! Links to guests: each goes on over another stream when one breaks, as when the API server is started again.

use std::io;

use bastide::backend::Duplex;
use bastide::link::conduit::resumable;
use bastide::{Connection, Error, ErrorKind, Result, SessionId};
use bastide_proto::hello::Token;

use crate::cluster::Cluster;
use crate::pod::guest_command;
use crate::stream::ExecStream;

impl Cluster {
    /// Starts the program in a pod that joins its streams to the guest's socket.
    pub(crate) async fn dial(&self, pod: &str) -> Result<ExecStream> {
        let args = guest_command(&["dial"]);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.exec(pod, &args).await
    }

    /// A link over this stream, and over others to the same pod when it breaks.
    pub(crate) async fn link(
        &self,
        pod: &str,
        first: Box<dyn Duplex>,
        token: &Token,
    ) -> Result<Connection> {
        let (cluster, pod) = (self.clone(), pod.to_owned());
        let again = move || {
            let (cluster, pod) = (cluster.clone(), pod.clone());
            async move {
                match cluster.dial(&pod).await {
                    Ok(opened) => Ok(opened.stream),
                    Err(error) if is_gone(&error, &pod) => {
                        Err(io::Error::new(io::ErrorKind::NotFound, error))
                    }
                    Err(error) => Err(io::Error::other(error)),
                }
            }
        };
        resumable(first, token, again).await
    }
}

/// Why a pod could not be called.
pub(crate) fn dial_failed(error: Error, id: &SessionId, pod: &str) -> Error {
    if !is_gone(&error, pod) {
        return error;
    }
    let message = format!("session {id} is not running: its pod {pod} is gone");
    Error::new(ErrorKind::BackendLost, message).with_context("reason", "backend_lost")
}

/// Whether the API server knows no such pod: one that is gone never comes back under its name. A node that was just started
/// again may say something like it for a moment, and a server that was may refuse everybody.
pub(crate) fn is_gone(error: &Error, pod: &str) -> bool {
    error.status() == Some(404) && error.message().contains(&format!("pods \"{pod}\" not found"))
}
