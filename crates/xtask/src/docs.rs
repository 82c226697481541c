//! `cargo xtask docs`: writes the reference pages that are made from the code.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use bastide_model::schema;

/// Where the schema of manifests is kept.
const MANIFEST_SCHEMA: &str = "docs/reference/manifest.schema.json";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a task speaks on the terminal")]
pub(crate) fn run() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join(MANIFEST_SCHEMA);
    let text = format!("{:#}\n", schema::manifest());
    match fs::write(&path, text) {
        Ok(()) => {
            println!("wrote {MANIFEST_SCHEMA}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
