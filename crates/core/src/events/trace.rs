//! The trace an operation is part of.

use std::str::FromStr;

use bastide_model::events::Span;
use uuid::Uuid;

use crate::{Error, ErrorKind, Result, lower_hex};

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// A position in a trace: the trace, and the enclosing span.
///
/// ```
/// use bastide::events::TraceContext;
///
/// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context: TraceContext = header.parse()?;
/// assert_eq!(context.traceparent(), header);
/// # Ok::<(), bastide::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The enclosing span.
    pub span_id: [u8; 8],
    /// Whether the caller records it.
    pub sampled: bool,
}

impl TraceContext {
    /// Runs a future as part of this trace: operations of sessions in it become spans of the trace.
    pub async fn scope<T>(self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// The trace this task is part of.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(|context| *context).ok()
    }

    /// The same trace inside a span of its own.
    pub(crate) fn child(self, span_id: [u8; 8]) -> Self {
        Self { span_id, ..self }
    }

    /// As the header `traceparent` of W3C Trace Context.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let flags = u8::from(self.sampled);
        format!("00-{}-{}-{flags:02x}", hex::encode(self.trace_id), hex::encode(self.span_id))
    }
}

impl FromStr for TraceContext {
    type Err = Error;

    /// Reads the header `traceparent` of W3C Trace Context.
    fn from_str(text: &str) -> Result<Self> {
        read(text).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("{text:?} is no trace context"))
                .with_hint("it looks like 00-<32 digits>-<16 digits>-01")
        })
    }
}

fn read(text: &str) -> Option<TraceContext> {
    let mut parts = text.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    // Later versions may have more to say at the end.
    if version.len() != 2 || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let (trace_id, span_id) = (lower_hex::decode::<16>(trace)?, lower_hex::decode::<8>(span)?);
    let [flags] = lower_hex::decode::<1>(flags)?;
    lower_hex::decode::<1>(version)?;
    let is_valid = trace_id != [0; 16] && span_id != [0; 8];
    is_valid.then_some(TraceContext { trace_id, span_id, sampled: flags & 1 == 1 })
}

/// The names of an operation: those in its events, and where its own work is in the trace.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) span: Span,
    /// The context for work inside the operation, in a trace.
    pub(crate) inside: Option<TraceContext>,
}

impl Names {
    /// New names, as part of the trace this task is in, or else of `default`.
    pub(crate) fn new(default: Option<TraceContext>) -> Self {
        let id = Uuid::new_v4();
        let around = TraceContext::current().or(default).filter(|context| context.sampled);
        let Some(around) = around else {
            return Self { span: Span::untraced(id), inside: None };
        };
        let mut own = [0; 8];
        own.copy_from_slice(&id.as_bytes()[..8]);
        let span = Span {
            span_id: format!("span_{}", hex::encode(own)),
            parent_span_id: Some(format!("span_{}", hex::encode(around.span_id))),
            trace_id: Some(format!("trace_{}", hex::encode(around.trace_id))),
        };
        Self { span, inside: Some(around.child(own)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_trace_contexts() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert!(!good.parse::<TraceContext>().unwrap().sampled);
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert!(later.parse::<TraceContext>().is_ok());
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert!(bad.parse::<TraceContext>().is_err(), "{bad}");
        }
    }
}
