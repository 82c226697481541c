//! The link: many calls at once, none in another's way.

use bastide::OutputEvent;
use futures::future::try_join_all;

use crate::suite::{Context, Outcome, Trial, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] =
    trials![carries_many_calls_at_once, is_not_stalled_by_an_unread_stream];

async fn carries_many_calls_at_once(context: Context) -> Outcome {
    let session = context.session().await?;
    let calls = (0..64).map(|number| {
        let session = &session;
        async move { say(session, &format!("echo {number}")).await }
    });
    let said = try_join_all(calls).await?;
    let want: Vec<_> = (0..64).map(|number| format!("{number}\n")).collect();
    assert_eq!(said, want);
    Ok(session.delete().await?)
}

async fn is_not_stalled_by_an_unread_stream(context: Context) -> Outcome {
    let session = context.session().await?;
    // Says more than every buffer on the way holds, to nobody.
    let mut unread = session.spawn(sh("yes | head -c 67108864")).await?;
    for number in 0..20 {
        assert_eq!(say(&session, &format!("echo {number}")).await?, format!("{number}\n"));
    }
    let mut bytes = 0;
    let exit = loop {
        match unread.next().await? {
            OutputEvent::Stdout(data) | OutputEvent::Stderr(data) => bytes += data.len(),
            OutputEvent::Lost(lost) => return Err(format!("{lost} bytes were lost").into()),
            OutputEvent::Exit(exit) => break exit,
        }
    };
    assert_eq!((bytes, exit.code), (67_108_864, 0));
    Ok(session.delete().await?)
}
