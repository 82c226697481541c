//! Where the keys of a store are: with the program on the host that answers, and nowhere else.

use std::fs;
use std::path::Path;

use bastide::Command;
use bastide::events::{AuditOptions, EventOptions};
use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind};

use super::servers::{Kind, shared};
use super::{Mounting, fresh};
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![t21_no_key_of_a_mounted_store_is_inside_or_on_disk];

/// The files beneath a folder that hold some bytes. What cannot be read is nobody else's either.
fn holding(folder: &Path, bytes: &[u8], found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            holding(&path, bytes, found);
        } else if kind.is_file() {
            let content = fs::read(&path).unwrap_or_default();
            if content.windows(bytes.len()).any(|window| window == bytes) {
                found.push(path.display().to_string());
            }
        }
    }
}

/// The processes of the host whose command line or environment holds a text.
fn reported(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        for file in ["cmdline", "environ"] {
            let path = entry.path().join(file);
            let content = fs::read(&path).unwrap_or_default();
            if String::from_utf8_lossy(&content).contains(text) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

async fn t21_no_key_of_a_mounted_store_is_inside_or_on_disk(context: Context) -> Outcome {
    let (server, prefix, key) = (shared(Kind::Moto)?, fresh("secret"), fresh("k3y"));
    let events = EventOptions::new().audit(AuditOptions::default());
    let client = context.client().with_events(events);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let mounting = Mounting::new(&context, &session)?;
    mounting.mount("data", server.provider(), server.store(&prefix, &key)).await?;
    assert_eq!(say(&session, "echo hello > data/a && cat data/a").await?, "hello\n");
    // In two halves, and in no argument of the search, so that it does not find itself.
    let (first, second) = key.split_at(6);
    let attempts = [
        "x=$(cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n')
         case $x in *\"$A$B\"*) echo reported;; esac",
        "x=$(env); case $x in *\"$A$B\"*) echo reported;; esac",
        "printf '%s%s\\n' \"$A\" \"$B\" | grep -rlF -f - / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=lib 2>/dev/null",
        "ls /dev/fuse 2>/dev/null",
        "find / -xdev -type c 2>/dev/null | while read -r f; do stat -c '%t:%T' \"$f\"; done | grep '^a:e5$'",
        "grep -h bastide-mount /proc/[0-9]*/cmdline 2>/dev/null | grep -v grep",
        "for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null; done | grep -E 'fuse|mount-'",
    ];
    for user in [None, Some("0")] {
        for attempt in attempts {
            let command: Command = sh(attempt).env("A", first).env("B", second);
            let command = user.into_iter().fold(command, |command, user| command.user(user));
            let output = match session.exec(command).await {
                Err(error) if error.kind() == ErrorKind::Unsupported => continue,
                output => output?,
            };
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(said, "", "`{attempt}` found something");
        }
    }
    assert_eq!(reported(&key), [""; 0], "a process of the host was reported by its arguments");
    session.save().await?;
    let mut found = Vec::new();
    holding(context.backend.home(), key.as_bytes(), &mut found);
    assert_eq!(found, [""; 0], "a file of the home holds it");
    assert!(dumpable(&session)?.is_empty(), "a debugger could read it");
    session.delete().await?;
    holding(context.backend.home(), key.as_bytes(), &mut found);
    assert_eq!(found, [""; 0], "a file of the home holds it");
    Ok(())
}

/// The processes of the session's mounts that a debugger of the same user may look into.
fn dumpable(session: &bastide::Session) -> Result<Vec<String>, TrialError> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        // The kernel gives files of such a process to root, who owns all of them here.
        return Ok(Vec::new());
    }
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let is_one = line.starts_with("bastide-mounts\0") && line.contains(session.id().as_str());
        if is_one && fs::metadata(entry.path().join("environ"))?.uid() == own.as_raw() {
            found.push(entry.path().display().to_string());
        }
    }
    Ok(found)
}
