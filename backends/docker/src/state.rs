//! What is needed to find a container again.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bastide::host::process_identity::ProcessIdentity;
use bastide::{Error, ErrorKind, Machine, Result, SessionId};
use bastide_proto::GuestPath;
use bastide_proto::boot::UserAndGroup;
use serde::{Deserialize, Serialize};

use crate::EngineAddress;

/// The label that says whose session something is.
pub(crate) const SESSION_LABEL: &str = "bastide.session";

/// The label that says where that session is remembered.
pub(crate) const HOME_LABEL: &str = "bastide.home";

/// The file of a session's folder that says which engine it is on.
const ENGINE_NAME: &str = "engine";

/// The file of a session's folder that says whom its commands run as.
const USER_NAME: &str = "user";

/// What is needed to find a container again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) dir: PathBuf,
    pub(crate) engine: EngineAddress,
    /// The engine's own name of the container.
    pub(crate) container: String,
    pub(crate) image: String,
    /// What it is labelled with besides ours.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Where the workspace is, if the image says so and not the manifest.
    #[serde(default)]
    pub(crate) root: Option<GuestPath>,
    /// The volumes of the manifest's mounts.
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
    pub(crate) transport: Transport,
    /// The guest's process, where it is one of this machine that we can see.
    pub(crate) guest: Option<ProcessIdentity>,
    pub(crate) warden: Option<ProcessIdentity>,
    /// The daemon's process when the container was started: after another one came, whatever ended
    /// ended with the first.
    pub(crate) daemon: Option<ProcessIdentity>,
}

/// How a guest is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// By its socket, in a folder the container shares with this host.
    Socket,
    /// By a command in the container that joins its streams to that socket.
    Dial,
}

pub(crate) fn state_of(machine: &Machine) -> Result<State> {
    State::deserialize(&machine.state).map_err(|error| {
        let message = format!("the state of session {} is damaged: {error}", machine.id);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// The name of a session's container.
pub(crate) fn container_name(id: &SessionId) -> String {
    format!("bastide-{id}")
}

/// The volume that is the workspace where the root is read-only.
pub(crate) fn workspace_volume(id: &SessionId) -> String {
    format!("bastide-{id}-workspace")
}

/// The folder that the container shares with this host.
pub(crate) fn run_dir(dir: &Path) -> PathBuf {
    dir.join("run")
}

/// Notes which engine a session is on, before anything is made there.
pub(crate) fn store_engine(dir: &Path, address: &EngineAddress) -> io::Result<()> {
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    file.open(dir.join(ENGINE_NAME))?.write_all(&serde_json::to_vec(address)?)
}

/// The engine a session is on, if that was noted.
pub(crate) fn load_engine(dir: &Path) -> Option<EngineAddress> {
    serde_json::from_slice(&fs::read(dir.join(ENGINE_NAME)).ok()?).ok()
}

/// Notes whom commands run as: what is mounted for them is theirs.
pub(crate) fn store_user(dir: &Path, user: UserAndGroup) -> io::Result<()> {
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    file.open(dir.join(USER_NAME))?.write_all(&serde_json::to_vec(&(user.uid, user.gid))?)
}

/// Whom commands run as, if that was noted.
pub(crate) fn load_user(dir: &Path) -> Option<(u32, u32)> {
    serde_json::from_slice(&fs::read(dir.join(USER_NAME)).ok()?).ok()
}
