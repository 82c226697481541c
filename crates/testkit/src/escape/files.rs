//! Files of the host.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use bastide::model::Manifest;
use bastide::{CreateOptions, Rung};

use super::{attempt, session};
use crate::suite::{Context, Outcome, Trial, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_read_secrets_of_the_host,
    runs_a_toolchain_without_the_secrets_beside_it,
    cannot_write_outside_the_workspace,
    cannot_mount_or_make_namespaces,
    cannot_use_set_user_id_programs,
];

pub(super) async fn cannot_read_secrets_of_the_host(context: Context) -> Outcome {
    // A file of the very user that commands act for, where it can be found by its full path.
    let host = tempfile::tempdir()?;
    let secret = host.path().join("id_ed25519");
    fs::write(&secret, "bastide-canary")?;
    let session = session(&context).await?;
    let said = say(
        &session,
        &format!(
            "for file in {} /etc/shadow /etc/gshadow /etc/ssh/*_key /etc/ssl/private/* /root/.* /home/*/.*
             do [ -f \"$file\" ] && cat \"$file\"; done 2>/dev/null; for folder in /home /root; do ls -A $folder; done 2>/dev/null; true",
            secret.display()
        ),
    )
    .await?;
    assert_eq!(said, "");
    Ok(session.delete().await?)
}

/// What somebody keeps outside the system folders and searches runs inside; what lies beside it is not
/// there.
async fn runs_a_toolchain_without_the_secrets_beside_it(context: Context) -> Outcome {
    let host = tempfile::tempdir_in("/var/tmp")?;
    let cargo = host.path().join(".cargo");
    for folder in ["bin", "lib"] {
        fs::create_dir_all(cargo.join(folder))?;
    }
    let program = cargo.join("bin/canary-tool");
    fs::write(&program, "#!/bin/sh\necho ran with $(cat \"$(dirname \"$0\")/../lib/part\")\n")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755))?;
    fs::write(cargo.join("lib/part"), "its library")?;
    fs::write(cargo.join("credentials.toml"), "bastide-canary")?;
    fs::write(host.path().join(".netrc"), "bastide-canary")?;
    let mut options = CreateOptions::default();
    let search = format!("{}:/usr/bin:/bin", cargo.join("bin").display());
    options.env = vec![("PATH".to_owned(), search)];
    let session = context.client().create(&Manifest::default(), options).await?;
    if say(&session, "command -v canary-tool || true").await?.is_empty() {
        // A backend that shows nothing of the host has nothing to hide beside it either.
        return Ok(session.delete().await?);
    }
    assert_eq!(say(&session, "canary-tool").await?, "ran with its library\n");
    let home = host.path().display();
    let line = format!("ls -A {home} {home}/.cargo; cat {home}/.netrc 2>&1 || true");
    let beside = say(&session, &line).await?;
    assert!(!beside.contains("credentials") && !beside.contains("canary"), "{beside}");
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
    // The system of a container is its own, and its root may change it; not what the kernel shows.
    let is_root = say(&session, "id -u").await? == "0\n";
    let own_system = session.receipt().rung == Rung::Container && is_root;
    let is_closed = |place: &&str| !own_system || place.starts_with("/proc");
    if own_system {
        // What it changes is a copy of its own; and nobody but root may change even that.
        let name = format!("/usr/canary-{}", session.id());
        say(&session, &format!("echo canary > {name}")).await?;
        assert!(!std::path::Path::new(&name).exists(), "it is on the host");
        for place in places {
            let line = sh(&format!("echo canary > {place}")).user("nobody");
            assert_ne!(session.exec(line).await?.exit.code, 0, "nobody wrote to {place}");
        }
    }
    let places = places.into_iter().filter(is_closed);
    for place in places.chain(host.path().join("canary").to_str()) {
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
    // Where mounts are its own, every one ignores the bit; and no process may gain privileges by executing
    // anything.
    if session.receipt().rung == Rung::Namespaces {
        let open = say(&session, "grep -v nosuid /proc/self/mountinfo || true").await?;
        assert_eq!(open, "");
    }
    assert_eq!(say(&session, "grep NoNewPrivs /proc/self/status").await?, "NoNewPrivs:\t1\n");
    if session.receipt().rung == Rung::Container {
        // There the bit is honoured by the file system, so it is tried.
        let make = "cp $(command -v id) /tmp/gain && chmod 6755 /tmp/gain && stat -c %a /tmp/gain";
        assert_eq!(say(&session, make).await?, "6755\n");
        let output = session.exec(sh("/tmp/gain -u; /tmp/gain -g").user("nobody")).await?;
        assert_eq!(String::from_utf8(output.stdout)?, "65534\n65534\n");
    }
    Ok(session.delete().await?)
}
