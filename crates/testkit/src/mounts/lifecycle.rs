//! Mounting, using and unmounting, whatever dies meanwhile.

use std::fs;
use std::time::Instant;

use bastide::Session;
use bastide::backend::{HostMount, HostMountState};
use bastide::events::{AuditOptions, EventOptions, audit_folder};
use bastide::model::Manifest;
use bastide::{Command, CreateOptions};

use super::servers::{DEADLINE, Kind, Server, request, shared};
use super::{LEAVE, Mounting, fresh};
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    mounts_reads_writes_lists_and_unmounts_s3,
    mounts_reads_writes_lists_and_unmounts_another_s3,
    mounts_reads_writes_lists_and_unmounts_azure_blob,
    mounts_reads_writes_lists_and_unmounts_gcs,
    a_program_that_is_killed_is_replaced,
    a_program_that_keeps_dying_is_given_up_and_says_so,
    a_keeper_that_is_killed_hangs_nobody_and_can_be_followed,
    what_a_killed_keeper_could_not_store_is_said_and_kept,
    a_server_that_dies_gives_an_error_and_no_hang,
    deleting_a_session_leaves_every_object,
    a_mount_ends_with_its_session_and_leaves_no_process,
    unmounting_goes_by_the_mount_not_by_its_path,
    changes_to_a_store_are_on_record,
];

/// Writes to a file of the mount and keeps it open. No descriptor of it is closed after the write, which would store it.
pub(super) const HOLDS_OPEN: &str = "{ echo precious; exec sleep 1000; } | cat > data/d & \
                                     until [ -s data/d ]; do :; done; echo > begun; wait";

async fn mounts_reads_writes_lists_and_unmounts_s3(context: Context) -> Outcome {
    use_store(&context, Kind::Moto).await
}

async fn mounts_reads_writes_lists_and_unmounts_another_s3(context: Context) -> Outcome {
    use_store(&context, Kind::S3rver).await
}

async fn mounts_reads_writes_lists_and_unmounts_azure_blob(context: Context) -> Outcome {
    use_store(&context, Kind::Azurite).await
}

async fn mounts_reads_writes_lists_and_unmounts_gcs(context: Context) -> Outcome {
    use_store(&context, Kind::Gcs).await
}

async fn use_store(context: &Context, kind: Kind) -> Outcome {
    let (server, prefix) = (shared(kind)?, fresh("use"));
    let session = context.session().await?;
    let mounting = Mounting::new(context, &session)?;
    assert!(mounting.mounts.status(&mounting.folder).await?.is_empty());
    let store = server.store(&prefix, "s3cr3t");
    mounting.mount("in/data", server.provider(), store.clone()).await?;
    // Once more is no other mount.
    mounting.mount("in/data", server.provider(), store.clone()).await?;
    let said = say(
        &session,
        "cd in/data && echo hello > a && mkdir d && seq 100000 > d/b && mv a c && echo more >> c && \
         cat c && ls -R && tail -n 1 d/b && rm d/b && df . > /dev/null",
    );
    let said = said.await?;
    assert_eq!(said, "hello\nmore\n.:\nc\nd\n\n./d:\nb\n100000\n");
    let status = mounting.mounts.status(&mounting.folder).await?;
    assert_eq!(status.len(), 1, "{status:?}");
    assert_eq!(
        (status[0].path.as_str(), status[0].state),
        (mounting.at("in/data").as_str(), HostMountState::Mounted)
    );
    assert_eq!((status[0].provider.as_str(), status[0].read_only), (server.provider(), false));
    assert!(status[0].writes > 0 && status[0].since_ms > 0, "{status:?}");
    mounting.unmount("in/data").await?;
    // And once more: there is nothing any more.
    mounting.unmount("in/data").await?;
    assert!(mounting.mounts.status(&mounting.folder).await?.is_empty());
    assert_eq!(say(&session, "ls -A").await?, "", "what was made for the mount is gone with it");
    say(&session, "mkdir there").await?;
    let read_only = HostMount::new(mounting.at("there"), server.provider(), store);
    mounting.mount_as(read_only).await?;
    let said = say(&session, "cat there/c; touch there/x 2>/dev/null || echo refused").await?;
    assert_eq!(said, "hello\nmore\nrefused\n");
    mounting.unmount("there").await?;
    assert_eq!(say(&session, "ls -A").await?, "there\n", "what was there before stays");
    Ok(session.delete().await?)
}

/// Processes of the host that answer for the mounts of a session.
pub(super) fn programs(session: &Session) -> Vec<i32> {
    let processes = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
    };
    let words = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).into_owned()
    };
    let parent = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<i32>().ok()
    };
    let is_keeper = |pid: i32| {
        let words = words(pid);
        words.starts_with("bastide-mounts\0keep\0") && words.contains(session.id().as_str())
    };
    let keepers: Vec<_> = processes().filter(|pid| is_keeper(*pid)).collect();
    let is_program = |pid: &i32| {
        words(*pid) == "bastide-mount\0" && parent(*pid).is_some_and(|pid| keepers.contains(&pid))
    };
    processes().filter(is_program).chain(keepers.clone()).collect()
}

/// Kills the program of the only mount of a session, which is not its keeper, and waits until it is gone.
async fn kill_program(session: &Session) -> Result<bool, TrialError> {
    let found = programs(session);
    let [program, _keeper] = found[..] else { return Ok(false) };
    let pid = rustix::process::Pid::from_raw(program).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    let begin = Instant::now();
    while programs(session).contains(&program) {
        assert!(begin.elapsed() < DEADLINE, "it does not die");
        tokio::task::yield_now().await;
    }
    Ok(true)
}

async fn a_program_that_is_killed_is_replaced(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("killed"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    mounting.mount("data", server.provider(), server.store(&prefix, "s3cr3t")).await?;
    say(&session, "echo kept > data/a; mkdir data/d").await?;
    assert!(kill_program(&session).await?, "{:?}", programs(&session));
    // Whoever comes meanwhile waits for the next one.
    assert_eq!(
        say(&session, "cat data/a && echo new > data/d/b && ls data").await?,
        "kept\na\nd\n"
    );
    let status = mounting.mounts.status(&mounting.folder).await?;
    assert_eq!(status[0].state, HostMountState::Mounted);
    mounting.unmount("data").await?;
    Ok(session.delete().await?)
}

async fn a_program_that_keeps_dying_is_given_up_and_says_so(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("dying"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let store = server.store(&prefix, "s3cr3t");
    mounting.mount("data", server.provider(), store.clone()).await?;
    say(&session, "echo kept > data/a").await?;
    let begin = Instant::now();
    while mounting.mounts.status(&mounting.folder).await?[0].state != HostMountState::Lost {
        assert!(begin.elapsed() < DEADLINE, "it is never given up");
        kill_program(&session).await?;
    }
    let said = say(&session, "cat data/a 2>&1 || echo refused").await?;
    assert!(said.ends_with("refused\n"), "{said}");
    // Mounting it again is all there is to do.
    mounting.mount("data", server.provider(), store).await?;
    assert_eq!(say(&session, "cat data/a").await?, "kept\n");
    Ok(session.delete().await?)
}

async fn a_keeper_that_is_killed_hangs_nobody_and_can_be_followed(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("kept"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let store = server.store(&prefix, "s3cr3t");
    mounting.mount("data", server.provider(), store.clone()).await?;
    say(&session, "echo kept > data/a").await?;
    let keeper = programs(&session).pop().and_then(rustix::process::Pid::from_raw);
    let keeper = keeper.ok_or("there is no keeper")?;
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL)?;
    // Its program ends by itself.
    say(&session, "until cat data/a 2>&1 | grep -q 'not connected'; do :; done").await?;
    assert!(mounting.mounts.status(&mounting.folder).await?.is_empty());
    // Who says that it is unmounted has seen to it, although nobody answers for it any more.
    mounting.unmount("data").await?;
    assert_eq!(say(&session, "grep -c fuse /proc/self/mountinfo; ls -A data").await?, "0\n");
    mounting.mount("data", server.provider(), store).await?;
    assert_eq!(say(&session, "cat data/a").await?, "kept\n");
    assert_eq!(say(&session, "grep -c fuse /proc/self/mountinfo").await?, "1\n");
    mounting.unmount("data").await?;
    Ok(session.delete().await?)
}

async fn what_a_killed_keeper_could_not_store_is_said_and_kept(context: Context) -> Outcome {
    let mut server = Server::start(Kind::Moto)?;
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let mut store = server.store("", "s3cr3t");
    store["timeout_ms"] = 1000.into();
    mounting.mount("data", server.provider(), store).await?;
    let _holder = session.spawn(Command::shell(HOLDS_OPEN)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    server.kill();
    let keeper = programs(&session).pop().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(keeper.ok_or("no keeper")?, rustix::process::Signal::KILL)?;
    let unmounted = mounting.mounts.unmount(&mounting.folder, &mounting.at("data"), LEAVE).await;
    let Err(error) = unmounted else { return Err("it says that all is well".into()) };
    let folder = error.message().split_once("what could not be stored is in ");
    let folder = folder.ok_or_else(|| error.to_string())?.1;
    let kept = fs::read_dir(folder)?.next().ok_or("nothing was kept")??.path();
    assert_eq!(fs::read_to_string(kept)?, "precious\n");
    assert_eq!(say(&session, "grep -c fuse /proc/self/mountinfo; true").await?, "0\n");
    mounting.unmount("data").await?;
    Ok(session.delete().await?)
}

async fn a_server_that_dies_gives_an_error_and_no_hang(context: Context) -> Outcome {
    let mut server = Server::start(Kind::Moto)?;
    let body = vec![7; 64 << 20];
    let (status, _) = request(server.port, "PUT /data/big HTTP/1.1", &body)?;
    assert!(status.contains("200"), "{status}");
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let mut store = server.store("", "s3cr3t");
    store["timeout_ms"] = 2000.into();
    mounting.mount("data", server.provider(), store).await?;
    let line = "exec 3< data/big && head -c 1 <&3 > first && echo > begun && \
                until [ -e killed ]; do :; done; cat <&3 2>&1 > /dev/null; echo $?";
    let reader = session.spawn(Command::shell(line)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    server.kill();
    say(&session, "echo > killed").await?;
    let output = tokio::time::timeout(DEADLINE, reader.output(1 << 16)).await??;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Input/output error") && said.ends_with("1\n"), "{said}");
    let line = "dd if=/dev/zero of=data/new bs=1 count=1 conv=fsync 2>/dev/null";
    assert_ne!(session.exec(sh(line)).await?.exit.code, 0, "nothing is stored that was not");
    Ok(session.delete().await?)
}

async fn deleting_a_session_leaves_every_object(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("deleted"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let store = server.store(&prefix, "s3cr3t");
    mounting.mount("data", server.provider(), store.clone()).await?;
    say(&session, "mkdir -p data/d/e; for i in 1 2 3; do echo $i > data/d/e/$i; done").await?;
    let line = "exec 3> data/open; echo written >&3; echo > begun; exec sleep 1000";
    let _holder = session.spawn(Command::shell(line)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    session.delete().await?;
    let other = context.session().await?;
    let mounting = Mounting::new(&context, &other)?;
    mounting.mount("data", server.provider(), store).await?;
    let said = say(&other, "cat data/d/e/* && cat data/open").await?;
    assert_eq!(said, "1\n2\n3\nwritten\n", "what was open is stored as its process ends");
    Ok(other.delete().await?)
}

async fn a_mount_ends_with_its_session_and_leaves_no_process(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("ended"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    assert_eq!(programs(&session), [0; 0], "nobody is there before the first mount");
    mounting.mount("data", server.provider(), server.store(&prefix, "s3cr3t")).await?;
    let found = programs(&session);
    assert_eq!(found.len(), 2, "{found:?}");
    session.delete().await?;
    for pid in found {
        let gone = !fs::read(format!("/proc/{pid}/cmdline"))
            .unwrap_or_default()
            .starts_with(b"bastide-mount");
        assert!(gone, "{pid} is still there");
    }
    Ok(())
}

async fn unmounting_goes_by_the_mount_not_by_its_path(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("moved"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    mounting.mount("a/b/data", server.provider(), server.store(&prefix, "s3cr3t")).await?;
    // A command moves the folder above, and puts a link to somebody else's folder in its place.
    say(&session, "echo x > a/b/data/x && mv a moved && ln -s /tmp a && mkdir -p /tmp/b/data")
        .await?;
    mounting.unmount("a/b/data").await?;
    let said =
        say(&session, "grep -c fuse /proc/self/mountinfo; ls -A moved; ls -A /tmp/b").await?;
    assert_eq!(said, "0\ndata\n", "what was made is gone, and what the link leads to is not");
    Ok(session.delete().await?)
}

async fn changes_to_a_store_are_on_record(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("recorded"));
    let events = EventOptions::new().audit(AuditOptions::default());
    let client = context.client().with_events(events);
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let id = session.id().clone();
    let mounting = Mounting::new(&context, &session)?;
    mounting.mount("data", server.provider(), server.store(&prefix, "s3cr3t")).await?;
    say(&session, "cd data && echo 12345 > a && mv a b && mkdir d && rmdir d && rm b").await?;
    let line = "exec 3> data/last; echo written >&3; echo > begun; exec sleep 1000";
    let _holder = session.spawn(Command::shell(line)).await?;
    say(&session, "until [ -e begun ]; do :; done").await?;
    session.delete().await?;
    let mut found = Vec::new();
    for entry in fs::read_dir(audit_folder(context.backend.home(), &id))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            for line in fs::read_to_string(path)?.lines() {
                let record: serde_json::Value = serde_json::from_str(line)?;
                if record["kind"] == "mount" {
                    let text = |key: &str| record["data"][key].as_str().unwrap_or("-").to_owned();
                    found.push(format!(
                        "{} {} {} {}",
                        text("op"),
                        text("path"),
                        text("to"),
                        text("outcome")
                    ));
                }
            }
        }
    }
    // A shell that copies the descriptor of a new file closes it once before it writes.
    found.dedup();
    let expected = [
        "write a - ok",
        "rename a b ok",
        "mkdir d - ok",
        "rmdir d - ok",
        "delete b - ok",
        "write last - ok",
    ];
    assert_eq!(found, expected);
    Ok(())
}
