//! The kernel's own interfaces.

use std::fs;
use std::os::unix::fs::MetadataExt;

use bastide::Rung;

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use crate::trials;

/// What root inside may have: `CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE`.
const ROOT_INSIDE: u64 = 0x4fb;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_use_what_reaches_past_the_sandbox,
    cannot_type_into_a_terminal,
    is_seen_by_the_kernel_as_confined,
    does_not_kill_for_an_unknown_call,
    cannot_change_settings_of_the_kernel,
    has_guest_and_init_that_are_confined_themselves,
];

async fn cannot_use_what_reaches_past_the_sandbox(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "calls", &[]).await?, "");
    Ok(session.delete().await?)
}

async fn cannot_type_into_a_terminal(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "terminal", &[]).await?, "");
    Ok(session.delete().await?)
}

/// In the kernel's own words.
async fn is_seen_by_the_kernel_as_confined(context: Context) -> Outcome {
    let session = session(&context).await?;
    let status =
        say(&session, "grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status")
            .await?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"), "{status}");
    if field("Uid:") != "0" {
        assert_eq!(field("CapEff:"), "0000000000000000");
    }
    if session.receipt().rung == Rung::Landlock {
        // It has no ids but the host's, so it must not be root there, nor have any of root's powers.
        assert_eq!(field("CapEff:"), "0000000000000000");
        assert_ne!(field("Uid:"), "0");
        // Only root can give up what programs could give back.
        if rustix::process::geteuid().is_root() {
            assert_eq!(field("CapBnd:"), "0000000000000000");
        }
        return Ok(session.delete().await?);
    }
    if session.receipt().rung == Rung::Container {
        // Whose ids are the host's own there; the receipt says so, and what root has left is little.
        assert!(session.receipt().not_enforced.iter().any(|open| open.starts_with("ids:")));
        assert!(u64::from_str_radix(&field("CapEff:"), 16)? & !ROOT_INSIDE == 0, "{status}");
        let line =
            "grep -E '^(CapPrm|CapEff|CapInh|CapAmb):' /proc/self/status | cut -f2 | sort -u";
        let others = session.exec(sh(line).user("nobody")).await?;
        assert_eq!(String::from_utf8(others.stdout)?, "0000000000000000\n", "others have none");
        return Ok(session.delete().await?);
    }
    assert!(u64::from_str_radix(&field("CapBnd:"), 16)? & !ROOT_INSIDE == 0, "{status}");
    for map in ["uid_map", "gid_map"] {
        for line in say(&session, &format!("cat /proc/self/{map}")).await?.lines() {
            let outside = line.split_whitespace().nth(1).unwrap_or("0");
            assert_ne!(outside, "0", "{map} maps the host's root: {line}");
        }
    }
    Ok(session.delete().await?)
}

async fn does_not_kill_for_an_unknown_call(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "unknown-call", &[]).await?, "no such call\n");
    Ok(session.delete().await?)
}

/// Some settings belong to the namespaces of the session, and so to root inside: the most processes there are among them.
async fn cannot_change_settings_of_the_kernel(context: Context) -> Outcome {
    let session = session(&context).await?;
    // Nothing is written: to open it for writing is enough.
    let line = "for file in $(find /proc/sys /proc/irq /proc/bus /proc/sysrq-trigger -type f 2>/dev/null); \
                do (: >> $file) 2>/dev/null && echo $file; done; true";
    assert_eq!(say(&session, line).await?, "");
    Ok(session.delete().await?)
}

/// Whoever takes the place of one of them finds it closed, too.
async fn has_guest_and_init_that_are_confined_themselves(context: Context) -> Outcome {
    let session = session(&context).await?;
    let guest = context.client().inspect(session.id()).await?.guest_pid;
    let Some(guest) = guest.filter(|_| session.receipt().rung != Rung::Container) else {
        session.delete().await?;
        return Err(skip("the engine confines them there"));
    };
    let field = |pid: &str, name: &str| -> Result<String, TrialError> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        Ok(line.split_whitespace().nth(1).unwrap_or_default().to_owned())
    };
    let guest = guest.to_string();
    let init = field(&guest, "PPid:")?;
    for (who, pid) in [("guest", &guest), ("init", &init)] {
        let seen = (field(pid, "NoNewPrivs:")?, field(pid, "Seccomp:")?);
        assert_eq!(seen, ("1".to_owned(), "2".to_owned()), "{who}");
        // The files about a process that cannot be traced are root's, whoever it runs as.
        let owner = fs::metadata(format!("/proc/{pid}/stat"))?.uid();
        assert_eq!(owner, 0, "{who} can be traced");
    }
    Ok(session.delete().await?)
}
