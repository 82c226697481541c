//! Runs one command in a sandbox and prints what it said.
//!
//! `cargo run -p bastide --example run_command`

#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::sync::Arc;
use std::time::Duration;

use bastide::model::{Entry, Manifest};
use bastide::{Client, Command, CreateOptions, Result};
use bastide_local::LocalBackend;

#[tokio::main]
async fn main() -> Result<()> {
    let backend = LocalBackend::new(std::env::temp_dir().join("bastide-example"))?;
    let client = Client::new(Arc::new(backend));

    let mut manifest = Manifest::default();
    manifest.entries.insert("greet.sh".to_owned(), Entry::file("echo \"hello, $1\"\n"));
    let session = client.create(&manifest, CreateOptions::default()).await?;

    let greet = Command::new(["sh", "greet.sh", "world"]).timeout(Duration::from_secs(10));
    let output = session.exec(greet).await?;
    println!("{}", String::from_utf8_lossy(&output.stdout).trim_end());
    println!("ended with {} on the rung {}", output.exit.code, session.receipt().rung.as_str());

    session.delete().await
}
