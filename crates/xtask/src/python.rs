//! `cargo xtask python`: builds the Python package and runs its tests, the reference's among them.

mod ordinary;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, cargo, run as run_command, step, top, with_signals, works};

/// What is installed beside the package; the SDK's own tests want the last few.
const REQUIREMENTS: [&str; 12] = [
    "openai-agents==0.24.0",
    "pytest>=9.0.3",
    "pytest-asyncio",
    "pytest-mock",
    "inline-snapshot",
    "pytest-timeout",
    "pytest-xdist",
    "pytest-rerunfailures",
    "docker",
    "mypy",
    "maturin>=1.9,<2",
    "uvloop",
];

/// The SDK's own tests are in its source distribution.
const UPSTREAM: &str = "openai_agents-0.24.0";

/// Interpreters that will do, the best first.
const INTERPRETERS: [&str; 5] = ["python3.11", "python3.12", "python3.13", "python3.10", "python3"];

#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Only tests whose name matches this expression of pytest
    #[arg(long)]
    only: Option<String>,
    /// Leave the SDK's own tests out
    #[arg(long)]
    no_upstream: bool,
    /// Build the wheel that is shipped, and test that one, with every interpreter there is
    #[arg(long)]
    wheel: bool,
    /// How the wheel is built: `dev` is quick, and for trying out how it is put together
    #[arg(long, default_value = "wheel", requires = "wheel")]
    profile: String,
}

/// Builds, installs and tests.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let folder = top().join("target/python");
    fs::create_dir_all(&folder)?;
    step("an environment with the SDK");
    let python = environment(&folder)?;
    match arguments.wheel {
        true => wheel::install(&folder, &python, &arguments.profile)?,
        false => install_build(&python)?,
    }
    step("tests of the Python package");
    let mut tests = Command::new(&python);
    tests.args([
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        "pyproject.toml",
        // Once more, as everywhere: what passes then is named, and is a bug to be fixed.
        "--reruns=1",
        "-rR",
        "python/tests",
    ]);
    if let Some(only) = &arguments.only {
        tests.args(["-k", only]);
    }
    run_command(&mut with_signals(tests))?;
    if arguments.only.is_some() {
        return Ok(());
    }
    step("attacks through Python, as an ordinary user");
    ordinary::attacks(&python)?;
    step("types of the Python package");
    let mypy = ["-m", "mypy", "--config-file", "pyproject.toml", "-p", "bastide"];
    run_command(Command::new(&python).args(mypy))?;
    let stubtest = ["-m", "mypy.stubtest", "bastide._native"];
    run_command(Command::new(&python).args(stubtest))?;
    if arguments.no_upstream {
        return Ok(());
    }
    step("the SDK's own tests on our client");
    upstream(&folder, &python)
}

/// The interpreter of an environment that has what the tests want.
fn environment(folder: &Path) -> Outcome<PathBuf> {
    let venv = folder.join("venv");
    let python = venv.join("bin/python");
    let stamp = venv.join("requirements.txt");
    let wanted = REQUIREMENTS.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let probe = "import sys; sys.exit(sys.version_info < (3, 10))";
    let found = INTERPRETERS.into_iter().find(|name| works(Command::new(name).args(["-c", probe])));
    let found = found.ok_or("there is no Python 3.10 or later")?;
    run_command(Command::new(found).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run_command(Command::new(&python).args(pip).args(REQUIREMENTS))?;
    fs::write(stamp, wanted)?;
    Ok(python)
}

/// Installs what the workspace's own build gives: nothing is compiled twice.
fn install_build(python: &Path) -> Outcome {
    step("the package, as the workspace builds it");
    let build = ["build", "--workspace", "--lib", "--bin", "bastide", "--locked"];
    // With a test among it, dependencies have the features that all tests have, and are those that were built for them.
    run_command(cargo(&build).args(["--test", "loader"]))?;
    install_built(python, &top().join("target/debug"))
}

/// Puts what was built into the environment of an interpreter, as its wheel would.
fn install_built(python: &Path, built: &Path) -> Outcome {
    let installed = site_packages(python)?.join("bastide");
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    copy_all(&top().join("python/src/bastide"), &installed)?;
    fs::copy(built.join("lib_native.so"), installed.join("_native.abi3.so"))?;
    let program = python.with_file_name("bastide");
    // One that runs cannot be written to.
    if program.exists() {
        fs::remove_file(&program)?;
    }
    fs::copy(built.join("bastide"), program)?;
    Ok(())
}

/// Measures the clients beside the SDK's own; `reference` is the interpreter of an environment with the SDK.
pub(crate) fn bars(reference: &Path, arguments: &[&str]) -> Outcome {
    step("the Python clients");
    let build = ["build", "--quiet", "--release", "--locked"];
    run_command(cargo(&build).args(["-p", "bastide-python", "-p", "bastide-cli"]))?;
    install_built(reference, &top().join("target/release"))?;
    run_command(Command::new(reference).arg("python/bench/bars.py").args(arguments))
}

fn site_packages(python: &Path) -> Outcome<PathBuf> {
    let ask = "import sysconfig; print(sysconfig.get_path('platlib'))";
    let said = crate::shell::read(Command::new(python).args(["-c", ask]))?;
    Ok(PathBuf::from(said.trim()))
}

fn copy_all(from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true if entry.file_name() == "__pycache__" => {}
            true => copy_all(&entry.path(), &target)?,
            false => drop(fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}

/// Runs the SDK's own tests with our client in the place of its local one.
fn upstream(folder: &Path, python: &Path) -> Outcome {
    let sources = folder.join("sdist");
    let tests = sources.join(UPSTREAM);
    if !tests.join("tests").is_dir() {
        let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
        let what = ["--no-binary", "openai-agents", "openai-agents==0.24.0", "-d"];
        run_command(Command::new(python).args(pip).args(what).arg(&sources))?;
        let archive = sources.join(format!("{UPSTREAM}.tar.gz"));
        run_command(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(&sources))?;
        // The tests are to run against the installed SDK.
        fs::remove_dir_all(tests.join("src"))?;
    }
    let home = tempfile::tempdir()?;
    let mut command = Command::new(python);
    command
        .args(["python/tests/run_upstream.py", "--quiet", "-n2"])
        .arg(&tests)
        .env("BASTIDE_HOME", home.path());
    run_command(&mut with_signals(command))
}
