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
    /// Records are not there.
    Missing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A record is not in its place.
    Moved {
        /// The record.
        seq: u64,
    },
    /// Something is there that is no record, and no write that was cut off.
    Damaged {
        /// The last record before it.
        after: u64,
    },
    /// A signature is not by the key, or not over this log.
    BadSeal {
        /// The record with the signature.
        seq: u64,
    },
    /// A key was asked for, and nothing in the log is signed by it.
    Unsigned,
    /// A key was asked for, and the end of the log is not signed.
    UnsignedEnd {
        /// The first record that is not.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// A key was asked for, and nothing outside the log says how far it was signed.
    NoHead,
    /// What says how far the log was signed is not signed itself, or by another key.
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
    /// Whether this may be because the log is being written, or its last writer had no key or was killed.
    #[must_use]
    pub fn is_only_unsigned(&self) -> bool {
        matches!(self, Self::UnsignedEnd { .. })
    }
}

/// What was found out about a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// The session.
    pub id: SessionId,
    /// How many records there are.
    pub records: u64,
    /// In how many files.
    pub files: usize,
    /// The hash at the end: whoever keeps it elsewhere can tell later that nothing was taken away.
    pub head: String,
    /// What is wrong.
    pub problems: Vec<AuditProblem>,
    /// How many writes were cut off by a crash, and went on after that.
    pub mended: u64,
    /// How many bytes at the end are of a write that was cut off. That is no tampering.
    pub torn: u64,
    /// The last record that is covered by a signature.
    pub signed: Option<u64>,
    /// The key that signed.
    pub key: Option<String>,
    /// The log of a session that was deleted ends with that.
    pub is_ended: bool,
}

impl AuditReport {
    /// Whether the log is what was written.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}
