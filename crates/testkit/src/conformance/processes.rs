//! Processes that live by themselves: listed, signalled, waited for, listened to again.

use std::time::Duration;

use bastide::model::Manifest;
use bastide::{
    Command, CreateOptions, ErrorKind, ExitReason, OutputEvent, Process, ProcessId, Session,
};

use crate::suite::{Context, Outcome, Trial, running, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t3_replays_a_background_process_from_an_offset,
    lists_what_lives_on_with_the_command_it_came_from,
    signals_a_process_and_its_group,
    signals_a_process_that_has_only_just_begun,
    kills_everything_descended_from_a_process,
    detaches_from_a_command_it_started,
    says_that_a_process_is_unknown,
    survives_a_command_that_kills_its_own_supervisor,
];

async fn collect(mut process: Process) -> Result<(Vec<u8>, ExitReason), bastide::Error> {
    let mut all = Vec::new();
    loop {
        match process.next().await? {
            OutputEvent::Stdout(data) | OutputEvent::Stderr(data) => all.extend_from_slice(&data),
            OutputEvent::Lost(_) => {}
            OutputEvent::Exit(exit) => return Ok((all, exit.reason)),
        }
    }
}

/// Waits until a file of the workspace exists.
async fn until_exists(session: &Session, path: &str) -> Outcome {
    say(session, &format!("until [ -e {path} ]; do sleep 0.01; done")).await.map(drop)
}

/// A background process that goes on talking, nobody connected for a while, and not a byte lost.
async fn t3_replays_a_background_process_from_an_offset(context: Context) -> Outcome {
    let options = CreateOptions::default().detached();
    let session = context.client().create(&Manifest::default(), options).await?;
    let name = session.id().clone();
    let away = Duration::from_secs(if context.full { 600 } else { 5 });
    // It says something all the while, and then as much again.
    let line = format!(
        "seq 1 100000; touch half
         n=0; while [ $n -lt {} ]; do echo beat $n; n=$((n+1)); sleep 0.1; done
         touch spoken; until [ -e go ]; do sleep 0.01; done; seq 100001 200000",
        away.as_secs() * 5
    );
    let id = session.launch(Command::shell(&line)).await?;
    until_exists(&session, "half").await?;
    let numbers = |range: std::ops::RangeInclusive<u32>| {
        range.flat_map(|n| format!("{n}\n").into_bytes()).collect::<Vec<u8>>()
    };
    let beats = (0..away.as_secs() * 5).flat_map(|n| format!("beat {n}\n").into_bytes());
    let want = [numbers(1..=100_000), beats.collect(), numbers(100_001..=200_000)].concat();

    // Listen to some of it, then go away altogether.
    let mut first = session.attach(id, 0).await?;
    let mut received = Vec::new();
    while received.len() < 100_000 {
        if let OutputEvent::Stdout(data) = first.next().await? {
            received.extend_from_slice(&data);
        }
    }
    let offset = first.offset();
    drop((first, session));
    assert_eq!(offset, received.len() as u64);
    // That nobody is there for a time is what this is about.
    tokio::time::sleep(away).await;

    // Somebody else comes, as after a restart of the host.
    let again = context.client().attach(&name).await?;
    let on = again.exec(Command::shell("until [ -e spoken ]; do sleep 0.01; done; touch go"));
    assert_eq!(on.await?.exit.code, 0);
    let (rest, reason) = collect(again.attach(id, offset).await?).await?;
    assert_eq!(reason, ExitReason::Exited);
    received.extend_from_slice(&rest);
    assert!(received == want, "received {} bytes of {}", received.len(), want.len());

    // And from the beginning, after the end.
    let (whole, _) = collect(again.log(id, 0).await?).await?;
    assert!(whole == want);
    Ok(again.delete().await?)
}

async fn lists_what_lives_on_with_the_command_it_came_from(context: Context) -> Outcome {
    let session = context.session().await?;
    let output = session.exec(sh("(setsid sleep 7301 &) ; sleep 7302 & echo done")).await?;
    assert_eq!(output.stdout, b"done\n");
    let all = session.processes().await?;
    let record = all.iter().find(|process| process.id == output.process);
    let record = record.ok_or("the command has no record")?;
    assert_eq!(
        record.exit.as_ref().map(|exit| (exit.reason, exit.code)),
        Some((ExitReason::Exited, 0))
    );
    let mut alive: Vec<_> = record.children.iter().map(|(_, line)| line.as_str()).collect();
    alive.sort_unstable();
    assert_eq!(alive, ["sleep 7301", "sleep 7302"]);
    session.signal(output.process, 9).await?;
    let after = session.processes().await?;
    let children = after.iter().find(|process| process.id == output.process);
    assert!(children.is_none_or(|process| process.children.is_empty()), "{children:?}");
    Ok(session.delete().await?)
}

async fn signals_a_process_and_its_group(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "trap 'echo caught; exit 7' USR1; touch ready; while :; do sleep 0.01; done";
    let id = session.launch(Command::shell(line)).await?;
    until_exists(&session, "ready").await?;
    session.signal(id, 10).await?;
    let output = session.attach(id, 0).await?.output(1000).await?;
    assert_eq!((&output.stdout[..], output.exit.code), (&b"caught\n"[..], 7));
    let gone = session.signal(id, 15).await.map_err(|error| error.kind());
    assert_eq!(gone, Err(ErrorKind::NotFound));
    Ok(session.delete().await?)
}

/// The signal may come before the process has read what it shall become.
async fn signals_a_process_that_has_only_just_begun(context: Context) -> Outcome {
    let session = context.session().await?;
    for round in 0..context.count(400) {
        for (signal, code) in [(9, 137), (15, 143)] {
            let id = session.launch(Command::new(["sleep", "7305"])).await?;
            session.signal(id, signal).await.map_err(|error| format!("round {round}: {error}"))?;
            let exit = session.attach(id, 0).await?.output(1000).await?.exit;
            assert_eq!((exit.reason, exit.code), (ExitReason::Signalled, code), "round {round}");
        }
    }
    assert_eq!(running(&session, "^sleep 7305").await?, 0);
    Ok(session.delete().await?)
}

async fn kills_everything_descended_from_a_process(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "trap '' TERM; (setsid sh -c 'trap \"\" TERM; touch up; sleep 7303' &); sleep 7304";
    let id = session.launch(Command::shell(line)).await?;
    until_exists(&session, "up").await?;
    session.signal(id, 9).await?;
    let (_, reason) = collect(session.attach(id, 0).await?).await?;
    assert_eq!(reason, ExitReason::Signalled);
    assert_eq!(running(&session, "^sleep 730").await?, 0);
    Ok(session.delete().await?)
}

async fn detaches_from_a_command_it_started(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "echo one; until [ -e go ]; do sleep 0.01; done; echo two";
    let mut process = session.spawn(sh(line)).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout("one\n".into()));
    let (id, offset) = (process.id(), process.offset());
    process.detach().await?;
    drop(process);
    say(&session, "touch go").await?;
    let (rest, reason) = collect(session.attach(id, offset).await?).await?;
    assert_eq!((&rest[..], reason), (&b"two\n"[..], ExitReason::Exited));
    Ok(session.delete().await?)
}

async fn says_that_a_process_is_unknown(context: Context) -> Outcome {
    let session = context.session().await?;
    let unknown = session.attach(ProcessId(4711), 0).await.map(drop);
    assert_eq!(unknown.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    Ok(session.delete().await?)
}

async fn survives_a_command_that_kills_its_own_supervisor(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "(setsid sleep 7305 &) ; kill -9 $PPID; sleep 7306";
    let ended = session.exec(sh(line).timeout(Duration::from_secs(20))).await;
    assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::Internal));
    assert_eq!(running(&session, "^sleep 730").await?, 0, "nothing of it is left");
    assert_eq!(say(&session, "echo still here").await?, "still here\n");
    Ok(session.delete().await?)
}
