//! Building the jail: one straight line, in one thread, before anything else runs inside.

pub(crate) mod container;
mod egress_net;
mod host_file;
mod ids;
mod limits;
mod netlink;
mod root;
mod root_template;
mod seccomp;
mod walls;

use std::io;

use bastide_proto::boot::{BaseSpec, BootFailure, BootSpec};
use rustix::io::Errno;

pub(crate) use egress_net::{join, raise_own_loopback, set_up_egress};
pub(crate) use host_file::{identity_of, open_host_file};
pub(crate) use ids::IdMap;
pub(crate) use limits::{
    LimitContext, ProcessCount, UNASKED, UNASKED_OF_HOST, limit_commands, lower_oom_score,
};
pub(crate) use root::{
    BindOverride, begin_root, clone_binds, file_system, finish_root, leave_host, make_exclusively,
    open_alone, shift,
};
pub(crate) use root_template::{add_private, build_template, can_be_template};
pub(crate) use seccomp::{FilterOptions, Processors, Protected, Shared, WriteTarget};
pub(crate) use walls::{
    OVER_USERS, WallsReport, give_up_everything, give_up_unneeded, harden_init, prepare_filter,
    raise_walls, reduce_guest, reduce_listeners,
};

/// All there is to know about a sandbox that is to be built.
#[derive(Debug)]
pub(crate) struct SandboxSpec {
    /// Its base.
    pub(crate) base_spec: BaseSpec,
    /// The session's own part.
    pub(crate) session: BootSpec,
}

/// A step of building the jail that failed. It names the step, so that `EPERM` alone never reaches
/// a user.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {errno}")]
pub(crate) struct StepError {
    step: String,
    errno: Errno,
    of_session: bool,
    hint: Option<&'static str>,
}

impl StepError {
    /// A step that failed for a reason that was no system call's.
    pub(crate) fn from_errno(step: &str, errno: i32) -> Self {
        let errno = Errno::from_raw_os_error(errno);
        Self { step: step.to_owned(), errno, of_session: false, hint: None }
    }

    /// The same, about files that the session's commands may have changed, or about what was asked for.
    pub(crate) fn of_session(self) -> Self {
        Self { of_session: true, ..self }
    }

    /// The same, with what helps.
    pub(crate) fn with_hint(self, hint: &'static str) -> Self {
        Self { hint: Some(hint), ..self }
    }

    /// Whether it says that the machine does not have something, or gives it to nobody. Whatever else may
    /// be over in a moment, or somebody's doing.
    pub(crate) fn is_missing(&self) -> bool {
        bastide_proto::boot::is_missing(self.errno.raw_os_error()) && !self.of_session
    }
}

impl From<StepError> for BootFailure {
    fn from(error: StepError) -> Self {
        Self {
            step: error.step,
            errno: error.errno.raw_os_error(),
            no_namespaces: false,
            of_session: error.of_session,
            hint: error.hint.map(str::to_owned),
            no_range: false,
        }
    }
}

/// Names the step an error belongs to.
pub(crate) trait StepContext<T> {
    /// Names the step, as in "cannot {step}".
    fn step(self, name: impl FnOnce() -> String) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> StepContext<T> for Result<T, E> {
    fn step(self, name: impl FnOnce() -> String) -> Result<T, StepError> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            StepError { step: name(), errno, of_session: false, hint: None }
        })
    }
}
