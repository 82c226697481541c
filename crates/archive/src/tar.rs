//! Tar archives: reading, judging and rewriting them.
//!
//! The reader is the project's own. It sees the members the reference sees (one invalid header at
//! the front is an error, a later one ends the archive; global extended headers and all four kinds
//! of sparse files count) and, unlike general ones, it bounds what a header may ask for.

mod content;
mod details;
mod header;
mod links;
mod member;
mod pax;
mod reader;
mod rules;
mod strip;
mod writer;

pub use content::TarContent;
pub use details::TarDetails;
pub use links::{LinkTree, rebase_link, target_stays_inside};
pub use member::{Ownership, TarKind, TarMember, restored_mode};
pub use reader::TarReader;
pub use rules::{LinkPolicy, TarRules, TarVerdict, check_workspace_tar, is_skipped};
pub use strip::strip_prefix;
pub use writer::TarWriter;

pub(crate) use rules::{ExtractionCheck, WorkspaceCheck};

/// Headers and contents fill whole blocks.
const BLOCK: usize = 512;

/// The bytes that contents of `size` bytes fill.
fn padded(size: u64) -> Option<u64> {
    size.checked_next_multiple_of(512)
}
