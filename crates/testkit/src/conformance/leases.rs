//! Sessions that end by themselves.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bastide::model::Manifest;
use bastide::{
    Command, Condition, CreateOptions, ErrorKind, ExpiryAction, LeaseChange, LeaseOptions, Session,
    SessionStatus,
};

use super::lifetime::until;
use crate::suite::{Context, Outcome, Trial, TrialError, block_sweeps, say, skip, sweeping};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    expires_with_nobody_there_and_begins_anew_when_resumed,
    leaves_nothing_if_its_lease_says_so,
    keeps_what_is_closed_though_its_lease_would_delete_it,
    lasts_as_long_as_somebody_says,
    is_not_idle_while_anything_runs_in_it,
    many_expire_within_a_second_of_their_time,
    refuses_leases_that_make_no_sense,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(40);

async fn make(context: &Context, lease: LeaseOptions) -> Result<Session, TrialError> {
    if context.backend.leases().is_none() {
        return Err(skip("nobody on this host keeps the session alive"));
    }
    let options = CreateOptions::default().detached().lease(lease);
    Ok(context.client().create(&Manifest::default(), options).await?)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn expires_with_nobody_there_and_begins_anew_when_resumed(context: Context) -> Outcome {
    let _home = sweeping().await;
    let client = context.client();
    let session = make(&context, LeaseOptions::default().ttl(millis(3000))).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    let lease = client.inspect(&id).await?.lease.ok_or("it has no lease")?;
    assert!(lease.remaining.is_some_and(|left| left <= millis(3000)), "{lease:?}");
    drop(session);
    until(&client, &id, Some(SessionStatus::Expired), SOON).await?;
    let info = client.inspect(&id).await?;
    assert_eq!(info.status.as_str(), "expired");
    assert_eq!(info.end.map(|end| end.reason).as_deref(), Some("expired"));
    let error = client.attach(&id).await.err().ok_or("it can be attached to")?;
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(error.condition(), Some(&Condition::SessionExpired(id.to_string())));
    // It was stopped on purpose, so it is not swept with what ended by accident.
    let swept = client.sweep_with(bastide::SweepOptions::default().ended()).await?;
    assert!(swept.removed.iter().all(|one| one.id.as_ref() != Some(&id)), "{swept:?}");

    let session = client.resume(&id).await?;
    if context.backend.keeps_files() {
        assert_eq!(say(&session, "cat file").await?, "kept\n");
    }
    let left = session.lease().status().await?.remaining.ok_or("its lease did not begin anew")?;
    assert!(left > Duration::ZERO && left <= millis(3000), "{left:?}");
    drop(session);
    until(&client, &id, Some(SessionStatus::Expired), SOON).await?;
    // Stopping what expired says that it is stopped, as always.
    client.stop(&id).await?;
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Stopped);
    assert!(client.delete(&id).await?);
    Ok(())
}

async fn leaves_nothing_if_its_lease_says_so(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    let lease = LeaseOptions::default().ttl(millis(1500)).then(ExpiryAction::Delete);
    let session = make(&context, lease).await?;
    let id = session.id().clone();
    drop(session);
    until(&client, &id, None, SOON).await?;
    let sessions = context.backend.home().join("sessions");
    assert!(!sessions.join(id.as_str()).exists());
    // Its warden may still be removing its files, under another name.
    let is_its = |name: std::ffi::OsString| name.to_string_lossy().contains(id.as_str());
    let deadline = Instant::now() + SOON;
    while std::fs::read_dir(&sessions)?.flatten().any(|entry| is_its(entry.file_name())) {
        assert!(Instant::now() < deadline, "its files are never removed");
        tokio::time::sleep(millis(10)).await;
    }
    assert!(!client.delete(&id).await?, "nothing is left to delete");
    // The same name can be had again.
    let options = CreateOptions::default().id(id);
    let again = client.create(&Manifest::default(), options).await?;
    Ok(again.delete().await?)
}

/// Whoever closes a session wants its files kept, however long that takes.
async fn keeps_what_is_closed_though_its_lease_would_delete_it(context: Context) -> Outcome {
    let client = context.client();
    let lease = LeaseOptions::default().ttl(millis(4000)).then(ExpiryAction::Delete);
    let session = make(&context, lease).await?;
    let id = session.id().clone();
    session.compat().register_pre_stop_hook(|| {
        Box::pin(async {
            tokio::time::sleep(millis(6000)).await;
            Ok(())
        })
    });
    session.close().await?;
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Stopped);
    assert!(client.delete(&id).await?);
    Ok(())
}

async fn lasts_as_long_as_somebody_says(context: Context) -> Outcome {
    let session = make(&context, LeaseOptions::default().ttl(SOON * 20)).await?;
    let client = context.client();
    let left = session.lease().extend(SOON * 10).await?.remaining.ok_or("no time is left")?;
    assert!(left <= SOON * 10);
    let change = LeaseChange::default().at_least(millis(1));
    let left = session.lease().change(change).await?.remaining.ok_or("no time is left")?;
    assert!(left > SOON, "it was not shortened: {left:?}");
    let lease = session.lease().change(LeaseChange::default().forget()).await?;
    assert!(!lease.is_limited(), "{lease:?}");
    assert_eq!(client.inspect(session.id()).await?.lease, None);
    // Any client can, also of a session that had none.
    let other = client.attach(session.id()).await?;
    other.lease().extend(millis(200)).await?;
    until(&client, session.id(), Some(SessionStatus::Expired), SOON).await?;
    let error = session.exec(Command::shell("true")).await.err().ok_or("it runs commands")?;
    let error = session.explain(error).await;
    assert_eq!(
        error.condition(),
        Some(&Condition::SessionExpired(session.id().to_string())),
        "{error}"
    );
    Ok(session.delete().await?)
}

async fn is_not_idle_while_anything_runs_in_it(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    let session = make(&context, LeaseOptions::default().idle(millis(700))).await?;
    let begun = Instant::now();
    // In the background of a command that is over: it descended from one all the same.
    say(&session, "sleep 4 >/dev/null 2>&1 & echo begun").await?;
    let id = session.id().clone();
    drop(session);
    until(&client, &id, Some(SessionStatus::Expired), SOON).await?;
    let lasted = begun.elapsed();
    assert!(lasted >= millis(4600), "it ended after {lasted:?}, while something ran");
    assert!(client.delete(&id).await?);

    // A call that lasts is no idleness either, nor is one that has just ended.
    let session = make(&context, LeaseOptions::default().idle(millis(2000))).await?;
    let begun = Instant::now();
    session.exec(Command::shell("sleep 1")).await?;
    until(&client, session.id(), Some(SessionStatus::Expired), SOON).await?;
    assert!(begun.elapsed() >= millis(2900), "{:?}", begun.elapsed());
    Ok(session.delete().await?)
}

async fn many_expire_within_a_second_of_their_time(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    // A machine that does much else is late with everything.
    let (count, late) = if context.full { (50, 1000) } else { (5, 10_000) };
    let mut due = Vec::new();
    for _ in 0..count {
        let before = SystemTime::now();
        let session = make(&context, LeaseOptions::default().ttl(millis(4000))).await?;
        due.push((session.id().clone(), before, SystemTime::now()));
    }
    for (id, before, after) in due {
        until(&client, &id, Some(SessionStatus::Expired), SOON).await?;
        let at = client.inspect(&id).await?.end.and_then(|end| end.at_ms);
        let at = UNIX_EPOCH + millis(at.ok_or("nobody noted when")?);
        let earliest = before + millis(4000);
        let latest = after + millis(4000 + late);
        assert!(at >= earliest && at <= latest, "{at:?} is not in {earliest:?}..{latest:?}");
        assert!(client.delete(&id).await?);
    }
    Ok(())
}

async fn refuses_leases_that_make_no_sense(context: Context) -> Outcome {
    let zero = LeaseOptions::default().ttl(Duration::ZERO);
    let options = CreateOptions::default().lease(zero);
    let made = context.client().create(&Manifest::default(), options).await;
    assert_eq!(made.map(drop).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
    if context.backend.leases().is_some() {
        return Ok(());
    }
    let options = CreateOptions::default().lease(LeaseOptions::default().ttl(SOON));
    let made = context.client().create(&Manifest::default(), options).await;
    assert_eq!(made.map(drop).map_err(|error| error.kind()), Err(ErrorKind::Unsupported));
    Ok(())
}
