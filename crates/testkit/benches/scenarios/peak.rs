//! How much memory it takes to save and restore one large file: all of it, in a process that did nothing
//! else before.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bastide::Client;
use bastide::snapshot::store::Store;
use bastide_local::LocalBackend;
use serde_json::{Value, json};

use crate::idle::families;
use crate::ours::{failed, new_session, session_with};
use crate::verdict;
use crate::workload::{Cleared, Workload};

/// What people call it.
pub(crate) const TITLE: &str = "local: memory for a snapshot of 512 MiB";

/// How long the file is.
const WORK: Workload = Workload::Large(512 << 20);

/// The most each may take.
const MOST: f64 = 64.0;

/// What saving and restoring took beyond what was there before, in MiB: this process, and all of the
/// session.
#[derive(Debug)]
pub(crate) struct Peak {
    saving: f64,
    restoring: f64,
}

impl Peak {
    /// Measures in a process of its own.
    pub(crate) fn measure(folder: &Path) -> io::Result<Self> {
        let output = Command::new(std::env::current_exe()?)
            .arg("--peak")
            .arg(folder.join("peak"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
        match (output.status.success(), numbers.next(), numbers.next()) {
            (true, Some(saving), Some(restoring)) => Ok(Self { saving, restoring }),
            _ => Err(io::Error::other(format!("the memory cannot be measured: {text}"))),
        }
    }

    /// What the process of its own does: says both numbers.
    pub(crate) async fn work(folder: &Path) -> io::Result<String> {
        let _cleared = Cleared;
        let backend = LocalBackend::new(folder.join("bastide")).map_err(failed)?;
        let client = Client::new(Arc::new(backend));
        let store = Store::open(folder.join("snapshots")).map_err(failed)?;
        let session = session_with(&client, WORK).await?;
        let watched = Watched::begin(&client, &session).await?;
        session.snapshots(&store).save("saved", None).await.map_err(failed)?;
        let saving = watched.growth()?;
        session.delete().await.map_err(failed)?;
        let session = new_session(&client).await?;
        let watched = Watched::begin(&client, &session).await?;
        session.snapshots(&store).restore("saved", None).await.map_err(failed)?;
        let restoring = watched.growth()?;
        session.delete().await.map_err(failed)?;
        Ok(format!("{saving} {restoring}"))
    }

    /// What is promised, and whether it holds.
    pub(crate) fn promises(&self) -> [(&'static str, bool); 2] {
        [("≤ 64 MiB to save", self.saving <= MOST), ("≤ 64 MiB to restore", self.restoring <= MOST)]
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{TITLE}: {:.1} MiB to save, {:.1} MiB to restore\n",
            self.saving, self.restoring
        );
        text.push_str(&verdict::lines(&self.promises()));
        text
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": TITLE,
            "saving_mib": self.saving,
            "restoring_mib": self.restoring,
        })
    }
}

/// Processes whose memory is watched, each with what it held at first.
struct Watched(Vec<(u32, f64)>);

impl Watched {
    async fn begin(client: &Client, session: &bastide::Session) -> io::Result<Self> {
        let info = client.inspect(session.id()).await.map_err(failed)?;
        let guest = info.guest_pid.ok_or_else(|| io::Error::other("the session has no guest"))?;
        let mut all = families(&[guest])?;
        all.push(std::process::id());
        // From here on the kernel keeps the highest each comes to.
        let begin = |pid: u32| -> io::Result<(u32, f64)> {
            std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
            Ok((pid, held(pid, "VmRSS:")?))
        };
        Ok(Self(all.into_iter().map(begin).collect::<io::Result<_>>()?))
    }

    /// How much more all of them came to hold, each at its worst.
    fn growth(&self) -> io::Result<f64> {
        let each = self.0.iter().map(|(pid, before)| Ok(held(*pid, "VmHWM:")? - before));
        each.sum()
    }
}

/// A number of a process, in MiB.
fn held(pid: u32, name: &str) -> io::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| io::Error::other(format!("{pid} has no {name}")))
}
