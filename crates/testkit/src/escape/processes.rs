//! Processes of the host, and ours inside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use bastide::Rung;

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_see_processes_or_environment_of_the_host,
    cannot_end_or_trace_guest_or_launcher,
    has_no_process_of_ours_that_any_signal_ends,
    has_no_inherited_descriptors,
    cannot_outlive_its_session,
    gives_the_guest_no_way_up_to_the_host,
];

pub(super) async fn cannot_see_processes_or_environment_of_the_host(context: Context) -> Outcome {
    let mut host = Command::new("sleep");
    host.arg("7100").env("BASTIDE_CANARY", "bastide-canary").stdin(Stdio::null());
    let mut host = host.spawn()?;
    let session = session(&context).await?;
    // That command lines can be seen there is in the receipt.
    let files = match session.receipt().rung {
        Rung::Landlock => "/proc/[0-9]*/environ",
        _ => "/proc/[0-9]*/cmdline /proc/[0-9]*/environ",
    };
    let seen = say(
        &session,
        &format!(
            "cat {files} 2>/dev/null | tr '\\0' '\\n' \
         | grep -e '^710[0]$' -e 'bastide-canar[y]$' || true"
        ),
    )
    .await;
    host.kill()?;
    host.wait()?;
    assert_eq!(seen?, "");
    Ok(session.delete().await?)
}

async fn cannot_end_or_trace_guest_or_launcher(context: Context) -> Outcome {
    let session = session(&context).await?;
    // The probe goes for every process it can name, whoever it is, then for all at once. What it
    // reports are processes of ours that it could take hold of.
    assert_eq!(attempt(&session, "processes", &[]).await?, "");
    assert_eq!(say(&session, "echo still here").await?, "still here\n");
    Ok(session.delete().await?)
}

/// The C library leaves two signals out of every set that it fills.
async fn has_no_process_of_ours_that_any_signal_ends(context: Context) -> Outcome {
    /// All of them but SIGKILL and SIGSTOP, which nobody can block.
    const ALL: &str = "fffffffffffbfeff";
    let session = session(&context).await?;
    let mask = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|mask| mask.trim().to_owned()).unwrap_or_default()
    };
    let blocked = |line: &str| mask(line, "SigBlk:");
    // The shell's parent is its supervisor; that one's is the launcher, and the launcher's is init.
    let line = "pid=$PPID; for who in supervisor launcher init; do grep SigBlk: /proc/$pid/status; \
                pid=$(awk '/^PPid:/ { print $2 }' /proc/$pid/status); done";
    let masks = say(&session, line).await?;
    assert_eq!(masks.lines().map(blocked).collect::<Vec<_>>(), [ALL; 3], "{masks}");
    // The guest is none of these, and seen from outside. The library unblocks its two once there are threads.
    let guest = context.client().inspect(session.id()).await?.guest_pid;
    let status = guest.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
    if let Some(status) = status {
        let mask = |name| u64::from_str_radix(&mask(&status, name), 16);
        let harmless = mask("SigBlk:")? | mask("SigIgn:")? | mask("SigCgt:")?;
        assert_eq!(format!("{harmless:x}"), ALL, "the guest");
    }
    Ok(session.delete().await?)
}

async fn has_no_inherited_descriptors(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "descriptors", &[]).await?, "0\n1\n2\n");
    Ok(session.delete().await?)
}

async fn cannot_outlive_its_session(context: Context) -> Outcome {
    let session = session(&context).await?;
    say(&session, "(setsid sleep 7101 >/dev/null 2>&1 &)").await?;
    session.delete().await?;
    for entry in std::fs::read_dir("/proc")? {
        let line = std::fs::read(entry?.path().join("cmdline")).unwrap_or_default();
        assert!(line != b"sleep\x007101\x00", "a process outlived its session");
    }
    Ok(())
}

/// Whoever takes the guest's place has its descriptors. A folder among them must not lead up and out of
/// the sandbox, whatever namespace its holder is in.
async fn gives_the_guest_no_way_up_to_the_host(context: Context) -> Outcome {
    let session = session(&context).await?;
    let guest = context.client().inspect(session.id()).await?.guest_pid;
    // Only root may look at what the guest of this machine holds, and only there it is a process.
    let held = guest.map(|pid| format!("/proc/{pid}/fd")).filter(|path| fs::read_dir(path).is_ok());
    if let Some(held) = held {
        let host = fs::metadata("/")?;
        for entry in fs::read_dir(held)? {
            let path = entry?.path();
            if fs::metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
                let top = fs::metadata(path.join("../".repeat(64)))?;
                let name = fs::read_link(&path)?;
                let leads_out = (top.dev(), top.ino()) == (host.dev(), host.ino());
                assert!(!leads_out, "{} leads to the host's root", name.display());
            }
        }
    }
    Ok(session.delete().await?)
}
