//! Paths that lead out while somebody uses them.

use std::time::{Duration, Instant};

use bastide::{Command, ExtractOptions, OutputEvent, Process, Session};

use super::{probe, session};
use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    cannot_lead_file_operations_out_by_swapping_names,
    cannot_hold_file_operations_up_with_pipes,
];

/// How long one operation may take, whatever is swapped under it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Everything about what is outside that would show if somebody had touched it.
const OUTSIDE: &str =
    "cd ${TMPDIR:-/tmp}/out && find . | sort | xargs stat -c '%n %i %a %u %g %s %h %Y %Z'";

/// Starts to swap things in a session.
async fn swap(session: &Session, kind: &str) -> Result<Process, TrialError> {
    let swapping = Command::new(["./probe", probe::FLAG, "swap", kind]);
    let mut process = session.spawn(swapping).await?;
    match process.next().await? {
        OutputEvent::Stdout(said) if said == "swapping\n" => Ok(process),
        other => Err(format!("the probe said {other:?}").into()),
    }
}

/// A tar of one small file below a folder that is swapped.
fn archive() -> Result<Vec<u8>, TrialError> {
    use bastide::archive::tar::{TarKind, TarMember, TarWriter};
    let mut bytes = Vec::new();
    let mut writer = TarWriter::new(&mut bytes);
    for name in ["sub/f", "sub/a/b", "f"] {
        let mut member = TarMember::new(name.as_bytes(), TarKind::File);
        member.size = 3;
        writer.append(&member, &mut &b"tar"[..])?;
    }
    writer.finish()?;
    Ok(bytes)
}

/// Every operation once; says what was seen. That they fail is fine: things are moving.
async fn everything(session: &Session, archive: &[u8]) -> Result<Vec<u8>, TrialError> {
    let mut seen = Vec::new();
    for path in ["x/f", "x/secret", "x/sub/f"] {
        seen.extend(session.files().read(path).await.unwrap_or_default());
        drop(session.files().write(path, "written").await);
        drop(session.files().chmod(path, 0o640).await);
    }
    if session.files().stat("x/canary").await.is_ok() {
        seen.extend_from_slice(b"canary");
    }
    drop(session.files().write("x/a/b/c", vec![0; 1 << 20]).await);
    for path in ["x", "x/sub"] {
        for info in session.files().ls(path).await.unwrap_or_default() {
            seen.extend(info.path.bytes());
        }
    }
    drop(session.files().mkdir_all("x/made/deep").await);
    drop(session.files().mv("x/f", "x/moved").await);
    drop(session.files().mv("x/moved", "x/sub/f").await);
    drop(session.files().symlink("x/sub/link", "anywhere").await);
    for path in session.files().glob("x/**").await.unwrap_or_default() {
        seen.extend(path.bytes());
    }
    drop(session.files().watch_all("x").await);
    drop(session.files().extract("x/t.tar", archive.to_vec(), ExtractOptions::default()).await);
    drop(session.files().rm("x/f").await);
    drop(session.files().rm_all("x/sub").await);
    drop(session.files().rm_all("x").await);
    Ok(seen)
}

async fn cannot_lead_file_operations_out_by_swapping_names(context: Context) -> Outcome {
    let session = session(&context).await?;
    let outside =
        "cd ${TMPDIR:-/tmp}; mkdir -p out/sub; cd out; echo canary | tee f secret canary sub/f";
    say(&session, outside).await?;
    let before = say(&session, OUTSIDE).await?;
    let archive = archive()?;
    for kind in ["folder", "below", "file", "folders"] {
        let process = swap(&session, kind).await?;
        for _ in 0..context.count(200) {
            let seen = everything(&session, &archive).await?;
            let seen = String::from_utf8_lossy(&seen);
            assert!(!seen.contains("canary"), "{kind}: saw outside: {seen}");
        }
        drop(process);
        assert_eq!(say(&session, OUTSIDE).await?, before, "{kind}: something was touched");
    }
    Ok(session.delete().await?)
}

async fn cannot_hold_file_operations_up_with_pipes(context: Context) -> Outcome {
    let session = session(&context).await?;
    say(&session, "mkdir -p ${TMPDIR:-/tmp}/out/sub").await?;
    let archive = archive()?;
    let process = swap(&session, "pipe").await?;
    for _ in 0..context.count(200) {
        let started = Instant::now();
        let done = tokio::time::timeout(TIMEOUT, everything(&session, &archive)).await;
        done.map_err(|_| "an operation waits for a pipe")??;
        assert!(started.elapsed() < TIMEOUT);
    }
    drop(process);
    Ok(session.delete().await?)
}
