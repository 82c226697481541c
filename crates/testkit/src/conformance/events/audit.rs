//! What stays on record.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use bastide::compat::PtyLimits;
use bastide::events::{
    AuditKey, AuditOptions, AuditReader, AuditRecord, EventOptions, audit_folder, prove, verify,
};
use bastide::model::Manifest;
use bastide::{Client, CreateOptions, SessionId};
use futures::future::join_all;
use serde_json::json;

use super::failure;
use crate::suite::{Context, Outcome, Trial, TrialError, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    keeps_every_operation_on_record,
    keeps_the_record_of_a_session_that_is_gone,
    keeps_one_chain_whoever_acts,
    puts_a_late_end_on_record_as_late,
    signs_the_record,
    refuses_what_cannot_be_put_on_record,
];

fn client(context: &Context) -> Client {
    let audit = AuditOptions::default().actor("trial");
    context.client().with_events(EventOptions::new().audit(audit))
}

/// The whole record of a session.
pub(crate) fn records(context: &Context, id: &SessionId) -> Result<Vec<AuditRecord>, TrialError> {
    let mut reader = AuditReader::open(context.backend.home(), id)?;
    let mut all = Vec::new();
    loop {
        let more = reader.more()?;
        if more.is_empty() {
            return Ok(all);
        }
        all.extend(more);
    }
}

async fn keeps_every_operation_on_record(context: Context) -> Outcome {
    let session = client(&context).create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    session.files().write("file", "content").await?;
    session.files().read("file").await?;
    session.files().read_bounded("file", 2).await?;
    failure(session.files().read("../../etc/passwd").await)?;
    session.files().open("file").await?;
    session.files().mkdir("folder").await?;
    session.files().ls("folder").await?;
    session.files().stat("file").await?;
    session.files().mv("file", "folder/file").await?;
    session.files().chmod("folder/file", 0o600).await?;
    session.files().symlink("link", "file").await?;
    session.files().glob("*").await?;
    session.files().same_file("folder", "link").await?;
    session.files().rm_all("folder").await?;
    drop(session.files().watch(".").await?);
    session.exec(sh("exit 3")).await?;
    let process = session.launch(sh("echo up; sleep 60")).await?;
    let mut listening = session.attach(process, 0).await?;
    listening.next().await?;
    session.signal(process, 9).await?;
    drop(listening.output(100).await?);
    drop(session.log(process, 0).await?.output(100).await?);
    session.processes().await?;
    session.compat().pty_exec_start(sh("true").terminal(24, 80), PtyLimits::default()).await?;
    session.compat().pty_terminate_all().await;
    assert!(session.compat().running().await);
    failure(session.compat().resolve_exposed_port(1).await)?;
    let other = client(&context).attach(&id).await?;
    other.exec(sh("true")).await?;
    drop(other);
    session.delete().await?;

    let records = records(&context, &id)?;
    let ops: BTreeSet<_> = records.iter().filter_map(|record| record.text("op")).collect();
    let want = [
        "write",
        "read",
        "open",
        "mkdir",
        "ls",
        "stat",
        "mv",
        "chmod",
        "symlink",
        "glob",
        "same_file",
        "rm",
        "watch",
        "exec",
        "spawn",
        "signal",
        "attach",
        "log",
        "processes",
        "pty_exec_start",
        "pty_terminate_all",
        "running",
        "start",
        "resolve_exposed_port",
        "delete",
    ];
    assert_eq!(ops, BTreeSet::from(want));
    let half = |phase: &str| {
        let of = records.iter().filter(|record| record.text("phase") == Some(phase));
        of.map(|record| record.text("span").map(str::to_owned)).collect::<BTreeSet<_>>()
    };
    assert_eq!(half("start"), half("finish"), "whatever started ended");
    let states: Vec<_> = records.iter().filter_map(|record| record.text("state")).collect();
    assert_eq!(states, ["creating", "running", "attached", "deleted"]);
    for record in records.iter().filter(|record| record.text("op").is_some()) {
        assert_eq!(record.fields["actor"]["name"], "trial");
        assert_eq!(record.fields["actor"]["pid"], std::process::id());
        assert_eq!(record.text("receipt").map(str::len), Some(16), "{record:?}");
    }
    let up = records.iter().find(|record| record.text("state") == Some("running"));
    let up = up.ok_or("it never ran")?;
    assert!(up.fields["data"]["receipt"]["rung"].is_string(), "{up:?}");
    let refused = records.iter().filter(|record| record.text("decision") == Some("refused"));
    let refused: Vec<_> = refused.filter_map(|record| record.text("error_code")).collect();
    assert_eq!(refused, ["invalid_manifest_path"]);
    let report = verify(context.backend.home(), &id, None)?;
    assert!(report.is_valid() && report.is_ended, "{report:?}");
    Ok(())
}

async fn keeps_the_record_of_a_session_that_is_gone(context: Context) -> Outcome {
    let client = client(&context);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    session.exec(sh("echo hello")).await?;
    assert!(client.delete(&id).await?);
    drop(session);
    let folder = audit_folder(context.backend.home(), &id);
    for (path, mode) in [(folder.clone(), 0o700), (folder.join("000001.jsonl"), 0o600)] {
        assert_eq!(fs::metadata(path)?.permissions().mode() & 0o777, mode);
    }
    let found = records(&context, &id)?;
    let exec = found.iter().find(|record| record.text("op") == Some("exec"));
    let exec = exec.ok_or("the command is not on record")?;
    assert_eq!(exec.fields["data"]["command"], json!(["echo hello"]));
    let proof = prove(context.backend.home(), &id, exec.seq)?;
    proof.check(None)?;
    assert!(proof.record.contains("echo hello"));
    assert!(verify(context.backend.home(), &id, None)?.is_ended);
    Ok(())
}

async fn keeps_one_chain_whoever_acts(context: Context) -> Outcome {
    let session = client(&context).create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    let count = context.count(200);
    let others: Vec<_> = join_all((0..4).map(|_| session.reconnect())).await;
    let others = others.into_iter().collect::<bastide::Result<Vec<_>>>()?;
    let work = others.iter().map(|other| async move {
        for number in 0..count {
            other.files().write(&format!("file{number}"), "x").await?;
        }
        bastide::Result::Ok(())
    });
    join_all(work).await.into_iter().collect::<bastide::Result<()>>()?;
    drop(others);
    session.delete().await?;
    let report = verify(context.backend.home(), &id, None)?;
    assert_eq!(report.problems, []);
    let writes = records(&context, &id)?;
    let writes = writes.iter().filter(|record| record.text("op") == Some("write")).count();
    assert_eq!(writes, 4 * count * 2);
    Ok(())
}

async fn puts_a_late_end_on_record_as_late(context: Context) -> Outcome {
    let client = client(&context);
    let options = CreateOptions::default().detached();
    let session = client.create(&Manifest::default(), options).await?;
    let id = session.id().clone();
    // Somebody who keeps no record ends it.
    context.client().stop(&id).await?;
    drop(session);
    assert!(client.delete(&id).await?);
    let records = records(&context, &id)?;
    let late = records.iter().find(|record| record.text("state") == Some("ended"));
    let late = late.ok_or("the end is not on record")?;
    assert_eq!(late.fields["data"]["late"], true);
    assert!(late.fields["data"]["detail"].is_string());
    Ok(())
}

async fn signs_the_record(context: Context) -> Outcome {
    let host = tempfile::tempdir()?;
    let key = AuditKey::generate(&host.path().join("key"))?;
    let audit = AuditOptions::default().key(key.clone());
    let client = context.client().with_events(EventOptions::new().audit(audit));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    session.exec(sh("true")).await?;
    session.delete().await?;
    let home = context.backend.home();
    let report = verify(home, &id, Some(key.public()))?;
    assert!(report.is_valid(), "{report:?}");
    assert_eq!(report.signed, Some(report.records - 1));
    prove(home, &id, 3)?.check(Some(key.public()))?;
    Ok(())
}

async fn refuses_what_cannot_be_put_on_record(context: Context) -> Outcome {
    let session = client(&context).create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    let folder = audit_folder(context.backend.home(), &id);
    // Whoever opens it anew finds no log but a folder in its place.
    fs::remove_dir_all(&folder)?;
    fs::create_dir_all(folder.join("000001.jsonl"))?;
    let refused = failure(client(&context).attach(&id).await)?;
    assert!(refused.message().starts_with("cannot write the audit log"), "{refused}");
    drop(session.delete().await);
    Ok(())
}
