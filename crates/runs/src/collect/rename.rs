//! Telling a file that was renamed from one that went and another that came.

use std::collections::HashMap;

use super::content::Content;
use super::oid::Oid;
use super::text::{is_text, lines};

/// The most pairs that are compared by content, and the most of one file for that. Beyond, only what is
/// the same byte for byte is a rename.
const MAX_PAIRS: usize = 4_000;
const MAX_SIZE: usize = 1 << 20;

/// How much of a file must be the same, in percent.
const ENOUGH: u64 = 50;

/// A file that went or came.
#[derive(Debug)]
pub(super) struct RenameCandidate {
    pub(super) oid: Oid,
    pub(super) is_link: bool,
    pub(super) size: u64,
}

/// Which of those that came is which of those that went: (went, came, similarity in percent).
pub(super) fn pairs(
    went: &[RenameCandidate],
    came: &[RenameCandidate],
    read_old: &mut dyn FnMut(usize) -> Option<Content>,
    read_new: &mut dyn FnMut(usize) -> Option<Content>,
) -> Vec<(usize, usize, u8)> {
    let mut found = exact(went, came);
    let free = |taken: Vec<usize>, sides: &[RenameCandidate]| -> Vec<usize> {
        let mut is_taken = vec![false; sides.len()];
        for at in taken {
            if let Some(slot) = is_taken.get_mut(at) {
                *slot = true;
            }
        }
        let fits =
            |side: &RenameCandidate| !side.is_link && side.size > 0 && side.size <= MAX_SIZE as u64;
        let all = sides.iter().enumerate().zip(is_taken);
        all.filter(|((_, side), taken)| !taken && fits(side)).map(|((at, _), _)| at).collect()
    };
    let went_free = free(found.iter().map(|pair| pair.0).collect(), went);
    let came_free = free(found.iter().map(|pair| pair.1).collect(), came);
    if went_free.is_empty() || went_free.len().saturating_mul(came_free.len()) > MAX_PAIRS {
        return found;
    }
    let profiles = |all: &[usize], read: &mut dyn FnMut(usize) -> Option<Content>| {
        let profile = |at: &usize| Some((*at, LineCounts::of(&read(*at)?)?));
        all.iter().filter_map(profile).collect::<Vec<_>>()
    };
    let (old, new) = (profiles(&went_free, read_old), profiles(&came_free, read_new));
    let mut scored = Vec::new();
    for (from, before) in &old {
        for (to, after) in &new {
            let score = before.similarity(after);
            if score >= ENOUGH {
                scored.push((score, *from, *to));
            }
        }
    }
    scored.sort_by_key(|(score, from, to)| (std::cmp::Reverse(*score), *from, *to));
    for (score, from, to) in scored {
        if found.iter().all(|pair| pair.0 != from && pair.1 != to) {
            // Only what is the same byte for byte is the same in all.
            found.push((from, to, u8::try_from(score.min(99)).unwrap_or(99)));
        }
    }
    found
}

fn exact(went: &[RenameCandidate], came: &[RenameCandidate]) -> Vec<(usize, usize, u8)> {
    let mut by_name: HashMap<(Oid, bool), Vec<usize>> = HashMap::new();
    for (at, side) in went.iter().enumerate().rev().filter(|(_, side)| side.size > 0) {
        by_name.entry((side.oid, side.is_link)).or_default().push(at);
    }
    let pair = |(at, side): (usize, &RenameCandidate)| {
        let from = by_name.get_mut(&(side.oid, side.is_link))?.pop()?;
        Some((from, at, 100))
    };
    came.iter().enumerate().filter_map(pair).collect()
}

/// The lines of a text with how often they are there.
struct LineCounts {
    lines: HashMap<Vec<u8>, u64>,
    size: u64,
}

impl LineCounts {
    fn of(content: &Content) -> Option<Self> {
        let content = content.whole().filter(|content| is_text(content))?;
        let mut counted = HashMap::new();
        for line in lines(content) {
            *counted.entry(line.to_vec()).or_insert(0) += 1;
        }
        Some(Self { lines: counted, size: content.len() as u64 })
    }

    /// How much of the larger one the other one has, in percent.
    fn similarity(&self, other: &Self) -> u64 {
        let shared: u64 = self
            .lines
            .iter()
            .map(|(line, count)| {
                let both = other.lines.get(line).map_or(0, |theirs| *theirs.min(count));
                both * line.len() as u64
            })
            .sum();
        shared * 100 / self.size.max(other.size).max(1)
    }
}
