//! Medians, and how sure a ratio of two of them is.

use crate::random::Rng;

/// How often the measurements are drawn again.
const DRAWS: usize = 1000;

/// A percentile of measurements.
pub(crate) fn percentile(all: &[f64], percent: usize) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// The 95 % interval of the ratio of two medians: the measurements of a round belong together and are
/// drawn together, so that a noisy moment weighs on both sides.
pub(crate) fn ratio_interval(ours: &[f64], theirs: &[f64]) -> (f64, f64) {
    let rounds = ours.len().min(theirs.len());
    let mut random = Rng::new(0x9e37_79b9_7f4a_7c15);
    let mut ratios: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let drawn: Vec<usize> = (0..rounds).map(|_| random.below(rounds)).collect();
            let of = |all: &[f64]| drawn.iter().filter_map(|at| all.get(*at).copied()).collect();
            let (ours, theirs): (Vec<f64>, Vec<f64>) = (of(ours), of(theirs));
            percentile(&ours, 50) / percentile(&theirs, 50)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    (percentile(&ratios, 2), percentile(&ratios, 97))
}
