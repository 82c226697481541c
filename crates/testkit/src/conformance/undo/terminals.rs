//! Lines typed on a terminal as points.

use bastide::model::Manifest;
use bastide::{Command, OutputEvent, Process};

use super::{SOON, journaled};
use crate::suite::{Context, Outcome, TrialError, say};

const PROMPT: &str = "ready> ";

/// A program that reads, and says when it begins to.
const READER: &str = "sh -c 'echo up; exec cat > typed'";

/// Waits until the shell asks for the next line.
async fn prompted(shell: &mut Process) -> Result<(), TrialError> {
    wait_for_output(shell, PROMPT).await
}

/// Waits until what is said ends with this.
async fn wait_for_output(shell: &mut Process, ending: &str) -> Result<(), TrialError> {
    let mut said = String::new();
    while !said.ends_with(ending) {
        match tokio::time::timeout(SOON, shell.next()).await?? {
            OutputEvent::Stdout(data) => said.push_str(&String::from_utf8_lossy(&data)),
            other => return Err(format!("{other:?} after {said:?}").into()),
        }
    }
    Ok(())
}

pub(super) async fn makes_points_of_lines_on_a_terminal(context: Context) -> Outcome {
    let session = journaled(&context, &Manifest::default()).await?;
    let command = Command::new(["sh"]).terminal(24, 80).env("PS1", PROMPT);
    let mut shell = session.spawn(command).await?;
    prompted(&mut shell).await?;
    for line in ["echo 1 > one\r", "\r", "mkdir sub; echo 2 > sub/tw", "\x7fwo\r", "stty -echo\r"] {
        shell.write(line.as_bytes().to_vec()).await?;
        if line.ends_with('\r') {
            prompted(&mut shell).await?;
        }
    }
    // What is not shown is not called by its name.
    shell.write(&b"echo unseen > quiet; stty echo\r"[..]).await?;
    prompted(&mut shell).await?;
    // What a program reads is no line of the shell's.
    shell.write(format!("{READER}\r").into_bytes()).await?;
    wait_for_output(&mut shell, "\nup\r\n").await?;
    shell.write(&b"for the program\r"[..]).await?;
    shell.write(&b"\x04"[..]).await?;
    prompted(&mut shell).await?;
    shell.write(&b"exit 3\r"[..]).await?;
    let exit = loop {
        if let OutputEvent::Exit(exit) = tokio::time::timeout(SOON, shell.next()).await?? {
            break exit;
        }
    };
    assert_eq!(exit.code, 3);
    let log = context.client().log(session.id())?;
    let labels: Vec<&str> = log.points.iter().map(|point| point.label.as_str()).collect();
    let lines = [
        "sh",
        "echo 1 > one",
        "mkdir sub; echo 2 > sub/two",
        "stty -echo",
        "(hidden input)",
        READER,
        "exit 3",
    ];
    assert_eq!(labels, lines);
    assert_eq!(log.points[0].exit, Some(3), "the shell's own point says how it ended");
    let changed: Vec<_> = log.points.iter().map(|point| point.changes.added).collect();
    assert_eq!(changed, [0, 1, 2, 0, 1, 1, 0], "{log:?}");
    assert!(log.points.iter().all(|point| point.after.is_some()), "{log:?}");
    // Line by line, from the last one on.
    session.journal().undo(2).await?;
    assert_eq!(say(&session, "ls").await?, "one\nquiet\nsub\n");
    session.journal().undo(2).await?;
    assert_eq!(say(&session, "ls").await?, "one\nsub\n");
    session.journal().undo(3).await?;
    assert_eq!(say(&session, "ls").await?, "one\n");
    Ok(session.delete().await?)
}
