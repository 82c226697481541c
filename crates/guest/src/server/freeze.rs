//! Keeping the processes of a session from running, so that its files are those of one moment.
//!
//! Parents are stopped before their children and continued after them: who waits for a child learns
//! nothing of a stop that is over. What was stopped before stays so.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::frame::Tag;
use bastide_proto::{Accepted, End, Fault, FaultKind, Frozen};
use rustix::process::{Pid, Signal};

use super::Guest;
use super::blocking::blocking;
use super::call::{Inbox, Outbox, Refusal};
use super::kill::{ProcessRef, ProcessTree};

/// How often all of it is tried. A process between `vfork` and `execve` of its child waits for the child and cannot
/// be stopped, so everything goes on for a moment then.
const ATTEMPTS: u32 = 100;

/// How often processes are looked at before they are let go again.
const LOOKS: u32 = 50;

/// How long to wait before looking again.
const STEP: Duration = Duration::from_millis(1);

/// How long a command that is to be started waits for the end of a freeze.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Lets a command start, unless everything is kept from running for longer than a caller can wait.
pub(super) async fn may_start(
    guest: &Guest,
) -> Result<tokio::sync::RwLockReadGuard<'_, ()>, Fault> {
    if let Ok(gate) = guest.freezes.try_read() {
        return Ok(gate);
    }
    tokio::time::timeout(TIMEOUT, guest.freezes.read()).await.map_err(|_| {
        let message =
            "the session stands still for a checkpoint, an undo or its last save; try again when that is over";
        Fault::new(FaultKind::Exists, message)
    })
}

/// What was stopped; it goes on when this is dropped.
#[derive(Debug, Default)]
struct Stopped {
    /// Parents before their children.
    processes: Vec<ProcessRef>,
    known: HashSet<ProcessRef>,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for process in self.processes.iter().rev() {
            drop(process.signal(Signal::CONT));
        }
    }
}

impl Stopped {
    /// Stops whatever descends from these processes and is not stopped yet, but not those themselves. True if
    /// everything stands still.
    fn stop(&mut self, supervisors: &[Pid]) -> bool {
        let mut is_still = true;
        for process in ProcessTree::scan().below(supervisors) {
            if self.known.contains(&process) {
                is_still &= process.is_stopped();
                continue;
            }
            is_still = false;
            self.known.insert(process);
            // Whoever stopped it wants it to stay so.
            if !process.is_stopped() {
                drop(process.signal(Signal::STOP));
                self.processes.push(process);
            }
        }
        is_still
    }
}

/// Stops everything, however often that has to be tried; nothing if it cannot be done.
async fn stop_all(supervisors: Vec<Pid>) -> Result<Option<Stopped>, Fault> {
    let supervisors = Arc::new(supervisors);
    for _ in 0..ATTEMPTS {
        let mut stopped = Stopped::default();
        for _ in 0..LOOKS {
            let whose = Arc::clone(&supervisors);
            let (back, is_still) = blocking(move || {
                let is_still = stopped.stop(&whose);
                (stopped, is_still)
            })
            .await?;
            if is_still {
                return Ok(Some(back));
            }
            stopped = back;
            tokio::time::sleep(STEP).await;
        }
        drop(stopped);
        tokio::time::sleep(STEP).await;
    }
    Ok(None)
}

/// Answers a request to keep everything from running.
pub(super) async fn run(
    guest: &Arc<Guest>,
    end: bool,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    outbox.accept(Accepted::default()).await?;
    let _gate = Arc::clone(&guest.freezes).write_owned().await;
    let alive = guest.processes.alive();
    let supervisors: Vec<Pid> = alive.iter().map(|process| process.supervisor).collect();
    let stopped = match stop_all(supervisors).await {
        Ok(Some(stopped)) => stopped,
        Ok(None) => {
            let message = "a process of the session does not stand still";
            let fault = Fault::new(FaultKind::Stuck, message);
            return Ok(outbox.end(&End::Failed(fault)).await?);
        }
        Err(fault) => return Ok(outbox.end(&End::Failed(fault)).await?),
    };
    let processes = u32::try_from(stopped.known.len()).unwrap_or(u32::MAX);
    // What a supervisor left behind that is gone itself is found only by whoever waits for the command's end.
    let is_still = processes == 0 && alive.iter().all(|process| process.end().is_some());
    let _still = is_still.then(|| guest.unchanged.still());
    if end {
        for process in &alive {
            // One that has ended by now is what was wanted.
            drop(process.signal(libc::SIGKILL));
        }
        drop(stopped);
        for process in &alive {
            process.wait_reaped().await;
        }
        if alive.iter().any(|process| process.is_alive()) {
            let fault = Fault::new(FaultKind::Stuck, "a process of the session does not end");
            return Ok(outbox.end(&End::Failed(fault)).await?);
        }
        outbox.item(&Frozen { processes }).await?;
        await_end(inbox).await?;
    } else {
        outbox.item(&Frozen { processes }).await?;
        await_end(inbox).await?;
        drop(stopped);
    }
    Ok(outbox.end(&End::Done).await?)
}

/// Waits until the host has what it wanted, or is gone.
async fn await_end(inbox: &mut Inbox) -> Result<(), Refusal> {
    match inbox.next().await?.tag {
        Tag::InputEnd => Ok(()),
        _ => Err(Refusal::Disconnected),
    }
}
