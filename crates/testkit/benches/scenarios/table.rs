//! Medians, and how they compare.

use std::time::Duration;

use serde_json::json;

/// One scenario, with what everybody took.
#[derive(Debug)]
pub(crate) struct Row {
    scenario: &'static str,
    peers: Vec<(&'static str, Vec<Duration>)>,
}

impl Row {
    pub(crate) fn new(scenario: &'static str) -> Self {
        Self { scenario, peers: Vec::new() }
    }

    /// Adds a measurement; who is added first is who the others are compared with.
    pub(crate) fn add(&mut self, peer: &'static str, took: Duration) {
        match self.peers.iter_mut().find(|(name, _)| *name == peer) {
            Some((_, all)) => all.push(took),
            None => self.peers.push((peer, vec![took])),
        }
    }

    /// For people: milliseconds, and how many times as long as each peer we take.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{:<24} {:<12} {:>9} {:>9} {:>5} {:>9}\n",
            self.scenario, "", "median", "p95", "n", "ours is"
        );
        for (peer, all) in &self.peers {
            let (median, p95) = (percentile(all, 50), percentile(all, 95));
            let ratio = match self.ours() {
                Some(ours) if *peer != "bastide" => format!("{:.2} ×", ours / median),
                _ => String::new(),
            };
            let line = format!(
                "{:<24} {peer:<12} {median:>6.3} ms {p95:>6.3} ms {:>5} {ratio:>9}\n",
                "",
                all.len()
            );
            text.push_str(&line);
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let peers: Vec<_> = self
            .peers
            .iter()
            .map(|(peer, all)| {
                let median = percentile(all, 50);
                json!({
                    "peer": peer,
                    "median_ms": median,
                    "p95_ms": percentile(all, 95),
                    "n": all.len(),
                    "ours_is": self.ours().map(|ours| ours / median),
                })
            })
            .collect();
        json!({ "scenario": self.scenario, "peers": peers }).to_string()
    }

    fn ours(&self) -> Option<f64> {
        self.peers.iter().find(|(peer, _)| *peer == "bastide").map(|(_, all)| percentile(all, 50))
    }
}

/// A percentile, in milliseconds.
fn percentile(all: &[Duration], percent: usize) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort();
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |took| took.as_secs_f64() * 1000.0)
}
