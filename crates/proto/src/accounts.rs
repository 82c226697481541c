//! Users and groups that a host wants in a sandbox.

use serde::{Deserialize, Serialize};

/// The most users or groups in one request.
pub const MAX_ACCOUNTS: usize = 1024;

/// Users and groups to make; those that are there already stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounts {
    /// The groups, each with whoever is to be in it.
    pub groups: Vec<(String, Vec<String>)>,
    /// The users. Each has a private group of the same name, no folder of its own and no shell.
    pub users: Vec<String>,
}
