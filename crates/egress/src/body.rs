//! Bodies as they stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;

use crate::flow::RequestGuard;
use crate::http::{Connection, Sender};
use crate::package_cache::PackageWriter;
use crate::secrets::InjectedSecrets;

/// What goes wrong with a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A body, of a request or of a response.
pub(crate) type Body = BoxBody<Bytes, BoxError>;

/// A body that is known.
pub(crate) fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed()
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// A body that is here, of an answer to a request that is under way until it has passed.
pub(crate) struct GuardedBody {
    body: Body,
    _guard: RequestGuard,
}

impl GuardedBody {
    pub(crate) fn new(body: Body, guard: RequestGuard) -> Self {
        Self { body, _guard: guard }
    }
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response, on its way inside.
pub(crate) struct ResponseBody {
    body: Incoming,
    /// The request is under way until its answer has passed.
    _guard: RequestGuard,
    /// What is taken out, and bytes that may be the beginning of it.
    sent: InjectedSecrets,
    pending: Vec<u8>,
    /// Trailers that wait for the last bytes.
    held: Option<Frame<Bytes>>,
    is_over: bool,
    /// The connection outside, which can be used again once all has come.
    upstream: Option<(Arc<Connection>, Sender)>,
    /// What keeps it as it passes.
    package_writer: Option<PackageWriter>,
}

impl ResponseBody {
    pub(crate) fn new(
        body: Incoming,
        guard: RequestGuard,
        sent: InjectedSecrets,
        upstream: Option<(Arc<Connection>, Sender)>,
    ) -> Self {
        Self {
            body,
            _guard: guard,
            sent,
            pending: Vec::new(),
            held: None,
            is_over: false,
            upstream,
            package_writer: None,
        }
    }

    /// Has it kept as it passes.
    pub(crate) fn kept(mut self, package_writer: Option<PackageWriter>) -> Self {
        self.package_writer = package_writer;
        self
    }

    /// What is left in the end.
    fn last(&mut self) -> Option<Frame<Bytes>> {
        if !self.is_over {
            self.is_over = true;
            if let Some((connection, sender)) = self.upstream.take() {
                connection.return_idle(sender);
            }
            let mut out = Vec::new();
            self.sent.replace(&mut self.pending, &mut out, true);
            if !out.is_empty() {
                return Some(Frame::data(out.into()));
            }
        }
        self.held.take()
    }

    /// A piece without what was sent; none if all of it has to wait.
    fn passed(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        if let (Some(package_writer), Some(data)) = (&mut self.package_writer, frame.data_ref()) {
            package_writer.add(data);
        }
        // Whoever knows the length does not ask for the end.
        if let Some(package_writer) =
            self.package_writer.take_if(|package_writer| package_writer.is_whole())
        {
            package_writer.finish();
        }
        if self.sent.is_empty() {
            return Some(frame);
        }
        match frame.into_data() {
            Ok(data) => {
                let mut out = Vec::new();
                self.pending.extend_from_slice(&data);
                self.sent.replace(&mut self.pending, &mut out, false);
                (!out.is_empty()).then(|| Frame::data(out.into()))
            }
            Err(frame) => {
                let mut trailers = frame.into_trailers().ok()?;
                for value in trailers.values_mut() {
                    if let Some(clean) = self.sent.redacted(value) {
                        *value = clean;
                    }
                }
                self.held = Some(Frame::trailers(trailers));
                None
            }
        }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.is_over {
                return Poll::Ready(self.last().map(Ok));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None => return Poll::Ready(self.last().map(Ok)),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => {
                    if let Some(frame) = self.passed(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        // Only what was read to its end gives the connection back.
        self.is_over && self.held.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.sent.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}
