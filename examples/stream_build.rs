//! Streams the output of a long command while it runs, and ends it when it takes too long.
//!
//! `cargo run -p bastide --example stream_build`

#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, OutputEvent, Result};
use bastide_local::LocalBackend;

const BUILD: &str = "for step in configure compile link; do echo \"$step...\"; sleep 0.2; done; \
                     echo 'warning: no tests' >&2";

#[tokio::main]
async fn main() -> Result<()> {
    let backend = LocalBackend::new(std::env::temp_dir().join("bastide-example"))?;
    let session = Client::new(Arc::new(backend))
        .create(&Manifest::default(), CreateOptions::default())
        .await?;

    let build = Command::shell(BUILD).timeout(Duration::from_secs(30));
    let mut process = session.spawn(build).await?;
    loop {
        match process.next().await? {
            OutputEvent::Stdout(text) => print!("out: {}", String::from_utf8_lossy(&text)),
            OutputEvent::Stderr(text) => print!("err: {}", String::from_utf8_lossy(&text)),
            OutputEvent::Lost(bytes) => println!("{bytes} bytes were lost"),
            OutputEvent::Exit(exit) => {
                println!("{}: {}", exit.reason.as_str(), exit.code);
                break;
            }
        }
    }
    session.delete().await
}
