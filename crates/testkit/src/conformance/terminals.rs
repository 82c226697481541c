//! Interactive processes.

use std::time::Duration;

use bastide::{Command, Exit, OutputEvent, Process, Reason};

use crate::suite::{Context, Outcome, Trial};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t12_drives_a_shell_on_a_terminal,
    interrupts_with_a_key,
    shows_everything_a_process_said_before_its_end,
    passes_split_characters_whole,
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
    assert_eq!((exit.reason, exit.code), (Reason::Exited, 3));
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
    assert_eq!(exit.reason, Reason::Exited);
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
