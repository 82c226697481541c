//! Files of a session.

mod call;
mod entries;
mod extract;
mod files_error;
mod info;
mod mount;
mod path;
mod read;
mod spool;
mod watch;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bastide_model::events::Operation;
use bastide_model::paths::WorkspacePathPolicy;
use serde_json::{Value, json};

use crate::Session;
use crate::events::{OperationScope, Recorder, extension, operation_scope};
use crate::link::Link;

pub use extract::ExtractOptions;
pub use info::{FileInfo, FileKind};
pub use read::FileReader;
pub(crate) use spool::{Spool, SpoolError};
pub use watch::{FileChange, Watch};
pub use write::{Content, WriteOptions};

/// How long a guest may be silent in the middle of a call.
const SILENCE: Duration = Duration::from_secs(30);

/// The most a whole file may be when it is read at once.
pub(crate) const MAX_WHOLE: u64 = 256 << 20;

/// From this size on a file is not sent over the link but passed beside it, where that can be done.
/// Measured: a read of 64 KiB takes half the time, a write breaks even there, and beyond the link
/// falls behind quickly.
const WORTH_PASSING: u64 = 128 << 10;

/// The most entries of a folder that are listed at once.
pub(crate) const MAX_ENTRIES: usize = 200_000;

/// The files of a session, as one of its users.
///
/// Relative paths start at the root of the workspace. Links are followed as long as they stay in the
/// workspace or a grant; whatever leads out is refused, however it is spelled and whatever a command
/// does to the tree meanwhile.
///
/// Errors are those of the reference: `InvalidManifestPathError` for a path that leads out,
/// `WorkspaceReadNotFoundError` for a file that is not there, and so on ([`Error::class`]). Two are
/// ours: [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer, and
/// [`LimitExceeded`](crate::ErrorKind::LimitExceeded) for more than fits.
///
/// [`Error::class`]: crate::Error::class
#[derive(Debug, Clone)]
pub struct Files<'a> {
    link: &'a dyn Link,
    policy: &'a WorkspacePathPolicy,
    user: Option<String>,
    events: Option<&'a Arc<Recorder>>,
}

impl Session {
    /// The files of the session, as its default user.
    #[must_use]
    pub fn files(&self) -> Files<'_> {
        let files = Files::new(self.link.as_ref(), &self.policy, None);
        files.recorded_by(self.events.as_ref())
    }

    /// The files of the session, as one of its users: a name or a number of the sandbox. An empty name is its default user.
    #[must_use]
    pub fn files_as(&self, user: impl Into<String>) -> Files<'_> {
        let user = Some(user.into()).filter(|user| !user.is_empty());
        let files = Files::new(self.link.as_ref(), &self.policy, user);
        files.recorded_by(self.events.as_ref())
    }
}

impl<'a> Files<'a> {
    /// Files that are reached over `link` by the rules of `policy`, as `user` or the default one.
    /// [`Session::files`](crate::Session::files) is the usual way to come by them.
    pub fn new(link: &'a dyn Link, policy: &'a WorkspacePathPolicy, user: Option<String>) -> Self {
        Self { link, policy, user, events: None }
    }

    /// The same files; what is done with them is recorded.
    pub(crate) fn recorded_by(self, events: Option<&'a Arc<Recorder>>) -> Self {
        Self { events, ..self }
    }

    /// Opens the scope of an operation that the reference has no events for.
    fn extension(&self, op: &'static str, data: impl FnOnce() -> Value) -> OperationScope<'a> {
        operation_scope(self.events, || {
            let mut data = data();
            if let (Value::Object(data), Some(user)) = (&mut data, &self.user) {
                data.insert("user".to_owned(), json!(user));
            }
            extension(op, data)
        })
    }

    /// Opens the scope of an operation of the reference.
    fn operation_scope(
        &self,
        operation: impl FnOnce(Option<String>) -> Operation,
    ) -> OperationScope<'a> {
        operation_scope(self.events, || operation(self.user.clone()))
    }
}
