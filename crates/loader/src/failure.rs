//! What can be wrong, as a sentence and an exit code.

use alloc::string::String;
use core::fmt;

use rustix::io::Errno;

/// Why the guest is not started. Whoever reads the log of the pod sees the sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It was started with other words than it knows.
    Usage,
    /// A part of the guest cannot be read.
    Part {
        /// Its file.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// The parts are no guest.
    Damaged,
    /// The parts are another guest than the one that was asked for.
    Hash {
        /// The hash of what they are.
        found: String,
    },
    /// The guest cannot be written.
    Write {
        /// Its file.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// Nothing may be executed where the guest was written.
    NoExec {
        /// That folder.
        folder: String,
    },
    /// The guest cannot be executed.
    Execute {
        /// Its file.
        path: String,
        /// Why.
        errno: Errno,
    },
}

impl Failure {
    /// What the program ends with; none of these is a code of the guest.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Self::Usage => 64,
            Self::Damaged | Self::Hash { .. } => 65,
            Self::Part { .. } => 66,
            Self::Write { .. } => 73,
            Self::NoExec { .. } | Self::Execute { .. } => 126,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage => f.write_str("usage: /PATH/loader BLAKE3 ARGUMENTS"),
            Self::Part { path, errno: Errno::NOENT } => {
                write!(f, "a part of the guest is missing: {path}")
            }
            Self::Part { path, errno } => {
                write!(f, "cannot read {path}: error {}", errno.raw_os_error())
            }
            Self::Damaged => f.write_str("the parts of the guest are damaged"),
            Self::Hash { found } => {
                write!(f, "the parts are another guest than was asked for: {found}")
            }
            Self::Write { path, errno: Errno::NOSPC | Errno::DQUOT } => {
                write!(f, "no room for the guest: {path}")
            }
            Self::Write { path, errno } => {
                write!(f, "cannot write {path}: error {}", errno.raw_os_error())
            }
            Self::NoExec { folder } => {
                write!(f, "{folder} is mounted noexec: the guest cannot be started there")
            }
            Self::Execute { path, errno } => {
                write!(f, "cannot execute {path}: error {}", errno.raw_os_error())
            }
        }
    }
}
