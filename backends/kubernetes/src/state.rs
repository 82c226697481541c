//! What is needed to find a pod again, and what is kept in a session's folder.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bastide::host::own_folder;
use bastide::{Error, ErrorKind, Machine, MachineExit, Result};
use bastide_proto::warden::END_FILE;
use serde::{Deserialize, Serialize};

use crate::options::StoredOptions;
use crate::{ClusterAccess, Owner};

/// The file of a session's folder that says what it was made with, and where.
const RECORD_NAME: &str = "kubernetes.json";

/// The folder of a home that says that it has had pods.
const USED: &str = "kubernetes";

/// The longest record.
const MAX_BYTES: u64 = 1 << 20;

/// What there is to say about the machine of a session that was copied.
pub(crate) const COPIED: &str = "it was copied here from elsewhere, and its pod is the original's";

/// What is needed to find a pod again. No credential is in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) dir: PathBuf,
    pub(crate) access: ClusterAccess,
    pub(crate) server: String,
    pub(crate) namespace_uid: Option<String>,
    /// What its pod belongs to.
    #[serde(default)]
    pub(crate) owner: Owner,
    #[serde(rename = "job_uid")]
    pub(crate) owner_uid: String,
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) node: String,
    pub(crate) image: String,
    pub(crate) image_id: String,
    /// Whether the workspace is on a volume that outlives the pod.
    #[serde(default)]
    pub(crate) volume: bool,
}

pub(crate) fn state_of(machine: &Machine) -> Result<State> {
    let state = State::deserialize(&machine.state).map_err(|error| error.to_string());
    let state = state.and_then(|state| match is_plain(&state.pod) {
        true => Ok(state),
        false => Err(format!("{:?} is no name of a pod", state.pod)),
    });
    state.map_err(|why| {
        let message = format!("the state of session {} is damaged: {why}", machine.id);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// Whether something can be part of an address as it is.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

/// The state of a machine on record, with the session's folder in this home; only the folder if it was copied from
/// another home, whose machine that is.
pub(crate) fn own_state(home: &Path, machine: &Machine) -> Result<(PathBuf, Option<State>)> {
    let state = state_of(machine)?;
    let (dir, is_own) = own_folder(home, machine, &state.dir)?;
    Ok((dir.clone(), is_own.then_some(State { dir, ..state })))
}

/// What a session was made with; `None` if nothing was made of it yet.
pub(crate) fn load_record(folder: &Path) -> Result<Option<StoredOptions>> {
    let path = folder.join(RECORD_NAME);
    let damaged = |why: String| {
        let message = format!("what was asked of the pod is damaged: {why}");
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

/// Notes what a session is made with, before anything is made.
pub(crate) fn store_record(folder: &Path, record: &StoredOptions) -> io::Result<()> {
    write_private(&folder.join(RECORD_NAME), &serde_json::to_vec(record)?)
}

/// How a session ended, if that was noted.
pub(crate) fn load_end(dir: &Path) -> Option<MachineExit> {
    serde_json::from_slice(&fs::read(dir.join(END_FILE)).ok()?).ok()
}

/// Notes how a session ended: the object that says so goes. Whoever cannot note it will see it again, or not.
pub(crate) fn store_end(dir: &Path, end: &MachineExit) {
    if load_end(dir).is_none()
        && let Ok(text) = serde_json::to_vec(end)
    {
        drop(write_private(&dir.join(END_FILE), &text));
    }
}

/// A note of how the session ended before is no news any more.
pub(crate) fn forget_end(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    file.open(path)?.write_all(bytes)
}

/// Whether this home has ever had sessions in pods.
#[must_use]
pub fn was_used(home: &Path) -> bool {
    home.join(USED).exists()
}

/// Notes where sessions of this home are, for whoever sweeps it.
pub(crate) fn note_use(home: &Path, access: &ClusterAccess) -> io::Result<()> {
    let folder = home.join(USED);
    fs::create_dir_all(&folder)?;
    let text = serde_json::to_vec(access)?;
    let name = blake3::hash(&text).to_hex().as_str().get(..16).unwrap_or_default().to_owned();
    let path = folder.join(format!("{name}.json"));
    if path.try_exists()? {
        return Ok(());
    }
    write_private(&path, &text)
}

/// Where sessions of this home have been.
pub(crate) fn used(home: &Path) -> Vec<ClusterAccess> {
    let Ok(entries) = fs::read_dir(home.join(USED)) else { return Vec::new() };
    let read = |entry: io::Result<fs::DirEntry>| {
        let file = fs::File::open(entry.ok()?.path()).ok()?;
        serde_json::from_reader(io::Read::take(file, MAX_BYTES)).ok()
    };
    entries.filter_map(read).collect()
}
