//! Files of the host.

use std::fs;

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_read_secrets_of_the_host,
    cannot_write_outside_the_workspace,
    cannot_mount_or_make_namespaces,
    cannot_use_set_user_id_programs,
];

async fn cannot_read_secrets_of_the_host(context: Context) -> Outcome {
    // A file of the very user that commands act for, where it can be found by its full path.
    let host = tempfile::tempdir()?;
    let secret = host.path().join("id_ed25519");
    fs::write(&secret, "bastide-canary")?;
    let session = session(&context).await?;
    let said = say(
        &session,
        &format!(
            "for file in {} /etc/shadow /etc/gshadow /etc/ssh/*_key /etc/ssl/private/* /root/.* /home/*/.*
             do [ -f \"$file\" ] && cat \"$file\"; done 2>/dev/null; ls -A /home /root 2>/dev/null; true",
            secret.display()
        ),
    )
    .await?;
    assert_eq!(said, "");
    Ok(session.delete().await?)
}

async fn cannot_write_outside_the_workspace(context: Context) -> Outcome {
    let host = tempfile::tempdir_in("/var/tmp")?;
    let session = session(&context).await?;
    let places = [
        "/canary",
        "/usr/canary",
        "/usr/bin/canary",
        "/usr/local/canary",
        "/etc/canary",
        "/etc/passwd",
        "/bin/canary",
        "/dev/canary",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/var/canary",
        "/run/canary",
    ];
    for place in places.into_iter().chain(host.path().join("canary").to_str()) {
        let exit = session.exec(sh(&format!("echo canary > {place}"))).await?.exit;
        assert_ne!(exit.code, 0, "wrote to {place}");
    }
    assert_eq!(fs::read_dir(host.path())?.count(), 0);
    assert!(!std::path::Path::new("/usr/local/canary").exists());
    Ok(session.delete().await?)
}

async fn cannot_mount_or_make_namespaces(context: Context) -> Outcome {
    let session = session(&context).await?;
    assert_eq!(attempt(&session, "mounts", &[]).await?, "");
    Ok(session.delete().await?)
}

async fn cannot_use_set_user_id_programs(context: Context) -> Outcome {
    let session = session(&context).await?;
    // Every mount ignores the bit, and no process may gain privileges by executing anything.
    let open = say(&session, "grep -v nosuid /proc/self/mountinfo || true").await?;
    assert_eq!(open, "");
    assert_eq!(say(&session, "grep NoNewPrivs /proc/self/status").await?, "NoNewPrivs:\t1\n");
    Ok(session.delete().await?)
}
