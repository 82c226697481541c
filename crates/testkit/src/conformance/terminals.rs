//! Interactive processes.

use std::time::Duration;

use bastide::compat::PtyLimits;
use bastide::{Command, ErrorClass, Exit, ExitReason, OutputEvent, Process};

use crate::suite::{Context, Outcome, Trial};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t12_drives_a_shell_on_a_terminal,
    interrupts_with_a_key,
    shows_everything_a_process_said_before_its_end,
    passes_split_characters_whole,
    drives_a_process_by_turns,
    prunes_and_ends_interactive_processes,
];

fn shell() -> Command {
    Command::new(["sh", "-i"])
        .env("PS1", "$ ")
        .env("TERM", "dumb")
        .terminal(24, 80)
        .timeout(Duration::from_secs(60))
}

/// Reads until what was seen holds `text`.
async fn expect(process: &mut Process, seen: &mut String, text: &str) -> Outcome {
    while !seen.contains(text) {
        match process.next().await? {
            OutputEvent::Stdout(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            other => return Err(format!("{other:?} before {text:?}; seen: {seen:?}").into()),
        }
    }
    Ok(())
}

async fn finish(process: &mut Process, seen: &mut String) -> bastide::Result<Exit> {
    loop {
        match process.next().await? {
            OutputEvent::Stdout(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            OutputEvent::Exit(exit) => return Ok(exit),
            OutputEvent::Stderr(_) | OutputEvent::Lost(_) => {}
        }
    }
}

/// A terminal of its own: its size, a new size, its name, a program that asks, and the end.
async fn t12_drives_a_shell_on_a_terminal(context: Context) -> Outcome {
    let session = context.session().await?;
    let mut process = session.spawn(shell()).await?;
    let mut seen = String::new();
    expect(&mut process, &mut seen, "$ ").await?;
    process.write("stty size; tty; echo interactive: $-\n").await?;
    expect(&mut process, &mut seen, "24 80\r\n").await?;
    expect(&mut process, &mut seen, "/dev/pts/").await?;
    expect(&mut process, &mut seen, "interactive: ").await?;
    process.resize(50, 132).await?;
    process.write("stty size\n").await?;
    expect(&mut process, &mut seen, "50 132\r\n").await?;
    process.write("read answer; echo got: $answer\n").await?;
    process.write("forty-two\n").await?;
    expect(&mut process, &mut seen, "got: forty-two\r\n").await?;
    process.write("exit 3\n").await?;
    let exit = finish(&mut process, &mut seen).await?;
    assert_eq!((exit.reason, exit.code), (ExitReason::Exited, 3));
    Ok(session.delete().await?)
}

async fn interrupts_with_a_key(context: Context) -> Outcome {
    let session = context.session().await?;
    let mut process = session.spawn(shell()).await?;
    let mut seen = String::new();
    expect(&mut process, &mut seen, "$ ").await?;
    // Whoever says "up" is already in the foreground.
    process.write("sh -c 'echo up; exec sleep 7401'\n").await?;
    expect(&mut process, &mut seen, "\nup\r\n").await?;
    seen.clear();
    process.write("\u{3}").await?;
    // The key throws away what was typed before it is dealt with, so wait for the prompt.
    expect(&mut process, &mut seen, "$ ").await?;
    process.write("echo code $?\n").await?;
    expect(&mut process, &mut seen, "code 130\r\n").await?;
    process.write("\u{4}").await?;
    let exit = finish(&mut process, &mut seen).await?;
    assert_eq!(exit.reason, ExitReason::Exited);
    Ok(session.delete().await?)
}

async fn shows_everything_a_process_said_before_its_end(context: Context) -> Outcome {
    let session = context.session().await?;
    for _ in 0..20 {
        let command =
            Command::shell("seq 1 2000").terminal(24, 80).timeout(Duration::from_secs(60));
        let output = session.exec(command).await?;
        let text = String::from_utf8(output.stdout)?;
        let want: String = (1..=2000).map(|n| format!("{n}\r\n")).collect();
        assert_eq!(text.len(), want.len(), "some of it is missing");
        assert!(text == want);
    }
    Ok(session.delete().await?)
}

async fn passes_split_characters_whole(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "printf '\\342'; sleep 0.05; printf '\\202'; sleep 0.05; printf '\\254\\n'";
    let output = session.exec(Command::shell(line).terminal(24, 80)).await?;
    assert_eq!(String::from_utf8(output.stdout)?, "\u{20ac}\r\n");
    Ok(session.delete().await?)
}

/// The reference's way: each call gives what was said within a while.
async fn drives_a_process_by_turns(context: Context) -> Outcome {
    let session = context.session().await?;
    let quick = PtyLimits::default().yield_time_s(0.25);
    let line = "echo name?; read name; echo hello $name; exit 5";
    let started =
        session.compat().pty_exec_start(Command::shell(line).terminal(24, 80), quick).await?;
    assert_eq!(String::from_utf8(started.output)?, "name?\r\n");
    let id = started.process_id.ok_or("the process goes on")?;
    let ended = session.compat().pty_write_stdin(id, "bastide\n", quick).await?;
    assert_eq!(String::from_utf8(ended.output)?, "bastide\r\nhello bastide\r\n");
    assert_eq!((ended.process_id, ended.exit_code), (None, Some(5)));
    let unknown =
        session.compat().pty_write_stdin(id, "x", quick).await.map_err(|error| error.class());
    assert_eq!(
        unknown.map(|update| update.exit_code),
        Err(Some(ErrorClass::PtySessionNotFoundError))
    );

    let plain = session
        .compat()
        .pty_exec_start(Command::shell("echo out; echo err >&2; sleep 7402"), quick);
    let plain = plain.await?;
    assert_eq!(String::from_utf8(plain.output)?, "out\nerr\n");
    let id = plain.process_id.ok_or("the process goes on")?;
    let refused =
        session.compat().pty_write_stdin(id, "x", quick).await.map_err(|error| error.to_string());
    let message = "stdin is not available for this process".to_owned();
    assert_eq!(refused.map(|update| update.exit_code), Err(message));

    let killed = Command::shell("kill -9 $$").terminal(24, 80);
    let killed = session.compat().pty_exec_start(killed, quick).await?;
    let code = if context.backend.has_own_system() { 137 } else { -9 };
    assert_eq!(killed.exit_code, Some(code), "as the reference counts signals");
    session.compat().pty_terminate_all().await;
    Ok(session.delete().await?)
}

async fn prunes_and_ends_interactive_processes(context: Context) -> Outcome {
    let session = context.session().await?;
    let quick = PtyLimits::default().yield_time_s(0.25);
    let start = || session.compat().pty_exec_start(Command::shell("sleep 7403"), quick);
    let started = futures::future::try_join_all((0..64).map(|_| start())).await?;
    let ids: std::collections::BTreeSet<_> =
        started.iter().map(|update| update.process_id).collect();
    assert_eq!(ids.len(), 64);
    start().await?;
    let alive = session.processes().await?.iter().filter(|process| process.exit.is_none()).count();
    assert_eq!(alive, 64, "one had to go");
    session.compat().pty_terminate_all().await;
    let alive = session.processes().await?.iter().filter(|process| process.exit.is_none()).count();
    assert_eq!(alive, 0);
    Ok(session.delete().await?)
}
