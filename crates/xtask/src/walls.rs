//! `cargo xtask walls`: takes walls away, and sees which trials notice.
//!
//! A trial that attacks a wall and passes without it shows nothing. Here a guest is built that can do
//! without walls; which ones is written over in copies of the test program. For each claim of
//! `docs/threat-model.md` the walls that hold it are left out together, and its trial has to fail.

mod table;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell::{Outcome, cargo, read, run, say, step, top};
use crate::test::local_binary;
use crate::test::privileges::Account;
use table::{CASES, Case, UserKind};

/// What the list of walls that are left out begins with, in the guest.
const MARK: &[u8] = b"bastide-without:";

/// How long that list is, the mark included.
const LIST: usize = 160;

/// How much is said of why a trial failed: what a sandbox could read may be long.
const REASON: usize = 300;

/// Builds, takes away, tries.
pub(crate) fn walk() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can try as root and as somebody else".into());
    }
    step("a guest that can do without walls");
    let guest = build_guest()?;
    let program = local_binary("trials", &[("BASTIDE_GUEST", guest.as_path())])?;
    let bytes = fs::read(program)?;
    let found = bytes.windows(MARK.len()).filter(|window| *window == MARK).count();
    if found != 1 {
        return Err(format!("the test program holds {found} lists of walls").into());
    }

    let account = Account::create()?;
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let mut wrong = Vec::new();
    step("with every wall, each of these passes");
    let whole = Program::write(folder.path(), &bytes, &[])?;
    for case in CASES {
        for trial in case.trials {
            if let Some(why) = whole.fails(case, trial, &account)? {
                wrong.push(format!("{}::{trial} fails with every wall: {why}", case.rung));
            }
        }
    }
    step("without walls, each of these fails");
    for case in CASES {
        let program = Program::write(folder.path(), &bytes, case.out)?;
        for trial in case.trials {
            let failed = program.fails(case, trial, &account)?;
            let (who, out) = (case.who, case.out.join(" "));
            let verdict = failed.as_deref().unwrap_or("PASSES");
            say(&format!("{:8}  {who}  {trial}  without {out}: {verdict}", case.rung));
            // One whose session did not come up has tried nothing.
            if failed.as_deref().is_none_or(|why| why.starts_with("cannot start session")) {
                wrong.push(format!("{}::{trial} without {out}: {verdict}", case.rung));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn build_guest() -> Outcome<PathBuf> {
    let rustc = read(Command::new("rustc").arg("-vV"))?;
    let target = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    let target = target.ok_or("rustc does not say what it builds for")?;
    let folder = top().join("target/walls");
    let mut build = cargo(&["build", "--locked", "--release", "--package", "bastide-guest"]);
    build.arg("--target").arg(target).arg("--target-dir").arg(&folder);
    // The same as an ordinary guest but for what only takes time.
    for setting in ["opt-level=\"s\"", "panic=\"abort\"", "strip=\"debuginfo\""] {
        build.arg("--config").arg(format!("profile.release.{setting}"));
    }
    let flags = ["-Ctarget-feature=+crt-static", "--cfg", "bastide_removable_walls"];
    run(build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f")))?;
    Ok(folder.canonicalize()?.join(target).join("release/bastide-guest"))
}

/// A copy of the test program whose guest does without some walls.
struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn write(folder: &Path, bytes: &[u8], out: &[&str]) -> Outcome<Self> {
        let mut bytes = bytes.to_vec();
        let at = bytes.windows(MARK.len()).position(|window| window == MARK);
        let at = at.ok_or("the test program holds no list of walls")?;
        let names = format!(" {} ", out.join(" "));
        let place = at + MARK.len()..at + MARK.len() + names.len();
        if names.len() > LIST - MARK.len() {
            return Err(format!("too many walls at once: {names}").into());
        }
        let place = bytes.get_mut(place).ok_or("the list of walls is cut off")?;
        place.copy_from_slice(names.as_bytes());
        let folder = tempfile::tempdir_in(folder)?;
        fs::write(folder.path().join("trials"), bytes)?;
        fs::set_permissions(folder.path().join("trials"), fs::Permissions::from_mode(0o755))?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self { folder })
    }

    /// Why a trial fails, if it does, run where whatever it leaves behind ends with it.
    fn fails(&self, case: &Case, trial: &str, account: &Account) -> Outcome<Option<String>> {
        let scratch = tempfile::tempdir_in(self.folder.path())?;
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        if case.who == UserKind::User {
            chown(scratch.path(), Some(account.uid), Some(account.gid))?;
            command.arg("setpriv").arg("--clear-groups");
            command.arg(format!("--reuid={}", account.uid));
            command.arg(format!("--regid={}", account.gid));
        }
        command.arg(self.folder.path().join("trials"));
        command.arg("--exact").arg(format!("{}::{trial}", case.rung));
        command.env_clear().env("HOME", scratch.path()).env("TMPDIR", scratch.path());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        let output = command.stdin(Stdio::null()).current_dir("/").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // What was not run has not passed, and has not failed either.
        if !text.contains("running 1 test") {
            return Err(format!("there is no trial {}::{trial}: {text}", case.rung).into());
        }
        let why = text.split_once(&format!("---- {}::{trial} ----\n", case.rung));
        let why = why.map_or("it did not live to tell", |(_, why)| why.trim());
        // What was compared says more than that it was.
        let lines = why.lines().take(3).map(str::trim).collect::<Vec<_>>().join(" ");
        let lines: String = lines.chars().take(REASON).collect();
        Ok((!output.status.success()).then_some(lines))
    }
}
