//! What sessions cost in which nothing happens.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions};
use bastide_local::LocalBackend;
use serde_json::{Value, json};

use crate::verdict;

/// The most one idle session may take, with all its processes.
const MOST_MEMORY: f64 = 8.0;

/// The most descriptors it may take here.
const MOST_DESCRIPTORS: f64 = 12.0;

/// How long they are watched for work they do not have.
const WATCHED: Duration = Duration::from_secs(2);

/// The cost of one idle session, on average.
#[derive(Debug)]
pub(crate) struct Idle {
    sessions: usize,
    /// The proportional set size of all its processes, in MiB.
    memory: f64,
    processes: f64,
    /// In this process.
    descriptors: f64,
    threads: f64,
    /// Milliseconds of processor time in each second.
    busy: f64,
}

impl Idle {
    pub(crate) async fn measure(folder: &Path, sessions: usize) -> io::Result<Self> {
        let failed = |error: bastide::Error| io::Error::other(error.to_string());
        let backend = LocalBackend::new(folder.join("idle")).map_err(failed)?;
        let client = Client::new(Arc::new(backend));
        let (descriptors, threads) = (count("/proc/self/fd")?, count("/proc/self/task")?);
        let mut all = Vec::new();
        for _ in 0..sessions {
            let created = client.create(&Manifest::default(), CreateOptions::default()).await;
            all.push(created.map_err(failed)?);
        }
        let mut guests = Vec::new();
        for session in &all {
            let info = client.inspect(session.id()).await.map_err(failed)?;
            if let Some(pid) = info.guest_pid {
                guests.push(pid);
            }
        }
        let processes = families(&guests)?;
        let each = |value: f64| value / sessions as f64;
        let memory = processes.iter().map(|pid| proportional_memory(*pid)).sum::<f64>();
        let before = processes.iter().map(|pid| ticks(*pid)).sum::<f64>();
        tokio::time::sleep(WATCHED).await;
        let after = processes.iter().map(|pid| ticks(*pid)).sum::<f64>();
        let idle = Self {
            sessions,
            memory: each(memory),
            processes: each(processes.len() as f64),
            descriptors: each((count("/proc/self/fd")? - descriptors) as f64),
            threads: each(count("/proc/self/task")?.saturating_sub(threads) as f64),
            // A tick is ten milliseconds.
            busy: each((after - before) * 10.0 / WATCHED.as_secs_f64()),
        };
        for session in all {
            session.delete().await.map_err(failed)?;
        }
        Ok(idle)
    }

    /// What is promised, and whether it holds.
    pub(crate) fn promises(&self) -> [(&'static str, bool); 3] {
        [
            ("≤ 8 MiB resident", self.memory <= MOST_MEMORY),
            ("≤ 12 descriptors on the host", self.descriptors <= MOST_DESCRIPTORS),
            ("no busy loop", self.busy < 1.0),
        ]
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "local: an idle session (of {}): {:.2} MiB in {:.1} processes, {:.1} descriptors and \
             {:.2} threads here, {:.3} ms of work a second\n",
            self.sessions, self.memory, self.processes, self.descriptors, self.threads, self.busy
        );
        text.push_str(&verdict::lines(&self.promises()));
        text
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": "local: an idle session",
            "sessions": self.sessions,
            "memory_mib": self.memory,
            "processes": self.processes,
            "descriptors": self.descriptors,
            "threads": self.threads,
            "busy_ms_per_s": self.busy,
        })
    }
}

fn count(folder: &str) -> io::Result<usize> {
    Ok(fs::read_dir(folder)?.count())
}

/// Every process of the sessions with these guests: from each one's warden down.
pub(crate) fn families(guests: &[u32]) -> io::Result<Vec<u32>> {
    let mut parents = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some(parent) = stat_field(pid, 1) {
            parents.insert(pid, parent);
        }
    }
    let up = |pid: u32| parents.get(&pid).and_then(|parent| u32::try_from(*parent).ok());
    // The guest's parent is the first process inside, and that one's is the warden.
    let wardens: Vec<u32> = guests.iter().filter_map(|guest| up(*guest).and_then(up)).collect();
    let is_of = |pid: &u32| {
        let mut at = Some(*pid);
        while let Some(now) = at {
            if wardens.contains(&now) {
                return true;
            }
            at = up(now).filter(|above| *above > 1);
        }
        false
    };
    Ok(parents.keys().copied().filter(is_of).collect())
}

/// A number of `/proc/PID/stat`, counted from the one behind the name.
fn stat_field(pid: u32, index: usize) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let behind = stat.rsplit_once(')')?.1;
    behind.split_whitespace().nth(index)?.parse().ok()
}

fn ticks(pid: u32) -> f64 {
    let field = |index| stat_field(pid, index).unwrap_or(0) as f64;
    field(11) + field(12)
}

/// In MiB.
pub(crate) fn proportional_memory(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
