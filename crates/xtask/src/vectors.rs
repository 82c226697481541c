//! `cargo xtask vectors`: runs the recorded cases of the reference.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bastide::Backend;
use bastide_local::LocalBackend;
use bastide_testkit::vectors;
use clap::Args;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Folder of `*.jsonl` files; the project's own when left out
    dir: Option<PathBuf>,
    /// Print every failure as a JSON object, with what was expected and what came
    #[arg(long)]
    json: bool,
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a task speaks on the terminal")]
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let dir = arguments.dir.clone().unwrap_or_else(vectors::default_dir);
    let home = match tempfile::tempdir() {
        Ok(home) => home,
        Err(error) => {
            eprintln!("error: there is no place for sessions: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Where this machine has no sessions, their cases wait, and the report says so.
    let backend = LocalBackend::new(home.path()).map(|local| Arc::new(local) as Arc<dyn Backend>);
    let report = match vectors::run(&dir, backend.as_ref().ok()) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("error: cannot read the cases in {}: {error}", dir.display());
            return ExitCode::FAILURE;
        }
    };
    println!("{}", if arguments.json { report.json_lines() } else { report.text() });
    if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
