//! `cargo xtask bench`: measures beside what users would use instead, in one run.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{Outcome, cargo, run as run_command, say, step, top, works};

/// The reference, as users install it.
const REFERENCE: &str = "openai-agents==0.24.0";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Few rounds: for a first impression
    #[arg(long)]
    quick: bool,
    /// One JSON object a line, for programs
    #[arg(long)]
    json: bool,
}

/// Makes the peers available, then runs the scenarios.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    step("peers");
    let python = reference()?;
    let bwrap = works(Command::new("bwrap").arg("--version"));
    if !bwrap {
        say("bwrap is not installed; its column stays empty (`apt-get install bubblewrap`)");
    }
    step("scenarios");
    let mut command = cargo(&["bench", "--quiet", "--package", "bastide-testkit"]);
    command.args(["--bench", "scenarios", "--"]).arg("--python").arg(python);
    if bwrap {
        command.arg("--bwrap");
    }
    if arguments.quick {
        command.arg("--quick");
    }
    if arguments.json {
        command.arg("--json");
    }
    run_command(&mut command)
}

/// The interpreter of a virtual environment with the reference in it, made at the first use.
fn reference() -> Outcome<PathBuf> {
    let folder = top().join("target/reference");
    let python = folder.join("bin/python");
    let import = ["-c", "import agents.sandbox.sandboxes.unix_local"];
    if !works(Command::new(&python).args(import)) {
        say("making a virtual environment with the reference in target/reference");
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", REFERENCE]))?;
    }
    Ok(python)
}
