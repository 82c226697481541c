//! What is on record about a session.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use bastide_proto::warden::{LOCK_FILE, TRANSITION_LOCK_FILE, UNWANTED_FILE};
use rustix::fs::{Mode, OFlags, openat, renameat};
use serde::{Deserialize, Serialize};

use crate::backend::{Machine, MachineSpec, SessionId};
use crate::client::LeaseOptions;
use crate::journal::JournalOptions;
use crate::workspace::GitOptions;
use crate::{Condition, Error, ErrorKind, Result};

/// The file the record is in.
const NAME: &str = "machine.json";

/// The form of records this program writes and reads.
const FORM: u32 = 1;

/// The longest record. Most of it is the session's environment, which a kernel limits to 2 MiB.
const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// How far a session has come, as its record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stage {
    /// It is being made.
    Starting,
    /// It was made; whether it still runs, its machine knows.
    Running,
    /// It runs and is being saved, because it is about to end and its files with it: what somebody wrote now would be lost.
    /// Once nobody has its turn any more, whoever saved it was interrupted, and it runs as before.
    Saving,
    /// It was saved and is about to end, or has ended already: on purpose, either way.
    Stopping,
    /// It was stopped and can be started again.
    Stopped,
}

impl Stage {
    const ALL: [Self; 5] =
        [Self::Starting, Self::Running, Self::Saving, Self::Stopping, Self::Stopped];

    /// The word it is kept by.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Saving => "saving",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
        }
    }

    /// The stage kept by this word.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == word)
    }
}

/// Everything needed to find a session again and go on with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    form: u32,
    pub(crate) id: SessionId,
    pub(crate) backend: String,
    pub(crate) stage: Stage,
    pub(crate) created_at_ms: u64,
    /// Whether it ends with the process that made it.
    pub(crate) tied: bool,
    /// Whether it was there before whoever started its machine: its files are not theirs alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) was_there: bool,
    pub(crate) spec: MachineSpec,
    /// The environment every command starts with.
    pub(crate) env: Vec<(String, String)>,
    /// The ports that were declared when it was made.
    pub(crate) exposed_ports: Vec<u16>,
    /// Where files of the host in its manifest come from.
    #[serde(default)]
    pub(crate) base_dir: Option<PathBuf>,
    /// How repositories of its manifest are fetched.
    #[serde(default)]
    pub(crate) git: GitOptions,
    /// How many entries and files of a folder are laid out at once.
    #[serde(default)]
    pub(crate) concurrency: Option<(Option<usize>, Option<usize>)>,
    /// A folder of the host that was made for the session and goes with it.
    #[serde(default)]
    pub(crate) owned_root: Option<PathBuf>,
    /// Which points it makes of itself.
    #[serde(default)]
    pub(crate) journal: Option<JournalOptions>,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<LeaseOptions>,
    pub(crate) machine: Option<Machine>,
}

impl Record {
    /// The intent to make a session.
    pub(crate) fn intent(id: SessionId, backend: &str, spec: MachineSpec) -> Self {
        Self {
            form: FORM,
            id,
            backend: backend.to_owned(),
            stage: Stage::Starting,
            created_at_ms: now_ms(),
            tied: true,
            was_there: false,
            spec,
            env: Vec::new(),
            exposed_ports: Vec::new(),
            base_dir: None,
            git: GitOptions::default(),
            concurrency: None,
            owned_root: None,
            journal: None,
            lease: None,
            machine: None,
        }
    }

    /// Puts the variables that its network brings along into its environment: placeholders of secrets whatever was there,
    /// and settings of package managers where nothing was.
    pub(crate) fn set_egress_variables(&mut self) {
        let Some(egress) = &self.spec.egress else { return };
        for (key, value) in egress.variables() {
            self.env.retain(|(known, _)| *known != key);
            self.env.push((key, value));
        }
        for (key, value) in &egress.settings {
            if !self.env.iter().any(|(known, _)| known == key) {
                self.env.push((key.clone(), value.clone()));
            }
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The part of a record that says what a session is and how to ask after it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    pub(crate) id: SessionId,
    pub(crate) backend: String,
    pub(crate) stage: Stage,
    pub(crate) created_at_ms: u64,
    pub(crate) tied: bool,
    pub(crate) root: String,
    pub(crate) machine: Option<Machine>,
}

impl Summary {
    pub(crate) fn of(record: &Record) -> Self {
        Self {
            id: record.id.clone(),
            backend: record.backend.clone(),
            stage: record.stage,
            created_at_ms: record.created_at_ms,
            tied: record.tied,
            root: record.spec.root.as_str().to_owned(),
            machine: record.machine.clone(),
        }
    }
}

/// What changes whenever a record does: every change makes a new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp(pub(super) String);

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        Self(format!("{}:{seconds}.{nanoseconds}:{}", metadata.ino(), metadata.len()))
    }
}

/// Writes the record into a session's folder, whole or not at all. It is on the disk when this returns,
/// because what is done next may rely on it: but for a session that ends with its owner, and of which
/// nobody was promised anything after that. The path is where the folder was found.
pub(super) fn write(folder: &File, path: &Path, record: &Record) -> Result<Stamp> {
    let failed = |error: io::Error| {
        let message = format!("cannot write the record of session {}: {error}", record.id);
        Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
    };
    let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
    let unfinished = format!("{NAME}.new");
    let write = || {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let mut file = File::from(openat(folder, &unfinished, flags, mode)?);
        file.write_all(&text)?;
        if !record.tied {
            file.sync_all()?;
        }
        let stamp = Stamp::of(&file.metadata()?);
        renameat(folder, &unfinished, folder, NAME)?;
        if !record.tied {
            folder.sync_all()?;
        }
        Ok(stamp)
    };
    write().map_err(failed)
}

/// The part of every record that any version of this program can read.
#[derive(Debug, Deserialize)]
struct Head {
    form: u32,
}

/// Reads the record in a session's folder, with the stamp of exactly what was read; `None` if there is
/// none.
pub(super) fn read(folder: &Path, id: &SessionId) -> Result<Option<(Record, Stamp)>> {
    let (text, stamp) = match text_in(folder) {
        Ok(Some(read)) => read,
        Ok(None) => return Ok(None),
        Err(error) => {
            let message = format!("the record of session {id} cannot be read: {error}");
            return Err(Error::new(ErrorKind::Io, message)
                .with_context("path", folder.display().to_string())
                .with_hint("look at it as whoever may read it; nothing of the session is touched meanwhile"));
        }
    };
    let damaged = |why: String| {
        let message = format!("the record of session {id} is damaged: {why}");
        Error::new(ErrorKind::InvalidInput, message)
            .with_context("path", folder.display().to_string())
            .with_condition(Condition::RecordDamaged)
    };
    let head: Head = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    if head.form != FORM {
        let message = format!(
            "the record of session {id} has the form {}, and this program knows {FORM}",
            head.form
        );
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_context("path", folder.display().to_string())
            .with_hint("use the version of Bastide that made it"));
    }
    let record: Record = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    if record.id != *id {
        return Err(damaged(format!("it is that of session {}", record.id)));
    }
    Ok(Some((record, stamp)))
}

fn text_in(folder: &Path) -> io::Result<Option<(String, Stamp)>> {
    let file = match File::open(folder.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let stamp = Stamp::of(&file.metadata()?);
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text)?;
    Ok(Some((text, stamp)))
}

/// The backend a record names, also where nothing else in it can be read.
pub(super) fn backend_in(folder: &Path) -> Option<String> {
    let (text, _) = text_in(folder).ok()??;
    let record: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(record.get("backend")?.as_str()?.to_owned())
}

/// Whether a folder holds nothing but what is made before the first record: whoever made it was
/// interrupted at once. What holds more had a record, and lost it.
pub(super) fn is_bare(folder: &Path) -> io::Result<bool> {
    let before = [LOCK_FILE, TRANSITION_LOCK_FILE, UNWANTED_FILE, &format!("{NAME}.new")];
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if !before.iter().any(|known| name == *known) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The stamp of the record as it is now; `None` if there is no record.
pub(super) fn stamp(folder: &Path) -> Option<Stamp> {
    fs::metadata(folder.join(NAME)).ok().map(|metadata| Stamp::of(&metadata))
}
