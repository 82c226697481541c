//! What any archive may cost, whatever limits its reader sets. Each bound is far beyond what honest
//! archives need, and what a few hostile bytes can ask for stays small.
//!
//! | bound | why so much |
//! |---|---|
//! | [`MAX_MEMBERS`] | four times a workspace of a million files; each takes about 300 bytes of memory |
//! | [`MAX_DEPTH`] | as deep as a workspace can be that is saved |
//! | [`MAX_HEADER`] | the name of the deepest entry, at 64 bytes a name |
//! | [`MAX_RETAINED`] | what has to be remembered of all members together: link targets, attributes |
//! | [`MAX_RATIO`] beyond [`FREE_EXPANSION`] | deflate cannot shrink anything further (1032 to 1) |
//! | [`FREE_TIME`], and [`TIME_FOR_EACH_MIB`] of it | a machine so slow that it reads a megabyte in a second |
//! | [`MAX_IMPLIED`], and [`IMPLIED_BY_EACH`] | folders no member names: a name of two bytes makes one |
//! | [`MAX_PARTS`] | of one sparse file |
//! | [`MAX_EXTENSIONS`], [`MAX_GLOBALS`], [`MAX_GLOBAL_HEADERS`] | headers before one member, and for all members |

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use super::refusal::{over_bound, unreadable_tar};
use bastide_model::{Error, Result};

/// The most members of an archive.
pub const MAX_MEMBERS: u64 = 4_000_000;

/// The most names in a path, the target of a link included.
pub const MAX_DEPTH: usize = 1 << 14;

/// The longest extended header that is read into memory, and so the longest path.
pub const MAX_HEADER: u64 = 1 << 20;

/// The most bytes that are remembered of all members, besides their names.
pub const MAX_RETAINED: u64 = 1 << 30;

/// How many bytes an archive may unpack to, however small it is.
pub const FREE_EXPANSION: u64 = 1 << 30;

/// To how many times its own size an archive may unpack beyond that. Holes of sparse files count.
pub const MAX_RATIO: u64 = 1100;

/// How long the reading of an archive may take, however small it is. What is done with it meanwhile counts.
pub const FREE_TIME: Duration = Duration::from_secs(60 * 60);

/// How much longer it may take for each mebibyte of the archive.
pub const TIME_FOR_EACH_MIB: Duration = Duration::from_secs(1);

/// How many folders may be meant without being members, and how many more for each member.
pub const MAX_IMPLIED: usize = 1 << 16;

/// See [`MAX_IMPLIED`].
pub const IMPLIED_BY_EACH: usize = 4;

/// The most pieces of one sparse file.
pub const MAX_PARTS: usize = 1 << 16;

/// The most extended headers in front of one member.
pub const MAX_EXTENSIONS: usize = 16;

/// The most that headers for all members together may hold.
pub const MAX_GLOBALS: usize = 64 << 10;

/// The most headers for all members.
pub const MAX_GLOBAL_HEADERS: usize = 1 << 10;

/// How many bytes an archive of so many may unpack to.
#[must_use]
pub fn expansion(archive: u64) -> u64 {
    FREE_EXPANSION.saturating_add(archive.saturating_mul(MAX_RATIO))
}

/// Whether so many places are too many for an archive of so many members: some are folders that no
/// member names.
#[must_use]
pub fn implies_too_much(places: usize, members: usize) -> bool {
    let implied = places.saturating_sub(members);
    implied > MAX_IMPLIED.saturating_add(members.saturating_mul(IMPLIED_BY_EACH))
}

/// An archive that unpacks to more than it may, as a reader says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpansionError {
    pub(crate) limit: u64,
    pub(crate) actual: u64,
}

/// What to do about an archive that unpacks to more than it may.
const UNPACK_IT: &str = "unpack it with another program first, or pack it anew without compression and without \
                         sparse files";

impl fmt::Display for ExpansionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, actual } = self;
        write!(f, "it unpacks to {actual} bytes or more, and may to {limit}: {UNPACK_IT}")
    }
}

impl std::error::Error for ExpansionError {}

impl ExpansionError {
    pub(crate) fn error(self, member: &[u8]) -> Error {
        let Self { limit, actual } = self;
        over_bound("archive expands too far", limit, actual, member).with_hint(UNPACK_IT)
    }
}

/// The time that an archive has been read for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch {
    began: Instant,
    /// What time it is. Only a trial has another one than the system's.
    pub(crate) now: fn() -> Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { began: Instant::now(), now: Instant::now }
    }

    /// Fails once an archive of so many bytes has taken longer than it may.
    pub(crate) fn check(&self, archive: u64) -> Result<(), Slow> {
        let mebibytes = u32::try_from(archive >> 20).unwrap_or(u32::MAX);
        let limit = FREE_TIME.saturating_add(TIME_FOR_EACH_MIB.saturating_mul(mebibytes));
        let actual = (self.now)().saturating_duration_since(self.began);
        if actual > limit { Err(Slow { limit, actual }) } else { Ok(()) }
    }
}

/// An archive that takes longer to read than it may, as a reader says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slow {
    limit: Duration,
    actual: Duration,
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, actual) = (self.limit.as_secs(), self.actual.as_secs());
        write!(f, "it took {actual} seconds or more to read, and may {limit}: {UNPACK_FIRST}")
    }
}

impl std::error::Error for Slow {}

/// What to do about an archive that takes too long.
const UNPACK_FIRST: &str = "unpack it with another program first";

impl Slow {
    pub(crate) fn error(self, member: &[u8]) -> Error {
        let (limit, actual) = (self.limit.as_secs(), self.actual.as_secs());
        over_bound("archive takes too many seconds to read", limit, actual, member)
            .with_hint(UNPACK_FIRST)
    }
}

impl From<Slow> for io::Error {
    fn from(slow: Slow) -> Self {
        Self::other(slow)
    }
}

/// What a failed read of a tar says: that it cannot be read, or that it costs too much.
pub(crate) fn tar_read_failure(error: io::Error) -> Error {
    let inner = error.get_ref();
    let expanded = inner.and_then(|inner| inner.downcast_ref::<ExpansionError>());
    let slow = inner.and_then(|inner| inner.downcast_ref::<Slow>());
    match (expanded, slow) {
        (Some(expanded), _) => expanded.error(b"<tar>"),
        (None, Some(slow)) => slow.error(b"<tar>"),
        (None, None) => unreadable_tar(&error),
    }
}

/// What the members of an archive have cost so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    members: u64,
    retained: u64,
}

impl Usage {
    /// Counts a member: its path, where it leads if it is a link, and what else is remembered of it.
    pub(crate) fn add(&mut self, path: &[u8], link: &[u8], other: usize) -> Result<()> {
        self.members += 1;
        if self.members > MAX_MEMBERS {
            return Err(over_bound(
                "archive has too many members",
                MAX_MEMBERS,
                self.members,
                path,
            )
            .with_hint("split the archive"));
        }
        for text in [path, link] {
            let depth = text.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
            if depth > MAX_DEPTH {
                let (limit, depth) = (to_u64(MAX_DEPTH), to_u64(depth));
                return Err(over_bound("archive path is too deep", limit, depth, start(path))
                    .with_hint("pack it from a folder further down"));
            }
        }
        self.retained = self.retained.saturating_add(to_u64(link.len() + other));
        if self.retained > MAX_RETAINED {
            let reason = "archive members have too many links and attributes";
            return Err(over_bound(reason, MAX_RETAINED, self.retained, start(path))
                .with_hint("split the archive, or pack it without extended attributes"));
        }
        Ok(())
    }
}

/// The front of a path, which is enough to find it by.
fn start(path: &[u8]) -> &[u8] {
    path.get(..256).unwrap_or(path)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
