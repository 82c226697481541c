//! The record of what happened.

use std::fs;

use bastide::events::{AuditOptions, EventOptions, audit_folder, verify};
use bastide::model::{Manifest, PathGrant};
use bastide::{Command, CreateOptions, ErrorKind, Session};

use crate::suite::{Context, Outcome, Trial, TrialError, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t22_root_inside_can_neither_see_nor_alter_the_audit_log,
    cannot_be_given_what_is_kept_about_sessions,
];

/// Runs a line as root inside, where a session has a root; else as its own user.
async fn as_root(session: &Session, line: &str) -> Result<String, TrialError> {
    let command = |command: Command| session.exec(command);
    let output = match command(sh(line).user("0")).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => command(sh(line)).await?,
        output => output?,
    };
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn t22_root_inside_can_neither_see_nor_alter_the_audit_log(context: Context) -> Outcome {
    let options = EventOptions::new().audit(AuditOptions::default());
    let client = context.client().with_events(options);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    let home = context.backend.home().canonicalize()?;
    let folder = audit_folder(&home, &id);
    let log = folder.join("000001.jsonl");
    assert!(fs::metadata(&log)?.len() > 0, "there is something worth reaching");
    let (folder, log) = (folder.display().to_string(), log.display().to_string());
    // By its path, through whatever other processes have open, and by searching everything.
    let home = home.display().to_string();
    let attempts = [
        format!("cat {log} {folder}/* 2>/dev/null"),
        format!("ls -laR {home} {folder} 2>/dev/null"),
        format!("echo tampered >> {log} && echo wrote"),
        format!("mkdir -p {folder} && echo tampered > {log} && rm -rf {folder} && echo made"),
        format!("rm -rf {folder} {home}; mv {folder} /tmp/moved 2>/dev/null && echo moved"),
        format!("for p in /proc/[0-9]*; do cat $p/root{log} $p/cwd{log}; done 2>/dev/null"),
        "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -E 'audit|[.]jsonl'".to_owned(),
        "for f in /proc/[0-9]*/fd/*; do [ -f $f ] && grep -l '\"kind\":\"state\"' $f; done 2>/dev/null"
            .to_owned(),
        format!("find / -xdev -path '*/audit/{id}*' 2>/dev/null"),
        "find / -xdev -name '0*.jsonl' 2>/dev/null".to_owned(),
        format!(
            "ln -s {log} link && cat link 2>/dev/null; ln {log} hard 2>/dev/null && echo linked"
        ),
    ];
    for attempt in &attempts {
        let reached = as_root(&session, attempt).await?;
        // What it makes inside is its own; nothing of the host may show.
        let is_inside = attempt.starts_with("mkdir") && reached == "made\n";
        assert!(reached.is_empty() || is_inside, "`{attempt}` reached {reached}");
    }
    // Nor by the ways of files, nor by a guest that follows links.
    for path in [log.as_str(), "link", "/proc/self/root/link"] {
        assert!(session.files().read(path).await.is_err(), "{path} was read");
    }
    session.delete().await?;
    let report = verify(context.backend.home(), &id, None)?;
    assert!(report.is_valid() && report.is_ended, "{report:?}");
    // One flipped byte is found.
    let mut bytes = fs::read(&log)?;
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&log, bytes)?;
    assert!(!verify(context.backend.home(), &id, None)?.is_valid());
    Ok(())
}

async fn cannot_be_given_what_is_kept_about_sessions(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let home = context.backend.home().canonicalize()?;
    fs::create_dir_all(home.join("audit"))?;
    let link = tempfile::tempdir()?;
    std::os::unix::fs::symlink(&home, link.path().join("home"))?;
    for path in [home.clone(), home.join("audit"), link.path().join("home/sessions")] {
        let path = path.display().to_string();
        let grant = PathGrant {
            path: "/mnt/host".to_owned(),
            host_path: Some(path.clone()),
            read_only: true,
            description: None,
        };
        let granted = Manifest { extra_path_grants: vec![grant], ..Manifest::default() };
        let worked_in = Manifest { root: path.clone(), ..Manifest::default() };
        for manifest in [granted, worked_in] {
            let made = context.client().create(&manifest, CreateOptions::default()).await;
            let refused = made.map(drop).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::InvalidInput), "{path}");
        }
    }
    Ok(())
}
