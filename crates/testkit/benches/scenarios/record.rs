//! For programs, and for comparing with an earlier run.

use std::io;

use serde_json::{Value, json};

use crate::measured::Measured;
use crate::statistics::percentile;

/// By how much a ratio may grow before it is called worse.
const TOLERANCE: f64 = 1.15;

/// One scenario as one line.
pub(crate) fn line(measured: &Measured, commit: &str) -> String {
    let subjects: Vec<_> = measured
        .subjects
        .iter()
        .map(|(subject, all)| {
            let ratio = measured.ratio(*subject);
            json!({
                "subject": subject.name(),
                "median_ms": percentile(all, 50),
                "p95_ms": percentile(all, 95),
                "n": all.len(),
                "ours_is": ratio.map(|ratio| ratio.of_medians),
                "ours_is_between": ratio.map(|ratio| [ratio.low, ratio.high]),
            })
        })
        .collect();
    json!({
        "scenario": measured.scenario.title,
        "ours": measured.scenario.ours.name(),
        "subjects": subjects,
        "commit": commit,
        "machine": machine(),
    })
    .to_string()
}

/// Every scenario, a line each.
pub(crate) fn lines(all: &[Measured], commit: &str) -> String {
    all.iter().map(|measured| line(measured, commit) + "\n").collect()
}

/// What became worse since an earlier run. Machines differ and have bad days, ratios less so.
pub(crate) fn regressions(all: &[Measured], earlier: &str) -> io::Result<Vec<String>> {
    let earlier: Vec<Value> = earlier
        .lines()
        .map(|line| serde_json::from_str(line).map_err(io::Error::other))
        .collect::<io::Result<_>>()?;
    let mut worse = Vec::new();
    for measured in all {
        let title = measured.scenario.title;
        let Some(then) = earlier.iter().find(|line| line["scenario"] == title) else { continue };
        for peer in measured.scenario.peers {
            let subjects = then["subjects"].as_array().into_iter().flatten();
            let was = subjects
                .filter(|subject| subject["subject"] == peer.name())
                .find_map(|subject| subject["ours_is"].as_f64());
            let (Some(was), Some(is)) = (was, measured.ratio(*peer)) else { continue };
            if is.low > was * TOLERANCE {
                worse.push(format!(
                    "worse: {title}: {:.3} × {} instead of {was:.3} ×",
                    is.of_medians,
                    peer.name()
                ));
            }
        }
    }
    Ok(worse)
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    json!({ "kernel": read("/proc/sys/kernel/osrelease"), "cores": cores, "arch": std::env::consts::ARCH })
}
