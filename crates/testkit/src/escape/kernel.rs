//! The kernel's own interfaces.

use bastide::Rung;

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, say, sh};
use crate::trials;

/// What root inside may have: `CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID NET_BIND_SERVICE`.
const ROOT_INSIDE: u64 = 0x4fb;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_use_what_reaches_past_the_sandbox,
    cannot_type_into_a_terminal,
    is_seen_by_the_kernel_as_confined,
    does_not_kill_for_an_unknown_call,
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
        say(&session, "grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/self/status").await?;
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
