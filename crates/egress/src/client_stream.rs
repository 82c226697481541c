//! A connection of a program inside, whose first bytes were looked at, and whose bytes are counted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::flow::OpenFlow;

#[derive(Debug)]
pub(crate) struct ClientStream {
    first: Vec<u8>,
    at: usize,
    stream: TcpStream,
    flow: Arc<OpenFlow>,
}

impl ClientStream {
    pub(crate) fn new(first: Vec<u8>, stream: TcpStream, flow: Arc<OpenFlow>) -> Self {
        Self { first, at: 0, stream, flow }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if self.at < self.first.len() {
            let left = &self.first[self.at..];
            let count = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..count]);
            self.at += count;
            if self.at == self.first.len() {
                (self.first, self.at) = (Vec::new(), 0);
            }
        } else {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        }
        self.flow.sent_out(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.flow.came_in(count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        self.flow.came_in(count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
