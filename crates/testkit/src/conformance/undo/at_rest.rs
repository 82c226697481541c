//! What happens between two commands, of which the second one takes the workspace for what the first one left.

use std::time::Duration;

use bastide::model::Manifest;
use bastide::{OutputEvent, Session};

use super::{SOON, journaled};
use crate::suite::{Context, Outcome, TrialError, say, sh};

/// Whether a command has to wait for a look at the workspace before it begins.
async fn is_looked_at_before_a_command(
    context: &Context,
    session: &Session,
) -> Result<bool, TrialError> {
    let mut running = session.spawn(sh("echo ready; read -r line").stream_input()).await?;
    running.next().await?;
    let log = context.client().log(session.id())?;
    let frozen = log.points.last().ok_or("no point")?.frozen;
    running.close_input().await?;
    while !matches!(running.next().await?, OutputEvent::Exit(_)) {}
    Ok(frozen > Duration::ZERO)
}

/// Waits for a file.
async fn appears(session: &Session, name: &str) -> Result<(), TrialError> {
    let deadline = tokio::time::Instant::now() + SOON;
    while session.files().read(name).await.is_err() {
        if tokio::time::Instant::now() > deadline {
            return Err(format!("there is no {name}").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

pub(super) async fn knows_what_changed_between_two_commands(context: Context) -> Outcome {
    let session = journaled(&context, &Manifest::default()).await?;
    // A child that outlives its command, and writes when nobody waits for it.
    let late = "mkdir -p deep/down; (while ! [ -e go ]; do sleep 0.01; done; echo late > deep/down/late) \
                > /dev/null 2>&1 &";
    say(&session, late).await?;
    session.files().write("go", "").await?;
    appears(&session, "deep/down/late").await?;
    say(&session, "echo 1 > one").await?;
    session.journal().undo(1).await?;
    assert_eq!(&session.files().read("deep/down/late").await?[..], b"late\n");
    assert!(session.files().read("one").await.is_err());
    // Whatever is done by calls, though not a process of the session was alive since the last command.
    say(&session, "echo 2 > two").await?;
    session.files().write("deep/down/late", "by a call").await?;
    say(&session, "rm -r deep two").await?;
    session.journal().undo(1).await?;
    assert_eq!(&session.files().read("deep/down/late").await?[..], b"by a call");
    session.journal().undo(1).await?;
    session.journal().redo().await?;
    assert_eq!(&session.files().read("two").await?[..], b"2\n");
    // Whoever is at the files from outside, where that can be.
    let root = session.root().as_str().to_owned();
    if let Some(guest) = context.client().inspect(session.id()).await?.guest_pid {
        say(&session, "echo 3 > three").await?;
        let place = format!("/proc/{guest}/root{root}/deep/down/late");
        if std::fs::write(place, "from outside").is_ok() {
            say(&session, "rm -r deep three").await?;
            session.journal().undo(1).await?;
            assert_eq!(&session.files().read("deep/down/late").await?[..], b"from outside");
        }
    }
    // Where the kernel tells of everything, nobody waits for a look at what cannot have changed.
    let system = say(&session, "stat -f -c %T .").await?;
    let is_told = ["ext2/ext3", "ext4", "xfs", "btrfs", "tmpfs"].contains(&system.trim());
    say(&session, "echo 4 > four").await?;
    session.files().read("four").await?;
    if is_told {
        assert!(!is_looked_at_before_a_command(&context, &session).await?, "on {system}");
    }
    session.files().write("five", "").await?;
    assert!(is_looked_at_before_a_command(&context, &session).await?, "a call made a file");
    Ok(session.delete().await?)
}
