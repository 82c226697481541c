//! Three hundred packages in a folder, as an agent's first minute looks.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const COUNT: usize = 300;

/// Makes the packages, once. They are only read, so they may lie on any disk.
pub(crate) fn make() -> io::Result<PathBuf> {
    let wheels = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/wheels");
    fs::create_dir_all(&wheels)?;
    let wheels = wheels.canonicalize()?;
    if wheels.join("done").exists() {
        return Ok(wheels);
    }
    // A wheel is a zip file with a description; the interpreter that installs them can write them.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/wheels.py");
    let status = Command::new("python3")
        .arg(script)
        .arg(&wheels)
        .arg(COUNT.to_string())
        .stdin(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(io::Error::other("the packages cannot be made"));
    }
    fs::write(wheels.join("done"), "")?;
    Ok(wheels)
}

/// The command that installs all of them.
pub(crate) fn install(python: &Path, wheels: &Path, target: &Path) -> Vec<String> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut command = vec![text(python)];
    let words =
        "-m pip install --quiet --disable-pip-version-check --no-index --no-cache-dir --no-compile";
    command.extend(words.split(' ').map(str::to_owned));
    command.extend(["--find-links".to_owned(), text(wheels)]);
    command.extend(["--target".to_owned(), text(target)]);
    command.extend((0..COUNT).map(|number| format!("package-{number}")));
    command
}
