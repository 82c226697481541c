//! What commands used.

use serde::{Deserialize, Serialize};

/// What a command, with all that descended from it, or a whole session used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Microseconds of processors.
    pub cpu_us: u64,
    /// Bytes of memory at the peak.
    pub peak_memory: u64,
    /// Bytes that were read from storage.
    pub read: u64,
    /// Bytes that were written to storage.
    pub written: u64,
    /// Who counted processors and memory.
    pub source: UsageSource,
}

/// Who counted processors and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum UsageSource {
    /// The kernel, for each process, handed on to its parent when that collects it. Memory is that of the largest process.
    #[default]
    Rusage,
    /// A control group of version 1.
    CgroupV1,
    /// A control group of version 2.
    CgroupV2,
}

/// What somebody used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The number of the process record; none for the session as a whole.
    pub process: Option<u64>,
    /// What it used.
    pub usage: Usage,
}
