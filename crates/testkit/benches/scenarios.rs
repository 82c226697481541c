//! What users feel, beside what they would use instead: the peers take turns within each round, so that
//! a noisy moment hits all of them.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made must stop the run, and a bench prints"
)]

#[path = "scenarios/peers.rs"]
mod peers;
#[path = "scenarios/table.rs"]
mod table;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions, Session};
use bastide_local::LocalBackend;
use clap::Parser;

use peers::{Bwrap, Reference, spawn_true};
use table::Row;

#[derive(Debug, Parser)]
struct Arguments {
    /// Few rounds
    #[arg(long)]
    quick: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// An interpreter that has the reference
    #[arg(long)]
    python: Option<PathBuf>,
    /// bubblewrap is installed
    #[arg(long)]
    bwrap: bool,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let arguments = Arguments::parse();
    let rounds = if arguments.quick { 50 } else { 300 };
    // Never on the machine's own disk: some file systems take a hundred times as long to make a file
    // after others were removed.
    let home = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let backend = LocalBackend::new(home.path()).expect("a home for local sessions");
    let client = Client::new(Arc::new(backend));
    let mut reference = arguments
        .python
        .map(|python| Reference::start(&python, home.path()).expect("the reference"));
    let bwrap = arguments.bwrap.then(|| Bwrap::new(home.path()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let rows = runtime.block_on(async {
        let mut create = Row::new("create → first output");
        let mut exec = Row::new("exec round trip");
        let session = new_session(&client).await;
        for _ in 0..rounds {
            create.add("bastide", create_once(&client).await);
            exec.add("bastide", exec_once(&session).await);
            if let Some(bwrap) = &bwrap {
                create.add("bwrap", bwrap.run().expect("bwrap runs"));
            }
            if let Some(reference) = &mut reference {
                create.add("reference", reference.measure("create").expect("the reference runs"));
                exec.add("reference", reference.measure("exec").expect("the reference runs"));
            }
            exec.add("posix_spawn", spawn_true().expect("/bin/true runs"));
        }
        session.delete().await.expect("the session is removed");
        [create, exec]
    });
    for row in &rows {
        if arguments.json {
            println!("{}", row.json());
        } else {
            println!("{}", row.text());
        }
    }
}

async fn new_session(client: &Client) -> Session {
    let created = client.create(&Manifest::default(), CreateOptions::default()).await;
    created.expect("a session")
}

async fn create_once(client: &Client) -> Duration {
    let started = Instant::now();
    let session = new_session(client).await;
    let output = session.exec(Command::new(["echo", "hello"])).await.expect("the command runs");
    let took = started.elapsed();
    assert_eq!(output.stdout, b"hello\n");
    session.delete().await.expect("the session is removed");
    took
}

async fn exec_once(session: &Session) -> Duration {
    let started = Instant::now();
    let output = session.exec(Command::new(["true"])).await.expect("the command runs");
    let took = started.elapsed();
    assert_eq!(output.exit.code, 0);
    took
}
