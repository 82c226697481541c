//! The side of the program inside.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Connection;
use crate::body::Body;
use crate::head::{HeadCheck, MAX_HEADERS};

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(30);

/// The most requests at a time on a connection of HTTP/2.
const MAX_STREAMS: u32 = 100;

/// The most bytes of headers of a request.
const MAX_HEAD_BYTES: u32 = 64 << 10;

/// What is handed on in place of a request that is none: it answers for the reason that is remembered.
const BAD_REQUEST: &[u8] = b"BAD / HTTP/1.1\r\nhost: bad\r\nconnection: close\r\n\r\n";

/// Answers requests of HTTP/1.
pub(crate) async fn serve_http1<I>(connection: Arc<Connection>, io: I) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let checked = CheckedStream {
        io,
        check: HeadCheck::default(),
        out: Vec::new(),
        at: 0,
        is_over: false,
        connection: Arc::clone(&connection),
    };
    let answer = service(Arc::clone(&connection));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(MAX_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(checked), service_fn(answer))
        .with_upgrades()
        .await;
    connection.finish().await;
    served
}

/// Answers requests of HTTP/2.
pub(crate) async fn serve_http2<I>(connection: Arc<Connection>, io: I) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .max_send_buf_size(256 << 10)
        .serve_connection(TokioIo::new(io), service_fn(service(connection)))
        .await
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

fn service(connection: Arc<Connection>) -> impl Fn(Request<Incoming>) -> ResponseFuture {
    move |request| {
        let connection = Arc::clone(&connection);
        Box::pin(async move { Ok(connection.answer(request).await) })
    }
}

/// Hands on what has been looked at.
struct CheckedStream<I> {
    io: I,
    check: HeadCheck,
    out: Vec<u8>,
    at: usize,
    is_over: bool,
    connection: Arc<Connection>,
}

impl<I: AsyncRead + Unpin> AsyncRead for CheckedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.at < this.out.len() {
                let left = &this.out[this.at..];
                let count = left.len().min(buffer.remaining());
                buffer.put_slice(&left[..count]);
                this.at += count;
                if this.at == this.out.len() {
                    this.at = 0;
                    this.out.clear();
                }
                return Poll::Ready(Ok(()));
            }
            if this.is_over {
                return Poll::Ready(Ok(()));
            }
            let mut room = [0; 16 << 10];
            let mut read = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut this.io).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Err(why) = this.check.feed(read.filled(), &mut this.out) {
                if !this.check.is_in_head() {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                // What came before is answered first.
                let _ = this.connection.bad.set(why);
                this.out.extend_from_slice(BAD_REQUEST);
                this.is_over = true;
            }
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CheckedStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
