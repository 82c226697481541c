//! Many sessions that live at once: what they cost, and how long the slowest operations take among them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, Session};
use bastide_local::LocalBackend;
use serde_json::{Value, json};

use crate::idle::{families, proportional_memory};
use crate::peers::Peer;
use crate::statistics::percentile;
use crate::verdict;

pub(crate) const TITLE: &str = "local: many sessions at once";

/// How many commands are run for one set of percentiles.
const EXECS: usize = 300;

/// How many sessions are made at the same moment.
const BURST: usize = 100;

/// What was measured; times are in milliseconds.
#[derive(Debug)]
pub(crate) struct Density {
    sessions: usize,
    /// The proportional set size of all processes of a session, in MiB.
    memory: f64,
    processes: f64,
    /// A command with one session there, and with half of all.
    alone: Percentiles,
    among: Percentiles,
    /// Each of many creations at the same moment.
    burst: Percentiles,
    /// As many runs of sandlock at the same moment, if it is here.
    peer_burst: Option<Percentiles>,
    /// A listing of all of them.
    listing: f64,
}

#[derive(Debug, Clone, Copy)]
struct Percentiles {
    median: f64,
    p95: f64,
    p99: f64,
}

impl Percentiles {
    fn of(times: &[f64]) -> Self {
        let at = |percent| percentile(times, percent);
        Self { median: at(50), p95: at(95), p99: at(99) }
    }

    fn text(self) -> String {
        format!("{:.2} / {:.2} / {:.2} ms", self.median, self.p95, self.p99)
    }

    fn json(self) -> Value {
        json!({ "median_ms": self.median, "p95_ms": self.p95, "p99_ms": self.p99 })
    }
}

fn failed(error: bastide::Error) -> io::Error {
    io::Error::other(error.to_string())
}

async fn create(client: &Client) -> io::Result<Session> {
    let options = CreateOptions::default().detached();
    client.create(&Manifest::default(), options).await.map_err(failed)
}

async fn execs(session: &Session, count: usize) -> io::Result<Percentiles> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        session.exec(Command::new(["true"])).await.map_err(failed)?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Percentiles::of(&times))
}

impl Density {
    pub(crate) async fn measure(
        folder: &Path,
        sessions: usize,
        peer: Option<&Peer>,
    ) -> io::Result<Self> {
        let backend = LocalBackend::new(folder.join("density")).map_err(failed)?.for_many();
        let client = Client::new(Arc::new(backend));
        let count = EXECS.min(sessions.max(20));
        let first = create(&client).await?;
        let alone = execs(&first, count).await?;
        let mut all = vec![first];
        while all.len() < sessions / 2 {
            all.push(create(&client).await?);
        }
        let among = execs(&all[0], count).await?;
        // Many at the same moment, each timed by itself.
        let many = BURST.min(sessions.saturating_sub(all.len()).max(1));
        let made = (0..many).map(|_| async {
            let begun = Instant::now();
            create(&client).await.map(|session| (session, begun.elapsed().as_secs_f64() * 1e3))
        });
        let mut times = Vec::new();
        for made in futures::future::join_all(made).await {
            let (session, took) = made?;
            times.push(took);
            all.push(session);
        }
        let peer_burst = peer.map(|peer| peer.burst(many)).transpose()?;
        while all.len() < sessions {
            all.push(create(&client).await?);
        }
        client.flush().await;
        let begun = Instant::now();
        let listed = client.list().await.map_err(failed)?;
        let listing = begun.elapsed().as_secs_f64() * 1e3;
        let guests: Vec<u32> = listed.iter().filter_map(|info| info.guest_pid).collect();
        let processes = families(&guests)?;
        let memory: f64 = processes.iter().map(|pid| proportional_memory(*pid)).sum();
        let each = |value: f64| value / all.len() as f64;
        let density = Self {
            sessions: all.len(),
            memory: each(memory),
            processes: each(processes.len() as f64),
            alone,
            among,
            burst: Percentiles::of(&times),
            peer_burst: peer_burst.as_deref().map(Percentiles::of),
            listing,
        };
        for session in all {
            session.delete().await.map_err(failed)?;
        }
        Ok(density)
    }

    /// What is promised, and whether it holds.
    pub(crate) fn promises(&self) -> Vec<(&'static str, bool)> {
        let beside = self.peer_burst.map(|peer| {
            ("100 creations at once: p99 ≤ 1 × sandlock's", self.burst.p99 <= peer.p99)
        });
        let own = [
            ("≤ 1.5 MiB a session", self.memory <= 1.5),
            ("≤ 6 processes a session", self.processes <= 6.0),
            ("exec p99 ≤ 2 × its median, alone", self.alone.p99 <= 2.0 * self.alone.median),
            ("exec p99 ≤ 5 × its median, among many", self.among.p99 <= 5.0 * self.among.median),
            ("100 creations at once: p99 ≤ 500 ms", self.burst.p99 <= 500.0),
            ("all listed in ≤ 100 ms", self.listing <= 100.0),
        ];
        own.into_iter().chain(beside).collect()
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{TITLE} ({}): {:.2} MiB in {:.1} processes each; exec alone {}, among many {}; creations at once {}, \
             of sandlock {}; listed in {:.1} ms (median / p95 / p99)\n",
            self.sessions,
            self.memory,
            self.processes,
            self.alone.text(),
            self.among.text(),
            self.burst.text(),
            self.peer_burst.map_or_else(|| "not here".to_owned(), Percentiles::text),
            self.listing
        );
        text.push_str(&verdict::lines(&self.promises()));
        text
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": TITLE,
            "sessions": self.sessions,
            "memory_mib": self.memory,
            "processes": self.processes,
            "exec_alone": self.alone.json(),
            "exec_among": self.among.json(),
            "creations_at_once": self.burst.json(),
            "creations_at_once_of_sandlock": self.peer_burst.map(Percentiles::json),
            "listing_ms": self.listing,
        })
    }
}
