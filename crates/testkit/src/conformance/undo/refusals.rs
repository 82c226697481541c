//! What bad input gets, and how many points are kept.

use bastide::model::Manifest;
use bastide::{Command, CreateOptions, Error, ErrorKind, JournalOptions, Session};

use super::journaled;
use crate::suite::{Context, Outcome, TrialError, say};

/// An error that must be there, and what it is to say.
fn refused<T>(
    result: bastide::Result<T>,
    kind: ErrorKind,
    words: &[&str],
) -> Result<(), TrialError> {
    let error: Error = result.err().ok_or_else(|| format!("{words:?} was not refused"))?;
    let said = format!("{error} | {}", error.hint().unwrap_or_default());
    assert_eq!(error.kind(), kind, "{said}");
    assert!(error.hint().is_some(), "it says what to do: {said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
    Ok(())
}

pub(super) async fn says_what_is_wrong_with_a_point(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    refused(session.journal().undo(1).await, ErrorKind::NotFound, &["nothing to undo"])?;
    refused(session.journal().redo().await, ErrorKind::NotFound, &["nothing was undone"])?;
    refused(session.journal().diff(Some("1.."), None).await, ErrorKind::NotFound, &["no points"])?;
    say(&session, "echo 1 > one").await?;
    session.journal().checkpoint(Some("green")).await?;
    say(&session, "echo 2 > one").await?;
    session.journal().checkpoint(Some("red")).await?;
    refused(
        session.journal().checkpoint(Some("red")).await,
        ErrorKind::Conflict,
        &["red", "point 2"],
    )?;
    for name in ["12", "a..b", "a@b", ""] {
        refused(
            session.journal().checkpoint(Some(name)).await,
            ErrorKind::InvalidInput,
            &["name of a point"],
        )?;
    }
    refused(
        session.journal().diff(Some("greem.."), None).await,
        ErrorKind::NotFound,
        &["greem", "green"],
    )?;
    refused(
        session.journal().diff(Some("red..green"), None).await,
        ErrorKind::InvalidInput,
        &["after", "earlier"],
    )?;
    refused(
        session.journal().diff(Some("..red"), None).await,
        ErrorKind::InvalidInput,
        &["begin"],
    )?;
    refused(
        session.journal().diff(Some("green..red"), Some("missing")).await,
        ErrorKind::NotFound,
        &["missing", "green", "red"],
    )?;
    refused(
        session.journal().restore_path("missing", "green").await,
        ErrorKind::NotFound,
        &["missing", "green"],
    )?;
    refused(
        session.journal().restore_path("../out", "green").await,
        ErrorKind::InvalidInput,
        &["../out"],
    )?;
    refused(session.journal().restore_path("one", "7").await, ErrorKind::NotFound, &["7"])?;
    say(&session, "echo 3 > one").await?;
    refused(session.journal().undo(9).await, ErrorKind::NotFound, &["only 2 steps", "not 9"])?;
    refused(client.fork(&session, 0, None).await, ErrorKind::InvalidInput, &["0"])?;
    refused(client.fork(&session, 1, Some("blue")).await, ErrorKind::NotFound, &["blue"])?;
    let stranger = context.session().await?;
    refused(
        session.journal().merge(&stranger).await,
        ErrorKind::InvalidInput,
        &["nothing in common"],
    )?;
    refused(session.journal().merge(&session).await, ErrorKind::InvalidInput, &["itself"])?;
    stranger.delete().await?;
    // Nothing of all that changed anything, or left a point.
    assert_eq!(say(&session, "cat one").await?, "3\n");
    assert_eq!(client.log(session.id())?.points.len(), 2);
    // Somebody may be typing on a terminal.
    let terminal = session.spawn(Command::new(["sleep", "7132"]).terminal(24, 80)).await?;
    refused(session.journal().undo(1).await, ErrorKind::Conflict, &["terminal", "sleep 7132"])?;
    assert!(session.processes().await?.iter().any(|one| one.exit.is_none()), "it still runs");
    drop(terminal);
    Ok(session.delete().await?)
}

async fn numbers(context: &Context, session: &Session) -> Result<Vec<u64>, TrialError> {
    let log = context.client().log(session.id())?;
    Ok(log.points.iter().map(|point| point.number).collect())
}

pub(super) async fn keeps_as_many_points_as_it_should(context: Context) -> Outcome {
    let options = JournalOptions::default().commands().most(3);
    let options = CreateOptions::default().journal(options);
    let session = context.client().create(&Manifest::default(), options).await?;
    for number in 1..=6 {
        say(&session, &format!("echo {number} > file{number}")).await?;
    }
    assert_eq!(numbers(&context, &session).await?, [4, 5, 6]);
    refused(
        session.journal().restore_path("file1", "1").await,
        ErrorKind::NotFound,
        &["point 1", "removed", "point 4"],
    )?;
    session.journal().save_point("4", &format!("kept-{}", session.id())).await?;
    for number in 7..=9 {
        say(&session, &format!("echo {number} > file{number}")).await?;
    }
    // What points need is no garbage, what they do not need is.
    let store = bastide::Store::open(context.backend.home().join("snapshots"))?;
    store.collect()?;
    session.journal().undo(3).await?;
    assert_eq!(say(&session, "ls").await?, "file1\nfile2\nfile3\nfile4\nfile5\nfile6\n");
    let kept = format!("kept-{}", session.id());
    let other = context.session().await?;
    other.snapshots(&store).restore(&kept, None).await?;
    assert_eq!(say(&other, "ls").await?, "file1\nfile2\nfile3\nfile4\n");
    store.remove(&kept)?;
    other.delete().await?;
    let points = store.home().join("points").join(session.id().as_str());
    assert!(points.exists());
    session.delete().await?;
    assert!(!points.exists(), "points go with their session");
    let again = journaled(&context, &Manifest::default()).await?;
    Ok(again.delete().await?)
}
