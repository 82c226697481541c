//! The recorded cases of the reference.

use std::path::PathBuf;
use std::sync::Arc;

use bastide::Backend;
use bastide_local::LocalBackend;
use bastide_testkit::vectors;

use crate::{Outcome, say};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folder of `*.jsonl` files; the project's own when left out
    dir: Option<PathBuf>,
    /// Print every failure as a JSON object, with what was expected and what came
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let dir = arguments.dir.clone().unwrap_or_else(vectors::default_dir);
    let home =
        tempfile::tempdir().map_err(|error| format!("there is no place for sessions: {error}"))?;
    // Where this machine has no sessions, their cases wait, and the report says so.
    let backend = LocalBackend::new(home.path()).map(|local| Arc::new(local) as Arc<dyn Backend>);
    let report = vectors::run(&dir, backend.as_ref().ok())
        .map_err(|error| format!("cannot read the cases in {}: {error}", dir.display()))?;
    say(&if arguments.json { report.json_lines() } else { report.text() });
    if report.is_success() { Ok(()) } else { Err("cases differ".into()) }
}
