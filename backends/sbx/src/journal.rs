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
    pub(crate) async fn take_back(&self) -> Result<()> {
        let sbx = Sbx::new(&self.program);
        if !self.signed_in.is_empty() {
            let dialect = Dialect::probe(&sbx).await?;
            for service in &self.signed_in {
                let words = dialect.remove_secret(service);
                let said = sbx.call(&words, Call::default(), ANSWER).await?;
                if !said.is_success() && !is_missing(&said.complaint()) {
                    return Err(refused(&words, &said));
                }
            }
        }
        remove(&sbx, &self.sandbox).await
    }
}

/// Removes a sandbox, whatever it is doing. A missing one is no failure.
pub(crate) async fn remove(sbx: &Sbx, sandbox: &str) -> Result<()> {
    let words = ["rm", "--force", sandbox];
    let said = sbx.call(&words, Call::default(), REMOVAL).await?;
    if said.is_success() || is_missing(&said.complaint()) {
        return Ok(());
    }
    Err(refused(&words, &said))
}

/// Stops a sandbox and keeps its files. A missing one is no failure.
pub(crate) async fn stop(sbx: &Sbx, sandbox: &str) -> Result<()> {
    let words = ["stop", sandbox];
    let said = sbx.call(&words, Call::default(), REMOVAL).await?;
    if said.is_success() || is_missing(&said.complaint()) {
        return Ok(());
    }
    Err(refused(&words, &said))
}

/// Whether it says that there is no such thing.
fn is_missing(complaint: &str) -> bool {
    let complaint = complaint.to_ascii_lowercase();
    complaint.contains("not found") || complaint.contains("no such")
}
