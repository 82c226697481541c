//! What is promised, and what became of it.

use crate::peers::Peer;

/// One promise; no value where nobody was there to compare with.
#[derive(Debug)]
pub(crate) struct Promise {
    text: String,
    value: Option<f64>,
    most: f64,
}

impl Promise {
    pub(crate) fn times(most: f64, what: &str, value: Option<f64>) -> Self {
        Self { text: format!("≤ {most} × {what}"), value, most }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of KiB is exact")]
    pub(crate) fn most(most: u64, what: &str, value: u64) -> Self {
        Self { text: format!("≤ {most} {what}"), value: Some(value as f64), most: most as f64 }
    }

    fn holds(&self) -> Option<bool> {
        self.value.map(|value| value <= self.most)
    }

    fn line(&self) -> String {
        match (self.value, self.holds()) {
            (Some(value), Some(true)) => format!("  ✓ {} holds ({value:.2})", self.text),
            (Some(value), _) => format!("  ✗ {} does not hold ({value:.2})", self.text),
            (None, _) => format!("  ? {}: nobody to compare with", self.text),
        }
    }
}

/// All promises so far.
#[derive(Debug)]
pub(crate) struct Verdicts {
    json: bool,
    held: usize,
    broken: usize,
    unmeasured: usize,
}

impl Verdicts {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, held: 0, broken: 0, unmeasured: 0 }
    }

    /// Shows a row, and counts what is promised of it.
    pub(crate) fn add(
        &mut self,
        title: &str,
        ours: f64,
        theirs: &[(Peer, f64)],
        promises: Vec<Promise>,
    ) {
        for promise in &promises {
            match promise.holds() {
                Some(true) => self.held += 1,
                Some(false) => self.broken += 1,
                None => self.unmeasured += 1,
            }
        }
        if self.json {
            let peers: serde_json::Map<_, _> = theirs
                .iter()
                .map(|(peer, time)| (peer.name().to_owned(), (*time).into()))
                .collect();
            let values: serde_json::Map<_, _> = promises
                .iter()
                .map(|promise| (promise.text.clone(), promise.value.into()))
                .collect();
            let line = serde_json::json!({
                "scenario": title, "seconds": ours, "peers": peers, "promises": values,
            });
            println!("{line}");
            return;
        }
        let peers = theirs.iter().map(|(peer, time)| format!(", {} {time:.3} s", peer.name()));
        println!("{title}: {ours:.3} s{}", peers.collect::<String>());
        promises.iter().for_each(|promise| println!("{}", promise.line()));
    }

    pub(crate) fn all_held(&self) -> bool {
        self.broken == 0 && self.unmeasured == 0
    }

    pub(crate) fn text(&self) -> String {
        let Self { held, broken, unmeasured, .. } = self;
        format!("storage: held={held} broken={broken} unmeasured={unmeasured}")
    }
}
