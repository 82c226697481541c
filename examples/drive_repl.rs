//! Drives an interactive program on a terminal: waits for its prompt, types, reads the answer.
//!
//! `cargo run -p bastide --example drive_repl`

#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, Error, ErrorKind, OutputEvent, Process, Result};
use bastide_local::LocalBackend;

#[tokio::main]
async fn main() -> Result<()> {
    let backend = LocalBackend::new(std::env::temp_dir().join("bastide-example"))?;
    let session = Client::new(Arc::new(backend))
        .create(&Manifest::default(), CreateOptions::default())
        .await?;

    let shell = Command::new(["sh", "-i"])
        .env("PS1", "> ")
        .terminal(24, 80)
        .timeout(Duration::from_secs(30));
    let mut repl = session.spawn(shell).await?;
    read_until(&mut repl, "> ").await?;
    for line in ["x=6", "echo $((x * 7))"] {
        repl.write(format!("{line}\n")).await?;
        let answer = read_until(&mut repl, "\n> ").await?;
        println!("{line} -> {:?}", answer.lines().nth(1).unwrap_or_default());
    }
    session.delete().await
}

/// Everything the process shows until it shows `text`.
async fn read_until(process: &mut Process, text: &str) -> Result<String> {
    let mut seen = String::new();
    while !seen.contains(text) {
        match process.next().await? {
            OutputEvent::Stdout(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            other => {
                let message = format!("{other:?} where {text:?} was expected");
                return Err(Error::new(ErrorKind::CommandFailed, message));
            }
        }
    }
    Ok(seen)
}
