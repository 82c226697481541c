//! What verifying an audit log finds.

use crate::backend::SessionId;

/// What is wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditProblem {
    /// A record, or the hash before it, is not what was written.
    Changed {
        /// The record.
        seq: u64,
    },
    /// Records are missing.
    Missing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A record is not in sequence.
    Moved {
        /// The record.
        seq: u64,
    },
    /// There are bytes that are neither a record nor a torn write.
    Damaged {
        /// The last record before it.
        after: u64,
    },
    /// A signature is not valid for the key, or not for this log.
    BadSeal {
        /// The record with the signature.
        seq: u64,
    },
    /// A key was given, and nothing in the log is signed by it.
    Unsigned,
    /// A key was given, and the end of the log is not signed.
    UnsignedEnd {
        /// The first record that is not signed.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// A key was given, and nothing outside the log records how far it was signed.
    NoHead,
    /// The record of how far the log was signed is not signed itself, or by another key.
    BadHead,
}

impl std::fmt::Display for AuditProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Changed { seq } => write!(f, "record {seq} was changed"),
            Self::Missing { from, to } if from == to => write!(f, "record {from} is missing"),
            Self::Missing { from, to } => write!(f, "records {from} to {to} are missing"),
            Self::Moved { seq } => write!(f, "record {seq} is not in its place"),
            Self::Damaged { after } => {
                write!(f, "something that is no record follows record {after}")
            }
            Self::BadSeal { seq } => write!(f, "the signature in record {seq} is not valid"),
            Self::Unsigned => f.write_str("nothing is signed by the key"),
            Self::UnsignedEnd { from, to } if from == to => {
                write!(f, "record {from} at the end is not signed")
            }
            Self::UnsignedEnd { from, to } => {
                write!(f, "records {from} to {to} at the end are not signed")
            }
            Self::NoHead => f.write_str("nothing says how far it was signed: it may be cut back"),
            Self::BadHead => f.write_str("what says how far it was signed is not valid"),
        }
    }
}

impl AuditProblem {
    /// Whether this can be because the log is being written, or its last writer had no key or was
    /// killed.
    #[must_use]
    pub fn is_only_unsigned(&self) -> bool {
        matches!(self, Self::UnsignedEnd { .. })
    }
}

/// The result of verifying a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// The session.
    pub id: SessionId,
    /// The number of records.
    pub records: u64,
    /// The number of files.
    pub files: usize,
    /// The hash at the end of the chain. A copy of it, kept elsewhere, shows later that nothing was
    /// removed.
    pub head: String,
    /// The problems that were found, at most a hundred.
    pub problems: Vec<AuditProblem>,
    /// How many writes were torn by a crash, and recorded as such by the next writer.
    pub mended: u64,
    /// The length of a torn write at the end, in bytes. It is no sign of tampering.
    pub torn: u64,
    /// The last record that is covered by a signature.
    pub signed: Option<u64>,
    /// The key that signed.
    pub key: Option<String>,
    /// Whether the log ends with the deletion of its session.
    pub is_ended: bool,
}

impl AuditReport {
    /// Whether no problem was found.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }
}
