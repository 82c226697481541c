//! Folders that others work in while sessions use them.

use std::fs;
use std::path::Path;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind, OutputEvent, Session};

use super::journaled;
use crate::suite::{Context, Outcome, TrialError, say, sh, skip};

/// A folder of somebody, and a session that uses it in place.
struct InPlace {
    folder: tempfile::TempDir,
    session: Session,
}

impl InPlace {
    async fn new(context: &Context, has_journal: bool) -> Result<Self, TrialError> {
        if !context.backend.has_host_files() {
            return Err(skip("no folder of the host is used in place"));
        }
        let folder = tempfile::tempdir()?;
        let root = folder.path().display().to_string();
        let manifest = Manifest { root, ..Manifest::default() };
        let session = match has_journal {
            true => journaled(context, &manifest).await?,
            false => context.client().create(&manifest, CreateOptions::default()).await?,
        };
        Ok(Self { folder, session })
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        fs::write(self.folder.path().join(name), text)
    }

    fn read(&self, name: &str) -> std::io::Result<String> {
        fs::read_to_string(self.folder.path().join(name))
    }
}

/// A refusal because of somebody else's files.
fn conflict<T>(result: bastide::Result<T>, names: &str) -> Result<(), TrialError> {
    let error = result.err().ok_or_else(|| format!("nothing was said about {names}"))?;
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.message().contains(names), "{error}");
    Ok(())
}

pub(super) async fn without_a_journal_nobody_knows_whose_changes_they_are(
    context: Context,
) -> Outcome {
    let place = InPlace::new(&context, false).await?;
    let session = &place.session;
    place.write("file", "1\n")?;
    session.journal().checkpoint(Some("first")).await?;
    say(session, "echo 2 > file").await?;
    // It is not what it was, and is not said to be.
    conflict(session.journal().undo(1).await, "file")?;
    assert_eq!(place.read("file")?, "2\n");
    // An edit between two checkpoints is somebody's, too.
    place.write("file", "of the owner\n")?;
    session.journal().checkpoint(Some("second")).await?;
    conflict(session.journal().undo(1).await, "file")?;
    assert_eq!(place.read("file")?, "of the owner\n");
    // What a point has can be asked for by its name, and comes back.
    session.journal().restore_path("file", "first").await?;
    assert_eq!(place.read("file")?, "1\n");
    session.journal().undo(1).await?;
    assert_eq!(place.read("file")?, "of the owner\n");
    place.write("file", "not kept\n")?;
    conflict(session.journal().restore_path("file", "first").await, "file")?;
    assert_eq!(place.read("file")?, "not kept\n");
    Ok(place.session.delete().await?)
}

pub(super) async fn restores_over_no_edit_that_no_point_was_asked_for(context: Context) -> Outcome {
    let place = InPlace::new(&context, true).await?;
    let session = &place.session;
    say(session, "echo 1 > file; echo 1 > other").await?;
    place.write("file", "of the owner\n")?;
    // The next command's point has it, but nobody asked for that.
    say(session, "echo 2 > other").await?;
    conflict(session.journal().restore_path("file", "1").await, "file")?;
    assert_eq!(place.read("file")?, "of the owner\n");
    session.journal().restore_path("other", "1").await?;
    assert_eq!(place.read("other")?, "1\n");
    session.journal().checkpoint(None).await?;
    session.journal().restore_path("file", "1").await?;
    assert_eq!(place.read("file")?, "1\n");
    Ok(place.session.delete().await?)
}

pub(super) async fn ends_nothing_where_nothing_is_undone(context: Context) -> Outcome {
    let place = InPlace::new(&context, true).await?;
    let session = &place.session;
    say(session, "echo 1 > file").await?;
    place.write("file", "of the owner\n")?;
    let sleeper = session.launch(sh("sleep 7140")).await?;
    conflict(session.journal().undo(2).await, "file")?;
    conflict(session.journal().restore_path("file", "1").await, "file")?;
    let is_alive = async || -> Result<bool, TrialError> {
        let all = session.processes().await?;
        Ok(all.iter().any(|one| one.id == sleeper && one.exit.is_none()))
    };
    assert!(is_alive().await?, "a refusal ended a process");
    // What runs by itself can be taken back while it runs: all that changed since is its own.
    session.journal().undo(1).await?;
    assert!(!is_alive().await?, "it outlived what it did");
    Ok(place.session.delete().await?)
}

pub(super) async fn takes_back_a_command_that_an_undo_ended(context: Context) -> Outcome {
    let place = InPlace::new(&context, true).await?;
    let session = &place.session;
    say(session, "echo 1 > file").await?;
    let mut running =
        session.spawn(sh("echo 2 > file; echo made > made; echo ready; exec sleep 7141")).await?;
    running.next().await?;
    session.journal().undo(1).await?;
    assert_eq!(place.read("file")?, "1\n");
    // Its end is heard now, and says nothing about what it had done.
    let ended = loop {
        if let OutputEvent::Exit(exit) = running.next().await? {
            break exit;
        }
    };
    assert_ne!(ended.code, 0);
    let log = context.client().log(session.id())?;
    let point = log.points.last().ok_or("no point")?;
    assert_eq!(point.exit, Some(ended.code));
    assert_eq!((point.changes.added, point.changes.changed), (1, 1), "{point:?}");
    session.journal().redo().await?;
    assert_eq!(place.read("file")?, "2\n");
    session.journal().undo(1).await?;
    assert_eq!(place.read("file")?, "1\n");
    assert!(place.read("made").is_err(), "what it made is gone, too");
    Ok(place.session.delete().await?)
}

/// Writes one file after the other until it is told to stop, and says how many.
fn busy(folder: &Path, is_over: &std::sync::atomic::AtomicBool) -> std::io::Result<usize> {
    let mut count = 0;
    while !is_over.load(std::sync::atomic::Ordering::Acquire) && count < 20_000 {
        fs::write(folder.join(format!("mine{count}")), "of the owner")?;
        count += 1;
    }
    Ok(count)
}

pub(super) async fn loses_nothing_that_comes_while_it_goes_back(context: Context) -> Outcome {
    let place = InPlace::new(&context, true).await?;
    let session = &place.session;
    // What takes a while to write.
    say(session, "head -c 30000000 /dev/urandom > big").await?;
    say(session, "rm big").await?;
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (folder, flag) = (place.folder.path().to_owned(), std::sync::Arc::clone(&is_over));
    let owner = tokio::task::spawn_blocking(move || busy(&folder, &flag));
    let undone = session.journal().undo(1).await;
    is_over.store(true, std::sync::atomic::Ordering::Release);
    let count = owner.await??;
    for number in 0..count {
        assert_eq!(place.read(&format!("mine{number}"))?, "of the owner", "{undone:?}");
    }
    // It went back, or says that it could not; then it can now.
    if let Err(error) = undone {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        session.journal().undo(1).await?;
    }
    assert_eq!(fs::metadata(place.folder.path().join("big"))?.len(), 30_000_000);
    let hidden = fs::read_dir(place.folder.path())?.filter_map(Result::ok);
    let hidden = hidden.filter(|one| one.file_name().as_encoded_bytes().starts_with(b"."));
    assert_eq!(hidden.count(), 0, "nothing of ours is left in the folder");
    Ok(place.session.delete().await?)
}

/// How many points a session has.
fn count(client: &Client, session: &Session) -> Result<usize, TrialError> {
    Ok(client.log(session.id())?.points.len())
}

pub(super) async fn leaves_history_alone_where_nothing_happened(context: Context) -> Outcome {
    let client = context.client();
    let session = journaled(&context, &Manifest::default()).await?;
    say(&session, "echo 1 > file").await?;
    say(&session, "echo 2 > file").await?;
    session.journal().undo(1).await?;
    // A fork is another session's matter.
    let fork = client.fork(&session, 1, None).await?.pop().ok_or("there is no fork")?;
    assert_eq!(say(&fork, "cat file").await?, "1\n");
    session.journal().redo().await?;
    assert_eq!(&session.files().read("file").await?[..], b"2\n");
    assert_eq!(count(&client, &session)?, 2);
    // What was not started changed nothing.
    let refused = session.exec(sh("true").user("no-such-user")).await;
    assert!(refused.is_err(), "a user there is not ran something");
    assert_eq!(count(&client, &session)?, 2);
    fork.delete().await?;
    Ok(session.delete().await?)
}
