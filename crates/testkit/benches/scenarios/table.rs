//! For people.

use std::fmt::Write;

use crate::measured::{Measured, PromiseResult};
use crate::statistics::percentile;

/// Milliseconds, and how many times as long as each peer we take.
pub(crate) fn text(measured: &Measured) -> String {
    let title = measured.scenario.title;
    let mut text =
        format!("{title:<32} {:<12} {:>12} {:>12} {:>5}  ours is\n", "", "median", "p95", "n");
    if measured.subjects.is_empty() {
        text.push_str("  not measured\n");
    }
    for (subject, all) in &measured.subjects {
        let ratio = match measured.ratio(*subject) {
            Some(ratio) if *subject != measured.scenario.ours => {
                format!("{:.3} × ({:.3} – {:.3})", ratio.of_medians, ratio.low, ratio.high)
            }
            _ => String::new(),
        };
        let (median, p95) = (percentile(all, 50), percentile(all, 95));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<32} {:<12} {median:>9.3} ms {p95:>9.3} ms {:>5}  {ratio}",
            "",
            subject.name(),
            all.len()
        );
    }
    for promise in measured.scenario.promises {
        let (mark, what) = match measured.kept(*promise) {
            PromiseResult::Yes => ("✓", "holds"),
            PromiseResult::No => ("✗", "does not hold"),
            PromiseResult::Unknown => ("?", "was not measured"),
        };
        let _ = writeln!(text, "  {mark} {} {what}", promise.text());
    }
    text
}
