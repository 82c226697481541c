//! Events: what a session did, for whoever watches.
//!
//! Every operation makes a start and a finish event. Before a sink sees one, a [`PayloadPolicy`]
//! decides how much of it may be said. Delivery itself is not here; [`WorkspaceLog`] is the one sink
//! whose rules need more than a line of text.

mod event;
mod operation;
mod policy;
mod read;
mod time;
mod workspace_log;

pub use event::{Event, Finish};
pub use operation::{Operation, OperationResult, Span};
pub use policy::{EffectivePolicy, PayloadPolicy, safe_decode};
pub use time::EventTime;
pub use workspace_log::{WorkspaceLog, WorkspaceLogOptions};
