//! What a session has at `sbx`, on disk before it is made there: whoever finds the session's folder later
//! can take all of it back.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide::host::sync_folder;
use bastide::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::dialect::Dialect;
use crate::options::SbxOptions;
use crate::program::{Call, Sbx, refused};

/// The file of a session's folder that it is in.
const NAME: &str = "sbx.json";

/// How long a removal may take.
const REMOVAL: Duration = Duration::from_secs(120);

/// How long it may take to forget a secret.
const ANSWER: Duration = Duration::from_secs(30);

/// What a session has at `sbx`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
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

impl Journal {
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
    pub(crate) async fn take_back(&self, folder: &Path) -> Result<()> {
        let sbx = Sbx::new(&self.program);
        if !self.signed_in.is_empty() {
            let dialect = Dialect::probe(&sbx).await?;
            for service in &self.signed_in {
                if self.hand_over(folder, service)? {
                    continue;
                }
                let args = dialect.remove_secret(service);
                let output = sbx.call(&args, Call::default(), ANSWER).await?;
                if !output.is_success() && !is_missing(&output.complaint()) {
                    return Err(refused(&args, &output));
                }
            }
        }
        remove(&sbx, &self.sandbox).await
    }

    /// Leaves a sign-in to another session that relies on it, and is to take it back; says whether there is one.
    fn hand_over(&self, folder: &Path, service: &String) -> Result<bool> {
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

/// Every journal beneath a folder of sessions that can be read.
fn all(sessions: Option<&Path>) -> impl Iterator<Item = (PathBuf, Journal)> {
    let folders = sessions.and_then(|sessions| fs::read_dir(sessions).ok());
    let folders = folders.into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| Some((folder.clone(), Journal::load(&folder).ok()??)))
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
pub fn keep_secret(home: &Path, service: &str) -> Result<()> {
    for (folder, mut journal) in all(Some(&home.join("sessions"))) {
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
