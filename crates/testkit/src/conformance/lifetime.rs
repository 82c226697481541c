//! Sessions that outlive their makers, and sessions that must not.

use std::time::{Duration, Instant};

use bastide::model::snapshot::SnapshotSpec;
use bastide::model::{Manifest, PosixPath};
use bastide::{
    Client, CreateOptions, ErrorKind, ResumeOptions, Session, SessionFolder, SessionId,
    SessionStatus, SnapshotChoice, SweepOptions,
};

use crate::suite::{Context, Outcome, Trial, TrialError, block_sweeps, running, say, sweeping};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    outlives_its_maker_and_is_found_again,
    ends_with_its_owner,
    stops_and_resumes_with_its_files,
    loses_nothing_that_could_not_be_saved,
    keeps_what_was_there_when_whoever_went_on_with_it_is_gone,
    t24_is_made_again_under_the_same_name_in_a_tight_loop,
    t25_is_deleted_from_every_state,
    is_deleted_while_it_is_made,
    notes_an_end_nobody_saw,
    has_one_name_for_one_session,
    sweeps_away_what_ended_and_nothing_else,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);

fn detached() -> CreateOptions {
    CreateOptions::default().detached()
}

async fn make(client: &Client, options: CreateOptions) -> bastide::Result<Session> {
    client.create(&Manifest::default(), options).await
}

/// Waits until a session is in a state, for so long; `None` is "gone".
pub(super) async fn until(
    client: &Client,
    id: &SessionId,
    want: Option<SessionStatus>,
    patience: Duration,
) -> Outcome {
    let deadline = Instant::now() + patience;
    loop {
        let found = match client.inspect(id).await {
            Ok(info) => Some(info.status),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        if found == want {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("session {id} is {found:?}, not {want:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn outlives_its_maker_and_is_found_again(context: Context) -> Outcome {
    let client = context.client();
    let mut options = detached();
    options.env = vec![("GREETING".to_owned(), "hello there".to_owned())];
    let session = make(&client, options).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    drop(session);

    // Another client, as another process would have it.
    let other = context.client();
    let found = other.list().await?.into_iter().find(|info| info.id == id);
    let found = found.ok_or("it is not listed")?;
    assert_eq!((found.status, found.tied_to_owner), (SessionStatus::Running, false));
    let session = other.attach(&id).await?;
    assert_eq!(session.receipt(), found.receipt.as_ref().ok_or("it has no receipt")?);
    assert_eq!(
        say(&session, "cat file; echo $GREETING; pwd").await?,
        format!("kept\nhello there\n{}\n", session.root())
    );
    session.delete().await?;
    assert!(!other.list().await?.iter().any(|info| info.id == id));
    let gone = other.attach(&id).await.map(drop).map_err(|error| error.kind());
    assert_eq!(gone, Err(ErrorKind::NotFound));
    Ok(())
}

async fn ends_with_its_owner(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    let id = session.id().clone();
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Running);
    // What a process that is killed does too: its end of the socket closes.
    drop(session);
    until(&client, &id, None, SOON).await
}

async fn stops_and_resumes_with_its_files(context: Context) -> Outcome {
    let _home = sweeping().await;
    let client = context.client();
    let session = make(&client, detached()).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file; (sleep 7401 >/dev/null 2>&1 &)").await?;
    client.stop(&id).await?;
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Stopped);
    client.stop(&id).await?;
    let attached = client.attach(&id).await.map(drop).map_err(|error| error.kind());
    assert_eq!(attached, Err(ErrorKind::Conflict));
    assert_eq!(
        client.sweep().await?.removed.iter().find(|swept| swept.id.as_ref() == Some(&id)),
        None
    );

    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    assert_eq!(running(&session, "^sleep 7401").await?, 0);
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Running);
    let again = client.resume(&id).await?;
    assert_eq!(say(&again, "cat file").await?, "kept\n", "one that runs is gone on with");
    Ok(session.delete().await?)
}

/// A machine may end with the process that started it; the session is older than both.
async fn keeps_what_was_there_when_whoever_went_on_with_it_is_gone(context: Context) -> Outcome {
    let _home = sweeping().await;
    let client = context.client();
    let session = make(&client, detached()).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    drop(session);
    client.stop(&id).await?;
    drop(client.resume_with(&id, ResumeOptions::default().tied()).await?);
    until(&client, &id, Some(SessionStatus::Ended), SOON).await?;
    let swept = client.sweep().await?;
    assert!(swept.removed.iter().all(|one| one.id.as_ref() != Some(&id)), "{swept:?}");
    let session = client.resume(&id).await?;
    if context.backend.keeps_files() {
        assert_eq!(say(&session, "cat file").await?, "kept\n");
    }
    Ok(session.delete().await?)
}

/// A file is where the folder of snapshots has to be. Stopping ends what keeps its files, and nothing else.
async fn loses_nothing_that_could_not_be_saved(context: Context) -> Outcome {
    let client = context.client();
    let folder = tempfile::tempdir()?;
    let snapshots = folder.path().join("snapshots");
    std::fs::write(&snapshots, "")?;
    let base_path = PosixPath::new(&snapshots.to_string_lossy());
    let snapshot = SnapshotChoice::Spec(SnapshotSpec::Local { base_path });
    let session = make(&client, detached().snapshot(snapshot)).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    drop(session);
    if client.stop(&id).await.is_ok() {
        return Err("it was saved where nothing can be".into());
    }
    std::fs::remove_file(&snapshots)?;
    let status = client.inspect(&id).await?.status;
    let again = match context.backend.keeps_files() {
        true => {
            assert_eq!(status, SessionStatus::Stopped);
            client.resume(&id).await?
        }
        false => {
            assert_eq!(status, SessionStatus::Running, "its files would have ended with it");
            client.attach(&id).await?
        }
    };
    assert_eq!(say(&again, "cat file").await?, "kept\n");
    Ok(again.delete().await?)
}

async fn t24_is_made_again_under_the_same_name_in_a_tight_loop(context: Context) -> Outcome {
    let client = context.client();
    let id = SessionId::random();
    for round in 0..context.count(200) {
        let mut options = if round % 2 == 0 { detached() } else { CreateOptions::default() };
        options.id = Some(id.clone());
        let session = make(&client, options).await?;
        assert_eq!(
            say(&session, "ls; echo here > file; cat file").await?,
            "here\n",
            "round {round}"
        );
        match round % 3 {
            0 => session.delete().await?,
            1 => drop(client.delete(&id).await?),
            // Somebody else's client, while this one still holds the session.
            _ => assert!(context.client().delete(&id).await?),
        }
        let gone = client.inspect(&id).await.map(drop).map_err(|error| error.kind());
        assert_eq!(gone, Err(ErrorKind::NotFound), "round {round}");
    }
    Ok(())
}

async fn t25_is_deleted_from_every_state(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    let running = make(&client, detached()).await?;
    assert!(client.delete(running.id()).await?, "running");

    let stopped = make(&client, detached()).await?;
    client.stop(stopped.id()).await?;
    assert!(client.delete(stopped.id()).await?, "stopped");
    assert!(!client.delete(stopped.id()).await?, "missing");
    client.delete(&SessionId::random()).await?;
    // Whoever still holds a session that somebody else deleted can delete it too.
    running.delete().await?;
    stopped.delete().await?;

    // All that is left of one whose making was interrupted at once.
    let interrupted = SessionId::random();
    drop(SessionFolder::make(context.backend.home(), interrupted.clone()).await?);
    assert!(client.delete(&interrupted).await?, "interrupted");
    assert!(!client.delete(&interrupted).await?);

    let mut manifest = Manifest::default();
    let unknown = bastide::model::Entry::file("x");
    manifest.entries.insert("a/b".to_owned(), unknown.clone());
    manifest.entries.insert("a".to_owned(), unknown);
    let failing = SessionId::random();
    let mut options = detached();
    options.id = Some(failing.clone());
    assert!(client.create(&manifest, options).await.is_err(), "a file cannot be a folder too");
    assert!(!client.delete(&failing).await?, "nothing is left of one that failed");
    Ok(())
}

/// The deletion comes at any moment of the making. Whoever wins, nothing is left.
async fn is_deleted_while_it_is_made(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    for round in 0..context.count(100) {
        let id = SessionId::random();
        let mut options = if round % 2 == 0 { detached() } else { CreateOptions::default() };
        options.id = Some(id.clone());
        let delete = async {
            // As soon as there is anything to delete, and a little later each time.
            let mut looks = 0;
            while looks <= round {
                looks += usize::from(client.inspect(&id).await.is_ok());
                tokio::task::yield_now().await;
            }
            client.delete(&id).await
        };
        let (made, deleted) = tokio::join!(make(&client, options), delete);
        assert!(deleted?, "round {round}");
        if let Err(error) = &made {
            let kind = error.kind();
            let expected =
                [ErrorKind::Cancelled, ErrorKind::AgentLost, ErrorKind::BackendLost, ErrorKind::Io];
            assert!(expected.contains(&kind), "round {round}: {error:?}");
        }
        let gone = client.inspect(&id).await.map(drop).map_err(|error| error.kind());
        assert_eq!(gone, Err(ErrorKind::NotFound), "round {round}");
    }
    Ok(())
}

/// Ends the guest of a session from outside, where that can be done.
fn kill_guest(pid: Option<u32>) -> Result<bool, TrialError> {
    let Some(pid) = pid else { return Ok(false) };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid)?).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    Ok(true)
}

async fn notes_an_end_nobody_saw(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    let session = make(&client, detached()).await?;
    let id = session.id().clone();
    drop(session);
    if !kill_guest(client.inspect(&id).await?.guest_pid)? {
        client.delete(&id).await?;
        return Ok(());
    }
    until(&client, &id, Some(SessionStatus::Ended), SOON).await?;
    let end = client.inspect(&id).await?.end.ok_or("no end was noted")?;
    assert_eq!((end.reason.as_str(), end.at_ms.is_some()), ("agent_lost", true), "{end:?}");
    let attached = client.attach(&id).await.map(drop).map_err(|error| error.kind());
    assert_eq!(attached, Err(ErrorKind::BackendLost));
    assert!(client.delete(&id).await?);
    Ok(())
}

async fn has_one_name_for_one_session(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    let mut options = detached();
    options.id = Some(session.id().clone());
    let second = make(&client, options).await.map(drop).map_err(|error| error.kind());
    assert_eq!(second, Err(ErrorKind::Conflict));
    assert_eq!(say(&session, "echo unharmed").await?, "unharmed\n");
    Ok(session.delete().await?)
}

async fn sweeps_away_what_ended_and_nothing_else(context: Context) -> Outcome {
    let _home = sweeping().await;
    let client = context.client();
    let (live, tied) = (make(&client, detached()).await?, context.session().await?);
    let ended = make(&client, detached()).await?;
    let id = ended.id().clone();
    drop(ended);
    if kill_guest(client.inspect(&id).await?.guest_pid)? {
        until(&client, &id, Some(SessionStatus::Ended), SOON).await?;
        let deadline = Instant::now() + SOON;
        // The warden that notes the end lives a moment longer.
        while client.inspect(&id).await.is_ok() {
            let kept = client.sweep().await?;
            assert!(kept.removed.iter().all(|swept| swept.id.as_ref() != Some(&id)), "{kept:?}");
            let options = SweepOptions::default().ended();
            let report = client.sweep_with(options).await?;
            assert_eq!(report.failed, [], "{report:?}");
            let touched: Vec<_> =
                report.removed.iter().filter_map(|swept| swept.id.as_ref()).collect();
            assert!(!touched.contains(&live.id()) && !touched.contains(&tied.id()), "{report:?}");
            assert!(Instant::now() < deadline, "it was not swept away");
        }
    }
    assert_eq!(say(&live, "echo here").await?, "here\n");
    assert_eq!(say(&tied, "echo here").await?, "here\n");
    tied.delete().await?;
    client.delete(&id).await?;
    Ok(live.delete().await?)
}
