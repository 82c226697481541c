//! Tar and zip archives: which members may be unpacked, and how.
//!
//! Nothing here touches a file system. A reader lists members, rules decide about each of them and
//! about the archive as a whole, and a [`plan`] turns an accepted archive into a stream of steps
//! for whoever holds the folder. What may be overwritten, with which mode, and what a refused
//! archive leaves behind is decided by the plan; the executor only reports what it met.

pub mod bounds;
mod compression;
mod entry_path;
mod inventory;
mod limits;
pub mod plan;
mod refusal;
pub mod tar;
pub mod zip;

pub use entry_path::EntryPath;
pub use limits::{ArchiveLimits, copy_input};
pub use plan::{
    Action, ArchiveScheme, Existing, Extraction, Obstacle, StepName, TarRestore, UnpackStep,
    check_tar_for_extraction,
};
