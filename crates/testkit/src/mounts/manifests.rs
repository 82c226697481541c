//! Mounts that a manifest names, from its first line to the end of its session.

use std::time::Instant;

use bastide::model::Manifest;
use bastide::{
    Command, CreateOptions, ErrorClass, ResumeOptions, Session, SessionStatus, SweepOptions,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::fresh;
use super::lifecycle::{HOLDS_OPEN, programs};
use super::servers::{DEADLINE, Kind, Server, shared};
use crate::suite::{Context, Outcome, Trial, TrialError, parent, say, skip, sweeping};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    a_manifest_mounts_its_store_and_mounts_it_again_when_resumed,
    a_manifest_whose_store_is_not_there_makes_no_session,
    files_reach_into_a_mount_and_removing_does_not,
    resuming_a_session_that_runs_mounts_what_is_missing,
    what_cannot_be_stored_is_said_and_kept,
    what_cannot_be_stored_is_said_when_its_session_is_deleted,
    what_a_command_left_running_ends_before_its_mount,
    a_folder_of_the_host_is_left_as_it_was,
];

fn manifest(port: u16, bucket: &str, prefix: &str) -> Result<Manifest, TrialError> {
    Ok(bastide::model::lax::read(&json!({"entries": {"data": {
        "type": "s3_mount", "bucket": bucket, "prefix": prefix, "read_only": false,
        "endpoint_url": format!("http://127.0.0.1:{port}"), "region": "us-east-1",
        "access_key_id": "AKIDMANIFEST", "secret_access_key": "hidden-key-of-the-manifest",
        "mount_strategy": {"type": "host"},
    }}}))?)
}

async fn a_manifest_mounts_its_store_and_mounts_it_again_when_resumed(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("manifest"));
    let manifest = manifest(server.port, "data", &prefix)?;
    let client = context.client();
    let session = match client.create(&manifest, CreateOptions::default().detached()).await {
        Err(error) if error.message().contains("/dev/fuse") => return Err(skip(error.message())),
        made => made?,
    };
    assert_eq!(say(&session, "echo one > data/a && cat data/a").await?, "one\n");
    session.start().await?;
    let mounts = session.mounts().await?;
    assert_eq!((mounts[0].state.as_str(), mounts[0].provider.as_str()), ("mounted", "s3"));
    assert!(mounts[0].writes.is_some_and(|writes| writes > 0), "{mounts:?}");
    let inside = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c '[h]idden-key'; true";
    assert_eq!(say(&session, inside).await?, "0\n");
    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    let mut options = ResumeOptions::default();
    options.manifest = Some(manifest);
    let session = client.resume_with(&id, options).await?;
    assert_eq!(say(&session, "cat data/a && echo two > data/b && ls data").await?, "one\na\nb\n");
    Ok(session.delete().await?)
}

async fn a_manifest_whose_store_is_not_there_makes_no_session(context: Context) -> Outcome {
    let server = shared(Kind::Moto)?;
    let client = context.client();
    for (port, bucket) in [(server.port, "no-such-bucket"), (9, "data")] {
        let manifest = manifest(port, bucket, "")?;
        let id = bastide::SessionId::random();
        let mut options = CreateOptions::default();
        options.id = Some(id.clone());
        let Err(error) = client.create(&manifest, options).await else {
            return Err(format!("{bucket} at {port} was mounted").into());
        };
        if error.message().contains("/dev/fuse") {
            return Err(skip(error.message()));
        }
        let classes = [Some(ErrorClass::MountCommandError), Some(ErrorClass::MountConfigError)];
        assert!(classes.contains(&error.class()), "{error:?}");
        assert!(error.message().contains("/data: "), "it says where and why: {error}");
        assert!(!format!("{error:?}").contains("hidden-key"), "{error:?}");
        assert!(!context.backend.home().join("sessions").join(id.as_str()).exists());
    }
    Ok(())
}

/// A session of a manifest; skips the trial for a user who may not use FUSE, and has been told so.
async fn session_of(context: &Context, manifest: &Manifest) -> Result<Session, TrialError> {
    match context.client().create(manifest, CreateOptions::default().detached()).await {
        Err(error) if error.message().contains("/dev/fuse") => Err(skip(error.message())),
        made => Ok(made?),
    }
}

async fn files_reach_into_a_mount_and_removing_does_not(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("files"));
    let session = session_of(&context, &manifest(server.port, "data", &prefix)?).await?;
    say(&session, "echo one > data/a && mkdir data/d").await?;
    let files = session.files();
    assert_eq!(&*files.read("data/a").await?, b"one\n");
    files.write("data/d/b", "two\n").await?;
    assert_eq!(say(&session, "cat data/d/b").await?, "two\n");
    let listed = files.ls("data").await?;
    assert_eq!(listed.len(), 2, "{listed:?}");
    // Only what is asked for by name goes; never a store because the folder around it does.
    assert!(files.rm_all("data").await.is_err());
    assert!(files.rm_all(".").await.is_err());
    assert_eq!(say(&session, "cat data/a data/d/b").await?, "one\ntwo\n");
    files.rm("data/d/b").await?;
    assert_eq!(say(&session, "ls data/d").await?, "");
    Ok(session.delete().await?)
}

async fn resuming_a_session_that_runs_mounts_what_is_missing(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("missing"));
    let manifest = manifest(server.port, "data", &prefix)?;
    let session = session_of(&context, &manifest).await?;
    say(&session, "echo one > data/a").await?;
    let keeper = programs(&session).pop().and_then(Pid::from_raw).ok_or("no keeper")?;
    kill_process(keeper, Signal::KILL)?;
    say(&session, "until cat data/a 2>&1 | grep -q 'not connected'; do :; done").await?;
    let id = session.id().clone();
    drop(session);
    let options = ResumeOptions::default().manifest(manifest);
    let session = context.client().resume_with(&id, options).await?;
    assert_eq!(say(&session, "cat data/a").await?, "one\n");
    Ok(session.delete().await?)
}

async fn what_cannot_be_stored_is_said_and_kept(context: Context) -> Outcome {
    let mut server = Server::start(Kind::Moto)?;
    let session = session_of(&context, &manifest(server.port, "data", "")?).await?;
    let _holder = session.spawn(Command::shell(HOLDS_OPEN)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    server.kill();
    let (client, id) = (context.client(), session.id().clone());
    drop(session);
    let Err(error) = client.stop(&id).await else { return Err("it says that all is well".into()) };
    assert!(error.message().contains("not all of it is in the store: \"d\""), "{error}");
    let kept = error.message().split_once("(what was written is in ");
    let kept = kept.and_then(|(_, rest)| rest.split_once(')')).ok_or("it was not kept")?.0;
    assert_eq!(std::fs::read_to_string(kept)?, "precious\n");
    assert!(!error.message().contains("cannot mount"), "{error}");
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Stopped);
    // It was said once, and stays where it was said to be.
    server.restart()?;
    let options = ResumeOptions::default().manifest(manifest(server.port, "data", "")?);
    let session = client.resume_with(&id, options).await?;
    say(&session, "echo more > data/more").await?;
    drop(session);
    client.stop(&id).await?;
    assert_eq!(std::fs::read_to_string(kept)?, "precious\n");
    client.delete(&id).await?;
    Ok(())
}

async fn what_cannot_be_stored_is_said_when_its_session_is_deleted(context: Context) -> Outcome {
    let mut server = Server::start(Kind::Moto)?;
    let session = session_of(&context, &manifest(server.port, "data", "")?).await?;
    let _holder = session.spawn(Command::shell(HOLDS_OPEN)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    server.kill();
    let id = session.id().clone();
    let Err(error) = session.delete().await else { return Err("it says that all is well".into()) };
    assert!(error.message().contains("not all of it is in the store: \"d\""), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("removed all the same")), "{error:?}");
    assert!(context.client().inspect(&id).await.is_err(), "it is gone");
    Ok(())
}

/// A command that is over can have left something running, which holds files of a mount open.
async fn what_a_command_left_running_ends_before_its_mount(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("left"));
    let line = "{ echo written >&3; exec sleep 1000; } 3> data/d > /dev/null 2>&1 & \
                until [ -s data/d ]; do :; done";
    for is_deleted in [false, true] {
        let session = session_of(&context, &manifest(server.port, "data", &prefix)?).await?;
        say(&session, line).await?;
        let (client, id, begin) = (context.client(), session.id().clone(), Instant::now());
        match is_deleted {
            true => session.delete().await?,
            false => {
                drop(session);
                client.stop(&id).await?;
                client.delete(&id).await?;
            }
        }
        assert!(begin.elapsed() < DEADLINE / 2, "nobody is waited for who is to end anyway");
    }
    let session = session_of(&context, &manifest(server.port, "data", &prefix)?).await?;
    assert_eq!(say(&session, "cat data/d").await?, "written\n");
    Ok(session.delete().await?)
}

async fn a_folder_of_the_host_is_left_as_it_was(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Err(skip("the workspace of its sessions is no folder of the host"));
    }
    let server = shared(Kind::Moto)?;
    let folder = tempfile::tempdir()?;
    let mut manifest = manifest(server.port, "data", &fresh("folder"))?;
    manifest.root = folder.path().canonicalize()?.display().to_string();
    let names = || -> std::io::Result<Vec<_>> {
        std::fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name())).collect()
    };
    let session = session_of(&context, &manifest).await?;
    assert_eq!(names()?, ["data"]);
    say(&session, "echo one > data/a").await?;
    session.delete().await?;
    assert_eq!(names()?, [""; 0]);
    // And where nobody was there to clear it away.
    let _home = sweeping().await;
    let session = session_of(&context, &manifest).await?;
    let (client, id) = (context.client(), session.id().clone());
    drop(session);
    let guest = client.inspect(&id).await?.guest_pid.ok_or("no process of this host")?;
    let warden = Pid::from_raw(i32::try_from(parent(parent(guest)?)?)?).ok_or("no process")?;
    kill_process(warden, Signal::KILL)?;
    let begin = Instant::now();
    while client.inspect(&id).await.is_ok() {
        assert!(begin.elapsed() < DEADLINE, "it is never swept");
        client.sweep_with(SweepOptions::default().ended()).await?;
    }
    assert_eq!(names()?, [""; 0]);
    Ok(())
}
