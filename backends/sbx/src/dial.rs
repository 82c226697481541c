//! A stream to the guest: the streams of one command in the sandbox, which joins them to the guest's socket.

use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use bastide::Result;
use bastide_proto::container::GUEST_PATH;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::program::Sbx;

/// The streams of `sbx exec`, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct DialStream {
    input: Option<ChildStdin>,
    output: ChildStdout,
    _client: Child,
}

/// Starts `dial` in a sandbox. Whether the guest is there shows when something is read.
pub(crate) fn dial(sbx: &Sbx, sandbox: &str) -> Result<DialStream> {
    let args = ["exec", "-i", "-u", "root", sandbox, GUEST_PATH, "dial"];
    let mut command = sbx.command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut client = command.spawn().map_err(|error| sbx.not_started(&error))?;
    let (Some(input), Some(output)) = (client.stdin.take(), client.stdout.take()) else {
        let message = "`sbx exec` was started without its streams";
        return Err(bastide::Error::new(bastide::ErrorKind::Internal, message));
    };
    Ok(DialStream { input: Some(input), output, _client: client })
}

impl AsyncRead for DialStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

impl AsyncWrite for DialStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.input {
            Some(input) => Pin::new(input).poll_flush(context),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The far end sees the pipe close.
        self.input = None;
        Poll::Ready(Ok(()))
    }
}
