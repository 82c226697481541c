#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
    Action, ArchiveScheme, Extraction, Obstacle, OnConflict, StepName, TarRestore, UnpackStep,
    check_tar_for_extraction,
};
