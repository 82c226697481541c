//! What is tried of the package as an ordinary user, too.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, read, run as run_command, say, top, works};
use crate::test::privileges::Account;

/// The tests: what a sandbox must not let out, and what calls, cancelled ones and forks do.
const TESTS: [&str; 3] =
    ["python/tests/test_attacks.py", "python/tests/test_robust.py", "python/tests/test_undo.py"];

/// Runs the attacks as an ordinary user, where this process is root and the user can reach what it takes.
pub(super) fn attacks(python: &Path) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        // They were run as one already.
        return Ok(());
    }
    let account = Account::create()?;
    let packages = super::site_packages(python)?;
    let ask = "import sys; print(f'/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}')";
    // That of the environment may be where only root can look.
    let interpreter = PathBuf::from(read(Command::new(python).args(["-c", ask]))?.trim());
    let folder = tempfile::tempdir()?;
    chown(folder.path(), Some(account.uid), Some(account.gid))?;
    // Beside the packages, as in the environment: a test may look for the program.
    let program = python.with_file_name("bastide");
    let scripts = folder.path().join("bin");
    fs::create_dir(&scripts)?;
    fs::copy(program, scripts.join("bastide"))?;
    let as_user = || {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={}", account.uid))
            .arg(format!("--regid={}", account.gid))
            .args(["--clear-groups", "--"])
            .arg(&interpreter)
            .env_clear()
            .env("HOME", folder.path())
            .env("TMPDIR", folder.path())
            .env("PYTHONPATH", &packages)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", scripts.display()));
        command
    };
    if !works(as_user().args(["-c", "import bastide, pytest, agents"])) {
        say(&format!(
            "not as an ordinary user: {} cannot use {} there",
            interpreter.display(),
            packages.display()
        ));
        return Ok(());
    }
    let options = ["-m", "pytest", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--reruns=1"];
    run_command(as_user().args(options).args(["-rR"]).args(TESTS).current_dir(top()))
}
