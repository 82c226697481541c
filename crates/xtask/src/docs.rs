//! `cargo xtask docs`: writes the reference pages that are made from the code.

use std::fs;
use std::process::Command;

use crate::shell::{Outcome, built_program, built_task, read, say, top};

/// Writes all pages: the schema of manifests, every field of one, every command.
pub(crate) fn run() -> Outcome {
    let program = built_program()?;
    write("docs/reference/manifest.schema.json", &read(&mut built_task("manifest-schema")?)?)?;
    write("docs/manifest.md", &read(&mut built_task("manifest-page")?)?)?;
    write("docs/cli.md", &read(Command::new(program).args(["man", "--markdown"]))?)
}

fn write(page: &str, text: &str) -> Outcome {
    fs::write(top().join(page), text).map_err(|error| format!("cannot write {page}: {error}"))?;
    say(&format!("wrote {page}"));
    Ok(())
}
