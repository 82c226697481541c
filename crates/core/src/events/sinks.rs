//! The sinks that come with Bastide.

mod callback;
mod chain;
mod http;
mod lines;
mod outbox;
mod workspace;

pub use callback::CallbackSink;
pub use chain::ChainedSink;
pub use http::HttpSink;
pub use lines::LineSink;
pub use outbox::JsonlOutbox;
pub use workspace::WorkspaceJsonl;

pub(super) use outbox::append;

/// Sets how a sink wants its events.
macro_rules! has_options {
    ($($sink:ty),*) => {$(
        impl $sink {
            /// Sets how it wants its events.
            #[must_use]
            pub fn options(mut self, options: crate::events::SinkOptions) -> Self {
                self.options = options;
                self
            }
        }
    )*};
}

has_options!(CallbackSink, HttpSink, JsonlOutbox, LineSink, WorkspaceJsonl);
