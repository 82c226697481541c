//! What a session has at `sbx`, on disk before it is made there: whoever finds the session's folder later
//! can take all of it back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bastide::host::sync_folder;
use bastide::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::dialect::Dialect;
use crate::options::SbxOptions;
use crate::program::{Call, Sbx, refused};

/// The file of a session's folder that it is in.
const NAME: &str = "sbx.json";

/// The file of a home that is locked by whoever signs in or out.
const SIGN_INS: &str = "sbx.lock";

/// How long somebody else may take to sign in: a person has to do it.
const TIMEOUT: Duration = Duration::from_secs(900);

/// How long to wait before asking for the lock again.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a removal may take.
const REMOVAL: Duration = Duration::from_secs(120);

/// How long it may take to forget a secret.
const ANSWER: Duration = Duration::from_secs(30);

/// What a session has at `sbx`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResourceRecord {
    /// The program that it was made by.
    pub(crate) program: PathBuf,
    /// The sandbox. Its rules and secrets go with it.
    pub(crate) sandbox: String,
    /// Services whose secret is stored for the whole machine because of this session.
    #[serde(default)]
    pub(crate) signed_in: Vec<String>,
    /// Services that it is signed in to, because of whichever session.
    #[serde(default)]
    pub(crate) uses: Vec<String>,
    /// How its sandbox was made.
    #[serde(default)]
    pub(crate) made_with: SandboxSettings,
    /// Whether its sandbox may be there without its rules about hosts: it was being made.
    #[serde(default)]
    pub(crate) lacks_rules: bool,
}

/// How a sandbox was made: what another one in its place, or one like it, has to be made with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSettings {
    /// The image.
    pub(crate) template: Option<String>,
    /// The hosts that can be reached.
    pub(crate) network_allow: Vec<String>,
    /// The services of its secrets, whose values are on no record.
    pub(crate) secrets: Vec<String>,
    /// Whether the sign-in of the host's own `codex` was copied in.
    pub(crate) codex_login: bool,
}

impl SandboxSettings {
    pub(crate) fn of(options: &SbxOptions) -> Self {
        Self {
            template: options.template.clone(),
            network_allow: options.network_allow.clone(),
            secrets: options.secrets.iter().map(|(service, _)| service.clone()).collect(),
            codex_login: options.codex_login.is_some(),
        }
    }

    /// These options for a sandbox like it, which has to be given again what is on no record.
    pub(crate) fn complete(&self, mut options: SbxOptions) -> Result<SbxOptions> {
        let is_given =
            |service: &&String| options.secrets.iter().any(|(given, _)| given == *service);
        let missing = self.secrets.iter().find(|service| !is_given(service));
        let login = (self.codex_login && options.codex_login.is_none()).then_some("codex");
        if let Some(service) = missing.map(String::as_str).or(login) {
            let message = format!(
                "a sandbox like it needs the secret of {service}, and its value is on no record"
            );
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("make a fresh session with its secrets, from a snapshot of this one"));
        }
        options.template = options.template.or_else(|| self.template.clone());
        if options.network_allow.is_empty() {
            options.network_allow.clone_from(&self.network_allow);
        }
        Ok(options)
    }
}

impl ResourceRecord {
    /// What is on record in a session's folder.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(NAME);
        let damaged = |why: String| {
            let message = format!("cannot tell what {} has at sbx: {why}", folder.display());
            Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
        };
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map(Some).map_err(|error| damaged(error.to_string()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(damaged(error.to_string())),
        }
    }

    /// Puts it on record, so that it outlives everything.
    pub(crate) fn store(&self, folder: &Path) -> io::Result<()> {
        let (new, path) = (folder.join("sbx.json.new"), folder.join(NAME));
        let mut options = fs::File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        sync_folder(folder)
    }

    /// Takes everything back. What is gone already is no failure.
    pub(crate) async fn release(self, folder: &Path) -> Result<()> {
        let sbx = Sbx::new(&self.program);
        let signed_out = match self.uses.is_empty() && self.signed_in.is_empty() {
            true => Ok(()),
            false => self.sign_out(&sbx, folder).await,
        };
        // Whatever becomes of the sign-ins, nothing of the session runs any more.
        remove(&sbx, &self.sandbox).await.and(signed_out)
    }

    /// Takes back what it signed in to, or leaves it to others who rely on it.
    async fn sign_out(&self, sbx: &Sbx, folder: &Path) -> Result<()> {
        let _alone = SignInLock::take(folder).await?;
        // Another session that is removed may have left its sign-ins to this one since.
        let mut latest = Self::load(folder)?.unwrap_or_else(|| self.clone());
        // On record first: from here on nobody leaves anything to it.
        latest.uses.clear();
        latest.store(folder).map_err(|error| not_noted(folder, &error))?;
        if latest.signed_in.is_empty() {
            return Ok(());
        }
        let dialect = Dialect::probe(sbx).await?;
        for service in &latest.signed_in {
            if latest.transfer_ownership(folder, service)? {
                continue;
            }
            let args = dialect.remove_secret(service);
            let output = sbx.call(&args, Call::default(), ANSWER).await?;
            if !output.is_success() && !is_missing(&output.complaint()) {
                return Err(refused(&args, &output));
            }
        }
        Ok(())
    }

    /// Leaves a sign-in to another session that relies on it, and is to take it back; says whether there is one.
    fn transfer_ownership(&self, folder: &Path, service: &String) -> Result<bool> {
        for (other, mut journal) in all(folder.parent()) {
            let relies = journal.sandbox != self.sandbox && journal.uses.contains(service);
            if !relies {
                continue;
            }
            if !journal.signed_in.contains(service) {
                journal.signed_in.push(service.clone());
                journal.store(&other).map_err(|error| not_noted(&other, &error))?;
            }
            return Ok(true);
        }
        Ok(false)
    }
}

/// The right to say which session takes a sign-in back: it holds for the whole machine, and sessions come and go side by
/// side.
#[derive(Debug)]
pub(crate) struct SignInLock {
    /// Held for its lock, which the kernel lets go of whatever ends the process.
    _file: fs::File,
}

impl SignInLock {
    /// Waits for it; `folder` is the folder of a session.
    pub(crate) async fn take(folder: &Path) -> Result<Self> {
        let sessions = folder.parent().unwrap_or(folder).to_owned();
        let path = sessions.with_file_name(SIGN_INS);
        let failed = |error: io::Error| {
            let message = format!("cannot lock {}: {error}", path.display());
            Error::new(ErrorKind::Io, message)
        };
        let mut options = fs::File::options();
        let file = options.create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(fs::TryLockError::WouldBlock) => {
                    let message = "another session of this home signs in or out at sbx";
                    return Err(Error::new(ErrorKind::Timeout, message)
                        .with_hint("try again when it has ended"));
                }
                Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

/// Every journal beneath a folder of sessions that can be read.
fn all(sessions: Option<&Path>) -> impl Iterator<Item = (PathBuf, ResourceRecord)> {
    let folders = sessions.and_then(|sessions| fs::read_dir(sessions).ok());
    let folders = folders.into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| Some((folder.clone(), ResourceRecord::load(&folder).ok()??)))
}

fn not_noted(folder: &Path, error: &io::Error) -> Error {
    let message = format!("cannot note what {} has at sbx: {error}", folder.display());
    Error::new(ErrorKind::Io, message)
}

/// Has a secret of the whole machine stay, whichever session signed in first: somebody stored it to stay.
///
/// # Errors
///
/// If that cannot be noted.
pub async fn keep_secret(home: &Path, service: &str) -> Result<()> {
    let sessions = home.join("sessions");
    if !sessions.is_dir() {
        return Ok(());
    }
    let _alone = SignInLock::take(&sessions.join("any")).await?;
    for (folder, mut journal) in all(Some(&sessions)) {
        let before = journal.signed_in.len();
        journal.signed_in.retain(|signed_in| signed_in != service);
        if journal.signed_in.len() != before {
            journal.store(&folder).map_err(|error| not_noted(&folder, &error))?;
        }
    }
    Ok(())
}

/// Removes a sandbox, whatever it is doing. A missing one is no failure.
pub(crate) async fn remove(sbx: &Sbx, sandbox: &str) -> Result<()> {
    unless_missing(sbx, sandbox, &["rm", "--force", sandbox]).await
}

/// Stops a sandbox and keeps its files. A missing one is no failure.
pub(crate) async fn stop(sbx: &Sbx, sandbox: &str) -> Result<()> {
    unless_missing(sbx, sandbox, &["stop", sandbox]).await
}

/// A call about a sandbox that may be gone. That something was not found is said of other things as well: one that is
/// listed is there.
async fn unless_missing(sbx: &Sbx, sandbox: &str, args: &[&str]) -> Result<()> {
    let output = sbx.call(args, Call::default(), REMOVAL).await?;
    if output.is_success() {
        return Ok(());
    }
    if is_missing(&output.complaint()) && sbx.find(sandbox).await?.is_none() {
        return Ok(());
    }
    Err(refused(args, &output))
}

/// Whether it says that there is no such thing.
fn is_missing(complaint: &str) -> bool {
    let complaint = complaint.to_ascii_lowercase();
    complaint.contains("not found") || complaint.contains("no such")
}

#[cfg(test)]
mod tests {
    use bastide_sbx_stand_in::StandIn;

    use super::*;
    use crate::global;

    fn journal(stand_in: &StandIn, sandbox: &str, signed_in: bool) -> ResourceRecord {
        let service = || vec!["openai".to_owned()];
        ResourceRecord {
            program: stand_in.program().to_owned(),
            sandbox: sandbox.to_owned(),
            signed_in: if signed_in { service() } else { Vec::new() },
            uses: service(),
            made_with: SandboxSettings::default(),
            lacks_rules: false,
        }
    }

    /// The most that a call of these tests may take.
    const MOST: Duration = Duration::from_secs(60);

    /// The folders of two sessions that use a sign-in, which the first of them made.
    async fn two_sessions(home: &Path) -> (Sbx, [PathBuf; 2]) {
        let stand_in = StandIn::install(&home.join("sbx"), "0.45.1").unwrap();
        let folders = ["first", "second"].map(|name| home.join("sessions").join(name));
        let sbx = Sbx::new(stand_in.program());
        global::set_global_secret(&sbx, "openai", "hidden", MOST).await.unwrap();
        for (folder, signed_in) in folders.iter().zip([true, false]) {
            fs::create_dir_all(folder).unwrap();
            let name = folder.file_name().unwrap().to_str().unwrap();
            journal(&stand_in, name, signed_in).store(folder).unwrap();
        }
        (sbx, folders)
    }

    /// Whoever removes a session has read its journal before it removes anything.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_sign_in_is_forgotten_when_both_sessions_that_rely_on_it_go_at_once() {
        let home = tempfile::tempdir().unwrap();
        let (sbx, folders) = two_sessions(home.path()).await;
        let read = folders.each_ref().map(|folder| ResourceRecord::load(folder).unwrap().unwrap());
        for (folder, journal) in folders.iter().zip(read) {
            journal.release(folder).await.unwrap();
        }
        assert!(!global::has_global_secret(&sbx, "openai", MOST).await.unwrap());
    }

    /// A store of secrets that is locked is a reason to try that again, and none to have anything run on.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_sign_in_that_cannot_be_forgotten_keeps_no_sandbox() {
        let home = tempfile::tempdir().unwrap();
        let stand_in = StandIn::install(&home.path().join("sbx"), "0.45.1").unwrap();
        let folder = home.path().join("sessions/first");
        fs::create_dir_all(&folder).unwrap();
        journal(&stand_in, "first", true).store(&folder).unwrap();
        stand_in.fault("secret rm:1").unwrap();
        let read = || ResourceRecord::load(&folder).unwrap().unwrap();
        assert!(read().release(&folder).await.is_err());
        let removes = |words: &Vec<String>| words.join(" ").ends_with("rm --force first");
        assert!(stand_in.calls().unwrap().iter().any(removes), "{:?}", stand_in.calls());
        stand_in.fault("").unwrap();
        read().release(&folder).await.unwrap();
    }

    /// One that is being removed takes over nothing any more.
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_is_left_to_a_session_that_has_signed_out() {
        let home = tempfile::tempdir().unwrap();
        let (sbx, folders) = two_sessions(home.path()).await;
        // Its folder is still there, as while its sandbox is removed.
        for folder in folders.iter().rev() {
            ResourceRecord::load(folder).unwrap().unwrap().release(folder).await.unwrap();
        }
        assert!(!global::has_global_secret(&sbx, "openai", MOST).await.unwrap());
    }
}
