//! Several at a time, each as if it were alone.

use bastide::model::Manifest;
use bastide::{ErrorKind, PointKind};
use futures::future::join_all;

use super::{Fingerprinter, journaled};
use crate::suite::{Context, Outcome, TrialError, say, sh};

/// What may become of something that others do not leave room for: one clear refusal.
fn allowed<T>(what: &str, result: bastide::Result<T>) -> Result<Option<T>, TrialError> {
    let is_clear = |error: &bastide::Error| {
        let says_what_to_do = error.hint().is_some() || error.message().contains("try again");
        matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) && says_what_to_do
    };
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if is_clear(&error) => Ok(None),
        Err(error) => Err(format!("{what}: {error}").into()),
    }
}

pub(super) async fn several_at_once_leave_one_history(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let client = context.client();
    let session = journaled(&context, &Manifest::default()).await?;
    let empty = eye.fingerprint_of(&session).await?;
    for round in 0..context.count(20) {
        let line = |number: usize| format!("echo {number} > r{round}n{number}; mkdir -p d{number}");
        let commands = join_all((0..4).map(|number| session.exec(sh(&line(number)))));
        let checkpoints = join_all((0..2).map(|_| session.journal().checkpoint(None)));
        let forks = client.fork(&session, 1, None);
        let (commands, checkpoints, forks, undone, shown) = tokio::join!(
            commands,
            checkpoints,
            forks,
            session.journal().undo(1),
            session.journal().diff(Some("0.."), None)
        );
        for command in commands {
            allowed("a command", command)?;
        }
        for checkpoint in checkpoints {
            allowed("a checkpoint", checkpoint)?;
        }
        for fork in allowed("a fork", forks)?.unwrap_or_default() {
            fork.delete().await?;
        }
        allowed("an undo", undone)?;
        allowed("a diff", shown)?;
        let log = client.log(session.id())?;
        let numbers: Vec<u64> = log.points.iter().map(|point| point.number).collect();
        assert!(numbers.is_sorted_by(|one, two| one < two), "round {round}: {numbers:?}");
        // The journal goes on from what the workspace is.
        say(&session, &format!("echo {round} > last")).await?;
        session.journal().undo(1).await?;
        session.journal().redo().await?;
        assert_eq!(say(&session, "cat last").await?, format!("{round}\n"));
    }
    let log = client.log(session.id())?;
    let is_step = |point: &&bastide::Point| point.kind == PointKind::Command && !point.aside;
    let steps = log.points.iter().take(log.applied).filter(is_step).count();
    session.journal().undo(steps).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, empty, "everything can be taken back");
    Ok(session.delete().await?)
}
