//! `bastide init`

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result};
use serde_json::json;

use crate::ui::Ui;

/// The manifest that is written.
const MANIFEST: &str = include_str!("init.yaml");

/// Write a manifest to start from
///
/// It has a comment for each part. A file that is there already is left as it is.
#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    /// The file
    #[arg(value_name = "FILE", default_value = "bastide.yaml")]
    file: PathBuf,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(ui: &mut Ui, args: &InitArgs) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let written =
        File::create_new(&args.file).and_then(|mut file| file.write_all(MANIFEST.as_bytes()));
    written.map_err(|error| {
        let error = match error.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::new(ErrorKind::Conflict, format!("{name} is there already"))
                    .with_hint("name another file: `bastide init FILE`")
            }
            _ => Error::new(ErrorKind::Io, format!("cannot write {name}: {error}")),
        };
        error.with_context("path", name.clone())
    })?;
    if args.json {
        ui.json(&json!({ "path": name }))?;
    } else {
        ui.line(&format!("wrote {name}; try it: bastide run --manifest {name} -- sh hello.sh"))?;
    }
    Ok(ExitCode::SUCCESS)
}
