//! What sessions and their commands use.

use std::time::Duration;

use bastide_proto::{End, Request, USAGE_VERSION, UsageRecord, UsageSource as Source};
use serde_json::{Value, json};

use super::{MOST_PROCESSES, Session};
use crate::backend::{Backend, Machine, SessionId};
use crate::link::fault::agent_lost;
use crate::link::{Incoming, Link, decode};
use crate::{Condition, Error, ErrorKind, ProcessId, ProcessInfo, Result};

/// What a command, with all that descended from it, or a whole session used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Time of processors.
    pub cpu: Duration,
    /// Bytes of memory at the peak: of all together where a control group counts, else of the largest process.
    pub peak_memory: u64,
    /// Bytes read from storage by processes that have ended: not what the kernel had in memory.
    pub read: u64,
    /// Bytes written to files on storage by processes that have ended: not what lies in memory.
    pub written: u64,
    /// Who counted processors and memory.
    pub source: UsageSource,
}

/// Who counted processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UsageSource {
    /// The kernel, for each process.
    Rusage,
    /// A control group of version 1.
    CgroupV1,
    /// A control group of version 2.
    CgroupV2,
}

impl UsageSource {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rusage => "rusage",
            Self::CgroupV1 => "cgroup v1",
            Self::CgroupV2 => "cgroup v2",
        }
    }
}

impl From<Source> for UsageSource {
    fn from(source: Source) -> Self {
        match source {
            Source::CgroupV1 => Self::CgroupV1,
            Source::CgroupV2 => Self::CgroupV2,
            _ => Self::Rusage,
        }
    }
}

impl From<bastide_proto::Usage> for Usage {
    fn from(usage: bastide_proto::Usage) -> Self {
        let bastide_proto::Usage { cpu_us, peak_memory, read, written, source } = usage;
        let source = source.into();
        Self { cpu: Duration::from_micros(cpu_us), peak_memory, read, written, source }
    }
}

impl Usage {
    /// The object that programs see.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "cpu_seconds": self.cpu.as_secs_f64(),
            "peak_memory_bytes": self.peak_memory,
            "read_bytes": self.read,
            "written_bytes": self.written,
            "source": self.source.as_str(),
        })
    }

    /// With what a control group counted in the place of what processes said.
    fn counted_by(mut self, counted: Option<bastide_proto::Usage>) -> Self {
        if let Some(counted) = counted {
            // What a group does not count is 0.
            self.cpu = self.cpu.max(Duration::from_micros(counted.cpu_us));
            if counted.peak_memory > 0 {
                self.peak_memory = counted.peak_memory;
            }
            self.source = counted.source.into();
        }
        self
    }
}

impl Session {
    /// What the session used since its machine was started, all commands together, those that run included.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a session that an earlier version started;
    /// [`AgentLost`](crate::ErrorKind::AgentLost) if the guest does not answer.
    pub async fn usage(&self) -> Result<Usage> {
        of_session(self.backend.as_ref(), &self.machine, self.link.as_ref()).await
    }

    /// Adds to each process what it used, where the guest tells.
    pub(crate) async fn with_usage(&self, mut all: Vec<ProcessInfo>) -> Result<Vec<ProcessInfo>> {
        if self.link.protocol() < USAGE_VERSION {
            return Ok(all);
        }
        for UsageRecord { process, usage } in records(self.link.as_ref()).await? {
            let info = all.iter_mut().find(|info| Some(info.id) == process.map(ProcessId));
            if let Some(info) = info {
                info.usage = Some(usage.into());
            }
        }
        Ok(all)
    }
}

/// What a session used, by its guest and by what else counts.
pub(crate) async fn of_session(
    backend: &dyn Backend,
    machine: &Machine,
    link: &dyn Link,
) -> Result<Usage> {
    if link.protocol() < USAGE_VERSION {
        return Err(not_counted(&machine.id));
    }
    let records = records(link).await?;
    let own = records.into_iter().find(|record| record.process.is_none());
    let own = own.ok_or_else(|| agent_lost("the guest broke the protocol: no usage"))?;
    Ok(Usage::from(own.usage).counted_by(backend.counted(machine)))
}

async fn records(link: &dyn Link) -> Result<Vec<UsageRecord>> {
    let mut stream = link.open(Request::Usage).await?;
    let mut all = Vec::new();
    loop {
        match stream.from_guest.next().await? {
            Incoming::Item(item) if all.len() <= MOST_PROCESSES => all.push(decode(&item)?),
            Incoming::End(End::Done) => return Ok(all),
            _ => return Err(agent_lost("the guest broke the protocol: no usage")),
        }
    }
}

fn not_counted(id: &SessionId) -> Error {
    let message =
        format!("session {id} was started by an earlier version, which does not tell what is used");
    Error::new(ErrorKind::Unsupported, message)
        .with_condition(Condition::SessionOfEarlierVersion(id.to_string()))
}
