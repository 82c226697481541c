//! Makes many sandboxes at once, uses each, and removes them all.
//!
//! `cargo run -p bastide --example many_sessions`

#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;
use std::time::Instant;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, Result};
use bastide_local::LocalBackend;
use futures::stream::{self, StreamExt, TryStreamExt};

const SESSIONS: usize = 40;
const AT_ONCE: usize = 8;

#[tokio::main]
async fn main() -> Result<()> {
    let backend = LocalBackend::new(std::env::temp_dir().join("bastide-example"))?;
    let client = Client::new(Arc::new(backend));
    let started = Instant::now();
    let answers: Vec<String> = stream::iter(0..SESSIONS)
        .map(|number| one(client.clone(), number))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    println!(
        "{} sessions in {:?}; the last said {:?}",
        answers.len(),
        started.elapsed(),
        answers.last()
    );
    Ok(())
}

async fn one(client: Client, number: usize) -> Result<String> {
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let output = session.exec(Command::shell(&format!("echo {number} on $(hostname)"))).await?;
    session.delete().await?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
