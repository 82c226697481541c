//! The records of processes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide_proto::{ChildRecord, Fault, FaultKind, ProcessRecord};

use rustix::process::Pid;

use super::kill::{ProcessTree, command_line};
use super::log::LogFolder;
use super::process::Process;

/// How many records of processes that are over are kept.
const MOST_OVER: usize = 64;

/// How much else that is alive is listed with a process.
const MOST_CHILDREN: usize = 64;

/// Every process there is a record of.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    records: BTreeMap<u64, Arc<Process>>,
}

impl Processes {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number no process has had.
    pub(crate) fn next_id(&self) -> u64 {
        let mut table = self.lock();
        table.last += 1;
        table.last
    }

    /// Keeps a record of a process.
    pub(crate) fn add(&self, process: &Arc<Process>) {
        self.lock().records.insert(process.id, Arc::clone(process));
    }

    /// The process with this number.
    pub(crate) fn find(&self, id: u64) -> Result<Arc<Process>, Fault> {
        self.lock().records.get(&id).map(Arc::clone).ok_or_else(|| {
            Fault::new(FaultKind::NotFound, format!("there is no record of a process {id}"))
        })
    }

    /// The supervisors of all that is alive, but one.
    pub(crate) fn supervisors(&self, but: Pid) -> Vec<Pid> {
        let table = self.lock();
        let alive = table.records.values().filter(|process| process.is_alive());
        alive.map(|process| process.supervisor).filter(|supervisor| *supervisor != but).collect()
    }

    /// Whether anything is alive.
    pub(crate) fn is_any_alive(&self) -> bool {
        self.lock().records.values().any(|process| process.is_alive())
    }

    /// Everything that is alive, oldest first.
    pub(crate) fn alive(&self) -> Vec<Arc<Process>> {
        let table = self.lock();
        table.records.values().filter(|process| process.is_alive()).map(Arc::clone).collect()
    }

    /// Every record, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        self.lock().records.values().map(Arc::clone).collect()
    }

    /// Every record, oldest first, each with what else of it is alive.
    pub(crate) fn list(&self) -> Vec<ProcessRecord> {
        let all = self.all();
        let tree = ProcessTree::scan();
        let with_children = |process: Arc<Process>| {
            let mut record = process.record();
            let alive = tree.descendants(process.supervisor).into_iter();
            let others = alive.map(|found| found.pid).filter(|pid| pid.as_raw_pid() != record.pid);
            record.children = others
                .take(MOST_CHILDREN)
                .map(|pid| ChildRecord { pid: pid.as_raw_pid(), command: command_line(pid) })
                .collect();
            record
        };
        all.into_iter().map(with_children).collect()
    }

    /// Forgets the oldest of what is over and lies on the disk, until there is room for what others say.
    pub(crate) fn make_room(&self, logs: &LogFolder) {
        let mut table = self.lock();
        let over = table.records.values().filter(|one| !one.is_alive() && !one.log.is_small());
        let over: Vec<u64> = over.map(|process| process.id).collect();
        for id in over.into_iter().take_while(|_| logs.is_short()) {
            table.records.remove(&id);
        }
    }

    /// Forgets what nobody needs any more: processes that were delivered whole, and the oldest of the
    /// others that are over, beyond what is kept.
    pub(crate) fn prune(&self) {
        let mut table = self.lock();
        table.records.retain(|_, process| !process.is_done_with());
        let over = table.records.values().filter(|process| !process.is_alive());
        let over: Vec<u64> = over.map(|process| process.id).collect();
        for id in over.iter().take(over.len().saturating_sub(MOST_OVER)) {
            table.records.remove(id);
        }
    }
}
