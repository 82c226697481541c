//! What a session costs in which nothing happens.

use std::fs;

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

/// The most memory of a guest that has nothing to do, in KiB.
const MOST_RESIDENT: u64 = 5 * 1024;

pub(super) const TRIALS: &[Trial] = trials![holds_little_memory_when_idle];

async fn holds_little_memory_when_idle(context: Context) -> Outcome {
    let session = context.session().await?;
    let pid = context.client().inspect(session.id()).await?.guest_pid;
    let Some(pid) = pid else {
        session.delete().await?;
        return Err(skip("the guest is no process of this machine"));
    };
    // Fresh, and after it had something to do.
    for _ in 0..2 {
        let resident = resident(pid)?;
        assert!(resident > 0 && resident < MOST_RESIDENT, "{resident} KiB");
        for number in 0..20 {
            assert_eq!(say(&session, &format!("echo {number}")).await?, format!("{number}\n"));
        }
    }
    Ok(session.delete().await?)
}

/// What a process holds in memory, its program's pages included, in KiB.
fn resident(pid: u32) -> Result<u64, TrialError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.ok_or("its status does not say")?.parse()?)
}
