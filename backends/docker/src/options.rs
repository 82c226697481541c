//! What can be asked of a container.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bastide::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The file of a session's folder that its options are kept in.
const NAME: &str = "docker.json";

/// The longest options.
const MAX_BYTES: u64 = 1 << 20;

/// When an image is pulled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullPolicy {
    /// If the engine does not have it.
    #[default]
    Missing,
    /// Never.
    Never,
}

/// The options of a session's container. Everything that weakens isolation is off by default, and
/// appears in the receipt if it is on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DockerOptions {
    /// The image.
    pub image: String,
    /// When the image is pulled.
    pub pull: PullPolicy,
    /// Labels of the container besides those of Bastide.
    pub labels: BTreeMap<String, String>,
    /// The OCI runtime, by the engine's name for it, such as `runsc`.
    pub runtime: Option<String>,
    /// Whether only the workspace, `/tmp` and grants are writable.
    pub read_only_root: bool,
    /// The user that everything in the container runs as, the guest included: a uid, or uid and gid
    /// with a colon. Commands cannot run as any other user then.
    pub only_user: Option<String>,
    /// Whether system calls are not filtered, neither by the engine nor by the guest.
    pub seccomp_unconfined: bool,
    /// Whether programs can gain privileges, as set-user-id programs do (no `no_new_privs`).
    pub new_privileges: bool,
    /// Additional capabilities for commands of root, such as `SYS_PTRACE`.
    pub cap_add: Vec<String>,
    /// The limit on processes for sessions that ask for none.
    pub pids: Option<u64>,
}

impl DockerOptions {
    /// Fetches the image then.
    #[must_use]
    pub fn pull(mut self, pull: PullPolicy) -> Self {
        self.pull = pull;
        self
    }

    /// Adds a label to the container.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Has the container run by that OCI runtime.
    #[must_use]
    pub fn runtime(mut self, runtime: impl Into<String>) -> Self {
        self.runtime = Some(runtime.into());
        self
    }

    /// Lets nothing but the workspace, `/tmp` and grants be written.
    #[must_use]
    pub fn read_only_root(mut self) -> Self {
        self.read_only_root = true;
        self
    }

    /// Runs the whole container as that user, guest included.
    #[must_use]
    pub fn only_user(mut self, only_user: impl Into<String>) -> Self {
        self.only_user = Some(only_user.into());
        self
    }

    /// Filters no system calls.
    #[must_use]
    pub fn seccomp_unconfined(mut self) -> Self {
        self.seccomp_unconfined = true;
        self
    }

    /// Lets programs give new privileges, as set-user-id ones do.
    #[must_use]
    pub fn new_privileges(mut self) -> Self {
        self.new_privileges = true;
        self
    }

    /// Gives commands of root these capabilities besides.
    #[must_use]
    pub fn cap_add(mut self, cap_add: impl IntoIterator<Item = String>) -> Self {
        self.cap_add = cap_add.into_iter().collect();
        self
    }

    /// Allows that many processes where no limit is asked for.
    #[must_use]
    pub fn pids(mut self, pids: u64) -> Self {
        self.pids = Some(pids);
        self
    }
}

impl DockerOptions {
    /// Options for containers from `image`, with everything closed.
    #[must_use]
    pub fn new(image: impl Into<String>) -> Self {
        Self { image: image.into(), ..Self::default() }
    }

    /// The options a session was made with; `None` if it was never made.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let damaged = |why: String| {
            let message = format!("what was asked of the container is damaged: {why}");
            Error::new(ErrorKind::InvalidInput, message)
                .with_context("path", path.display().to_string())
        };
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let read = serde_json::from_reader(io::Read::take(file, MAX_BYTES));
        read.map(Some).map_err(|error| damaged(error.to_string()))
    }

    /// Keeps them in a session's folder.
    pub(crate) fn store(&self, folder: &Path) -> io::Result<()> {
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(folder.join(NAME))?;
        file.write_all(&serde_json::to_vec(self)?)
    }

    /// The numbers of the one user, where there is but one.
    pub(crate) fn only_ids(&self) -> Result<Option<(u32, u32)>> {
        let Some(text) = &self.only_user else { return Ok(None) };
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
        match (number(user), number(group)) {
            (Some(user), Some(group)) if user != 0 => Ok(Some((user, group))),
            _ => {
                let message = format!("{text:?} cannot be the only user of a container");
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("give a number other than 0, or two with a colon"))
            }
        }
    }
}
