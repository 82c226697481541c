#![doc = include_str!("../README.md")]

mod bridge;
mod client;
mod command;
mod convert;
mod download;
mod errors;
mod file_content;
mod hint;
mod journal;
mod manifest_entries;
mod process;
mod runtime;
mod session;
mod settings;
mod source;
mod store;
mod sys;

use pyo3::prelude::*;

/// The extension module `bastide._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::bridge::{Abort, Mailbox};
    #[pymodule_export]
    use crate::client::NativeClient;
    #[pymodule_export]
    use crate::journal::{checkpoint, diff, lease, merge, redo, restore_path, undo};
    #[pymodule_export]
    use crate::process::NativeProcess;
    #[pymodule_export]
    use crate::runtime::{after_fork_in_child, after_fork_in_parent, before_fork};
    #[pymodule_export]
    use crate::session::NativeSession;
    #[pymodule_export]
    use crate::settings::{error_classes, keyed_hash, set_carrier};
    #[pymodule_export]
    use crate::store::NativeStore;
}
