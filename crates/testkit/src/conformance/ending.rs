//! Every command ends when it must, with all that descends from it.

use std::time::{Duration, Instant};

use bastide::{OutputEvent, Reason, Session};

use crate::suite::{Context, Outcome, Trial, Trouble, running, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    ends_everything_descended_at_the_timeout,
    returns_though_a_child_holds_the_pipe,
    ends_everything_when_the_caller_gives_up,
];

/// A tree that does its best to stay: it ignores every signal it can, leaves its session, forks twice,
/// and holds the pipes. Each part marks itself by its name.
const STUBBORN: &str = "trap '' TERM INT HUP
    (setsid sh -c 'trap \"\" TERM INT HUP; exec sleep 7001' &)
    (sh -c '(sleep 7002 &) ; sleep 7003' &)
    setsid sh -c 'sleep 7004 & exec sleep 7005' &
    echo up
    sleep 7006";

/// How many of the marked processes there are.
async fn alive(session: &Session) -> Result<usize, Trouble> {
    running(session, "^sleep 700[0-9]").await
}

async fn ends_everything_descended_at_the_timeout(context: Context) -> Outcome {
    let session = context.session().await?;
    let started = Instant::now();
    let output = session.exec(sh(STUBBORN).timeout(Duration::from_secs(1))).await?;
    let took = started.elapsed();
    assert_eq!((output.exit.reason, output.exit.code), (Reason::Timeout, 124));
    assert_eq!(output.stdout, b"up\n", "what it said before is kept");
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(2), "took {took:?}");
    assert_eq!(alive(&session).await?, 0);
    Ok(session.delete().await?)
}

async fn returns_though_a_child_holds_the_pipe(context: Context) -> Outcome {
    let session = context.session().await?;
    let started = Instant::now();
    let output = session.exec(sh("sleep 7007 & echo started")).await?;
    assert!(started.elapsed() < Duration::from_secs(5), "waited for the child");
    assert_eq!((&output.stdout[..], output.exit.code), (&b"started\n"[..], 0));
    assert_eq!(alive(&session).await?, 1, "the child lives on");
    Ok(session.delete().await?)
}

async fn ends_everything_when_the_caller_gives_up(context: Context) -> Outcome {
    let session = context.session().await?;
    let mut process = session.spawn(sh(STUBBORN)).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout("up\n".into()));
    assert!(alive(&session).await? > 0);
    drop(process);
    let deadline = Instant::now() + Duration::from_secs(5);
    while alive(&session).await? > 0 {
        assert!(Instant::now() < deadline, "still alive after the call was dropped");
    }
    Ok(session.delete().await?)
}
