//! Events for a function.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::events::Event;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Result;
use crate::compat::raise;
use crate::events::{BoundSession, Sink, SinkOptions};

type Callback = dyn Fn(Arc<Event>, BoundSession) -> BoxFuture<'static, Result<()>> + Send + Sync;

/// Calls a function with each event and its session; before the operation continues, unless its
/// options say otherwise.
#[derive(Clone)]
pub struct CallbackSink {
    call: Arc<Callback>,
    session: Option<BoundSession>,
    pub(super) options: SinkOptions,
}

impl CallbackSink {
    /// Calls `call`.
    pub fn new(call: impl Fn(&Event, &BoundSession) -> Result<()> + Send + Sync + 'static) -> Self {
        let call = Arc::new(call);
        Self::waiting(move |event, session| std::future::ready(call(&event, &session)).boxed())
    }

    /// Calls `call` and awaits the future it returns.
    pub fn waiting(
        call: impl Fn(Arc<Event>, BoundSession) -> BoxFuture<'static, Result<()>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { call: Arc::new(call), session: None, options: SinkOptions::sync() }
    }
}

#[async_trait]
impl Sink for CallbackSink {
    fn kind(&self) -> &'static str {
        "CallbackSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        Ok(Some(Arc::new(Self { session: Some(session.clone()), ..self.clone() })))
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let Some(session) = &self.session else {
            return Err(raise::runtime_error("the callback is not bound to a session"));
        };
        for event in events {
            (self.call)(Arc::clone(event), session.clone()).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for CallbackSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackSink").finish_non_exhaustive()
    }
}
