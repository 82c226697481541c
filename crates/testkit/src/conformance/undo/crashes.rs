//! The end of everything, in the middle of something.

use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, JournalOptions, PointKind, Rung, Session, SessionId};
use rustix::process::{Pid, Signal, kill_process};

use super::{Fingerprinter, SOON};
use crate::suite::{Context, Outcome, TrialError, block_sweeps, say, skip};

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Guest,
    Warden,
}

/// The process of a session that is to be killed.
async fn find(client: &Client, id: &SessionId, victim: Victim) -> Result<Option<Pid>, TrialError> {
    let Some(guest) = client.inspect(id).await?.guest_pid else { return Ok(None) };
    let parent = |pid: u32| -> Result<u32, TrialError> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let rest = stat.rsplit_once(')').ok_or("no process")?.1;
        Ok(rest.split_whitespace().nth(1).ok_or("no parent")?.parse()?)
    };
    let pid = match victim {
        Victim::Guest => guest,
        // Its first process is the guest's parent, and the warden's child.
        Victim::Warden => parent(parent(guest)?)?,
    };
    Ok(Pid::from_raw(i32::try_from(pid)?))
}

/// Whether a process is there that has not ended.
fn is_alive(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()));
    let stat = stat.unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// Goes on with a session whose machine was killed.
async fn back(client: &Client, id: &SessionId) -> Result<Session, TrialError> {
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        match client.resume(id).await {
            Ok(session) => return Ok(session),
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Kills a process of a session in the middle of something, a little later each time.
async fn killed_in<T>(
    (client, session): (&Client, Session),
    round: usize,
    work: impl AsyncFnOnce(&Session) -> T,
) -> Result<(Session, T), TrialError> {
    let id = session.id().clone();
    let victim = if round.is_multiple_of(2) { Victim::Guest } else { Victim::Warden };
    let lost = "the guest is no process of this host";
    let guest = find(client, &id, Victim::Guest).await?.ok_or(lost)?;
    let pid = find(client, &id, victim).await?.ok_or(lost)?;
    let later = Duration::from_millis(u64::try_from(round * 7 % 60)?);
    let kill = tokio::spawn(async move {
        tokio::time::sleep(later).await;
        kill_process(pid, Signal::KILL)
    });
    let done = work(&session).await;
    // One that is gone already ended with the other.
    let _ = kill.await?;
    // It answers until it has ended.
    let deadline = tokio::time::Instant::now() + SOON;
    while is_alive(guest) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(session);
    Ok((back(client, &id).await?, done))
}

/// Half of the files change, and half of those in a folder go.
const CHANGE: &str = "for n in $(seq 1 2 100); do echo changed > top$n; rm d/f$n; done";

/// Whatever the guest or the warden does when it ends, the workspace is what it was before, or after.
pub(super) async fn is_before_or_after_when_its_processes_are_killed(context: Context) -> Outcome {
    let _unswept = block_sweeps().await;
    let eye = Fingerprinter::open()?;
    let client = context.client();
    let options =
        || CreateOptions::default().detached().journal(JournalOptions::default().commands());
    let mut session = client.create(&Manifest::default(), options()).await?;
    let id = session.id().clone();
    say(&session, "mkdir -p d; for n in $(seq 100); do echo $n > d/f$n; echo $n > top$n; done")
        .await?;
    if find(&client, &id, Victim::Guest).await?.is_none() {
        client.delete(&id).await?;
        return Err(skip("the guest is no process of this host"));
    }
    for round in 0..context.count(100) {
        let before = eye.fingerprint_of(&session).await?;
        say(&session, CHANGE).await?;
        let after = eye.fingerprint_of(&session).await?;
        let (resumed, undone) =
            killed_in((&client, session), round, async |session| session.journal().undo(1).await)
                .await?;
        session = resumed;
        let now = eye.fingerprint_of(&session).await?;
        assert!(now == before || now == after, "round {round}: neither of both ({undone:?})");
        // The journal is whole, and knows which of both it is.
        let log = client.log(&id)?;
        assert_eq!(log.applied == log.points.len(), now == after, "round {round}: {undone:?}");
        if now == after {
            session.journal().undo(1).await?;
            assert_eq!(eye.fingerprint_of(&session).await?, before, "round {round}");
        }
    }
    // What changes nothing changes nothing, and what takes something over does so or does not.
    let mut forks = client.fork(&session, 1, None).await?;
    let fork = forks.pop().ok_or("there is no fork")?;
    say(&fork, "echo fork > from-fork; rm d/f2").await?;
    for round in 0..context.count(100) {
        let before = eye.fingerprint_of(&session).await?;
        let (resumed, made) = killed_in((&client, session), round, async |session| {
            session.journal().checkpoint(None).await
        })
        .await?;
        assert_eq!(eye.fingerprint_of(&resumed).await?, before, "round {round}: {made:?}");
        let (resumed, forked) = killed_in((&client, resumed), round, async |session| {
            client.fork(session, 1, None).await
        })
        .await?;
        assert_eq!(eye.fingerprint_of(&resumed).await?, before, "round {round}");
        for fork in forked.unwrap_or_default() {
            let has_ids = fork.receipt().rung != Rung::Landlock;
            assert!(
                eye.fingerprint_of(&fork).await? == before || !has_ids,
                "round {round}: the fork"
            );
            client.delete(&fork.id().clone()).await?;
        }
        let (resumed, merged) = killed_in((&client, resumed), round, async |session| {
            session.journal().merge(&fork).await
        })
        .await?;
        session = resumed;
        let log = client.log(&id)?;
        let last = log.points.get(..log.applied).and_then(|points| points.last());
        let is_merged = last.is_some_and(|point| point.kind == PointKind::Merge);
        match is_merged {
            true => {
                assert_eq!(&session.files().read("from-fork").await?[..], b"fork\n");
                assert!(session.files().read("d/f2").await.is_err(), "round {round}: {merged:?}");
                session.journal().undo(1).await?;
            }
            false => assert!(merged.is_err(), "round {round}"),
        }
        assert_eq!(eye.fingerprint_of(&session).await?, before, "round {round}: {merged:?}");
    }
    client.delete(&fork.id().clone()).await?;
    drop(session);
    client.delete(&id).await?;
    Ok(())
}
