//! What is remembered between calls.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bastide::{Client, SessionId};
use bastide_local::LocalBackend;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::profile::Profile;
use crate::{Failure, Outcome};

/// One sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    pub(crate) agent: String,
    /// The folders of the host in it, the workspace first.
    pub(crate) workspaces: Vec<String>,
    pub(crate) session: SessionId,
    pub(crate) running: bool,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cpus: Option<String>,
    pub(crate) memory: Option<String>,
    /// Where commands start.
    pub(crate) folder: String,
    /// Ports that are published.
    #[serde(default)]
    pub(crate) ports: Vec<Port>,
    /// The repository that its workspace is a clone of.
    #[serde(default)]
    pub(crate) clone_of: Option<String>,
}

/// A port that is published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Port {
    pub(crate) host_ip: String,
    pub(crate) host_port: u16,
    pub(crate) sandbox_port: u16,
    pub(crate) protocol: String,
}

/// All of them, by name.
pub(crate) type Sandboxes = BTreeMap<String, Sandbox>;

/// A secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Secret {
    /// `global`, or `sandbox:` and a name.
    pub(crate) scope: String,
    /// `apikey` or `oauth`.
    pub(crate) kind: String,
    pub(crate) service: String,
    pub(crate) value: String,
}

/// A rule about hosts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) id: String,
    /// `global`, or `sandbox:` and a name.
    pub(crate) scope: String,
    /// `allow` or `deny`.
    pub(crate) decision: String,
    pub(crate) resources: Vec<String>,
}

/// Everything that is remembered.
#[derive(Debug)]
pub(crate) struct Database {
    folder: PathBuf,
    pub(crate) profile: Profile,
    pub(crate) version: String,
    faults: Vec<String>,
}

impl Database {
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let version = match read("version").trim() {
            "" => "0.45.1".to_owned(),
            version => version.to_owned(),
        };
        let faults = read("faults");
        let faults = faults.split(['\n', ',']).map(str::trim).filter(|fault| !fault.is_empty());
        let faults = faults.map(str::to_owned).collect();
        Ok(Self { profile: Profile::of(&version), version, faults, folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = &str> {
        self.faults.iter().map(String::as_str)
    }

    pub(crate) fn has_fault(&self, fault: &str) -> bool {
        self.faults().any(|one| one == fault)
    }

    pub(crate) fn is_signed_in(&self) -> bool {
        self.path("signed-in").exists()
    }

    /// Notes a call.
    pub(crate) fn log(&self, words: &[String]) -> io::Result<()> {
        let mut options = File::options();
        let mut file = options.append(true).create(true).open(self.path("argv.log"))?;
        let cwd = std::env::current_dir().unwrap_or_default();
        let call = json!({"argv": words, "cwd": cwd, "tty": io::stdin().is_terminal()});
        file.write_all(format!("{call}\n").as_bytes())
    }

    /// The local sessions behind the sandboxes.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(Arc::new(LocalBackend::new(self.path("home"))?)))
    }

    pub(crate) fn load<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, Failure> {
        match fs::read(self.path(name)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes something that is stored; others wait for it.
    pub(crate) fn change<T, R>(
        &self,
        name: &str,
        change: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure>
    where
        T: DeserializeOwned + Serialize + Default,
    {
        let lock = File::create(self.path("lock"))?;
        lock.lock()?;
        let mut value: T = self.load(name)?;
        let result = change(&mut value)?;
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, serde_json::to_vec_pretty(&value)?)?;
        fs::rename(new, self.path(name))?;
        Ok(result)
    }

    pub(crate) fn sandboxes(&self) -> Result<Sandboxes, Failure> {
        self.load("sandboxes.json")
    }

    pub(crate) fn sandbox(&self, name: &str) -> Result<Sandbox, Failure> {
        let found = self.sandboxes()?.remove(name);
        found.ok_or_else(|| Failure(1, format!("sandbox '{name}' not found")))
    }

    /// Changes one sandbox.
    pub(crate) fn change_sandbox(
        &self,
        name: &str,
        change: impl FnOnce(&mut Sandbox),
    ) -> Result<(), Failure> {
        self.change("sandboxes.json", |all: &mut Sandboxes| {
            if let Some(sandbox) = all.get_mut(name) {
                change(sandbox);
            }
            Ok(())
        })
    }

    /// The session of a sandbox, which is started if it was stopped.
    pub(crate) async fn session(&self, name: &str) -> Result<bastide::Session, Failure> {
        let sandbox = self.sandbox(name)?;
        let client = self.client()?;
        if sandbox.running {
            return Ok(client.attach(&sandbox.session).await?);
        }
        let session = client.resume(&sandbox.session).await?;
        self.change_sandbox(name, |sandbox| sandbox.running = true)?;
        Ok(session)
    }

    /// The folder that stands for a place of the microVM's own disk.
    pub(crate) fn disk(&self, name: &str, place: &str) -> PathBuf {
        self.path("disks").join(name).join(place)
    }
}

/// Says something on standard output.
pub(crate) fn say(text: impl AsRef<str>) -> Outcome {
    let mut stdout = io::stdout();
    stdout.write_all(text.as_ref().as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    Ok(0)
}

/// The last part of a path.
pub(crate) fn last_part(path: &str) -> String {
    Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
