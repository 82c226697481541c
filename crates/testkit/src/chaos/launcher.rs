//! What happens to a session whose launcher, or what waits to become a command, is stopped or gone.

use std::fs;

use bastide::Session;
use rustix::process::{Pid, Signal, kill_process};

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    replaces_a_launcher_that_stands_still,
    replaces_a_launcher_that_is_gone,
    wakes_what_an_earlier_command_stopped,
];

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The launcher of a fresh session: the first process has no other child but the guest.
async fn launcher(context: &Context, session: &Session) -> Result<Pid, TrialError> {
    let info = context.client().inspect(session.id()).await?;
    let guest = info.guest_pid.ok_or_else(|| skip("the guest is no process of this host"))?;
    let guest = i32::try_from(guest)?;
    let first = parent(guest).ok_or("the guest has no parent")?;
    let mut found = None;
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        if pid != guest && parent(pid) == Some(first) {
            found = Pid::from_raw(pid);
        }
    }
    found.ok_or_else(|| "there is no launcher".into())
}

/// More commands than there are supervisors ahead of them.
async fn goes_on(session: &Session) -> Outcome {
    for number in 0..5 {
        assert_eq!(say(session, &format!("echo {number}")).await?, format!("{number}\n"));
    }
    Ok(())
}

async fn replaces_a_launcher_that_stands_still(context: Context) -> Outcome {
    let session = context.session().await?;
    goes_on(&session).await?;
    kill_process(launcher(&context, &session).await?, Signal::STOP)?;
    goes_on(&session).await?;
    Ok(session.delete().await?)
}

async fn replaces_a_launcher_that_is_gone(context: Context) -> Outcome {
    let session = context.session().await?;
    goes_on(&session).await?;
    kill_process(launcher(&context, &session).await?, Signal::KILL)?;
    goes_on(&session).await?;
    Ok(session.delete().await?)
}

/// Supervisors and what waits beside them are forked ahead, in reach of every command of the same user.
async fn wakes_what_an_earlier_command_stopped(context: Context) -> Outcome {
    let session = context.session().await?;
    goes_on(&session).await?;
    let line = "parent() { read -r a b c d e < /proc/$1/stat && echo $d; } 2>/dev/null
        launcher=$(parent $PPID)
        for p in /proc/[0-9]*; do p=${p#/proc/}
            [ \"$p\" = \"$PPID\" ] && continue
            above=$(parent $p)
            [ \"$above\" = \"$launcher\" ] && kill -STOP $p
            [ \"$above\" = \"$PPID\" ] || [ \"$(parent $above)\" = \"$launcher\" ] && [ $p != $$ ] && kill -STOP $p
        done 2>/dev/null; echo stopped";
    assert_eq!(say(&session, line).await?, "stopped\n");
    goes_on(&session).await?;
    Ok(session.delete().await?)
}
