//! Inputs nobody would write, and what must hold for them all the same.
//!
//! A [`Target`] takes any bytes. It must not panic, must not take more memory or time than its
//! input is worth, and what it accepts must survive being written and read again. The same targets
//! run under [`run`], which mutates recorded inputs at random, and under a coverage-guided fuzzer.

mod archive;
mod egress;
mod frames;
mod manifest;
mod mounts;
mod mutate;
mod patch;
mod paths;
mod seeds;
mod state;
mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use mutate::Mutator;

/// What one input showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was refused, as most are.
    Refused,
    /// It was accepted, and everything held.
    Accepted,
    /// Something did not hold.
    Broken(String),
}

/// Something that reads what strangers send.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Reads one input and checks what must hold.
    pub check: fn(&[u8]) -> Verdict,
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words its inputs are made of.
    words: &'static [&'static str],
}

/// Every target.
pub const TARGETS: &[Target] = &[
    egress::POLICY,
    egress::PATH,
    egress::DNS,
    egress::HELLO,
    egress::HEAD,
    frames::TARGET,
    manifest::JSON,
    manifest::DOCUMENT,
    mounts::MANIFEST,
    mounts::TEXTS,
    patch::TARGET,
    archive::TAR_BYTES,
    archive::TAR_MEMBERS,
    archive::ZIP_BYTES,
    paths::TARGET,
    state::TARGET,
    state::SESSION,
    store::PACK_INDEX,
    store::LIST,
    store::RECORD,
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Inputs tried.
    pub runs: u64,
    /// Inputs that were accepted.
    pub accepted: u64,
}

/// Tries mutated inputs until `deadline`, all of them decided by `seed`.
///
/// `before` sees every input before it is tried, so that one that takes the whole process down is
/// known afterwards.
///
/// # Errors
/// The first input that broke something, and what.
pub fn run(
    target: &Target,
    seed: u64,
    deadline: Instant,
    mut before: impl FnMut(&[u8]),
) -> Result<Tally, (Vec<u8>, String)> {
    let seeds = (target.seeds)();
    let mut mutator = Mutator::new(seed, target.words);
    let mut tally = Tally::default();
    // Recorded inputs come first, as they are: what breaks on them needs no luck to be found.
    let mut recorded = seeds.iter();
    while Instant::now() < deadline {
        let input = recorded.next().cloned().unwrap_or_else(|| mutator.next(&seeds));
        before(&input);
        tally.runs += 1;
        match try_once(target, &input) {
            Verdict::Refused => {}
            Verdict::Accepted => tally.accepted += 1,
            Verdict::Broken(what) => return Err((input, what)),
        }
    }
    Ok(tally)
}

/// Tries one input; a panic is something that does not hold.
#[must_use]
pub fn try_once(target: &Target, input: &[u8]) -> Verdict {
    catch_unwind(AssertUnwindSafe(|| (target.check)(input))).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Verdict::Broken(format!("it panicked: {}", message.unwrap_or("no message")))
    })
}

/// Accepted, unless the two differ.
fn equal<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, after: &T) -> Verdict {
    match before == after {
        true => Verdict::Accepted,
        false => Verdict::Broken(format!("{what}: {before:?} became {after:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_target_holds_for_a_moment() {
        for target in TARGETS {
            let deadline = Instant::now() + Duration::from_millis(300);
            let tally = run(target, 1, deadline, |_| {});
            let tally = tally.unwrap_or_else(|(input, what)| {
                panic!("{}: {what}\n{}", target.name, input.escape_ascii())
            });
            assert!(tally.runs > 0, "{} was never run", target.name);
        }
    }

    #[test]
    fn the_seeds_of_every_target_are_worth_mutating() {
        for target in TARGETS {
            let seeds = (target.seeds)();
            let accepted =
                seeds.iter().filter(|seed| try_once(target, seed) == Verdict::Accepted).count();
            assert!(accepted > 0, "{} accepts none of its {} seeds", target.name, seeds.len());
        }
    }
}
