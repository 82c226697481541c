//! Running the suites as root and as an ordinary user, whoever we are.

use std::fmt;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Settings;
use crate::shell::{Outcome, read, run, top, works};

/// The kinds of users there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserKind {
    Root,
    User,
}

impl fmt::Display for UserKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root",
            Self::User => "an ordinary user",
        })
    }
}

/// What this process may do.
#[derive(Debug)]
pub(crate) struct Privileges {
    own: UserKind,
    sudo: bool,
}

/// Why a suite was not run.
pub(crate) type Skipped = Result<(), String>;

impl Privileges {
    pub(crate) fn find() -> Self {
        let own =
            if rustix::process::geteuid().is_root() { UserKind::Root } else { UserKind::User };
        let sudo = own == UserKind::User && works(Command::new("sudo").args(["-n", "true"]));
        Self { own, sudo }
    }

    /// Whether this process is root.
    pub(crate) fn is_root(&self) -> bool {
        self.own == UserKind::Root
    }

    /// Whom this process is not.
    pub(crate) fn other(&self) -> UserKind {
        if self.own == UserKind::Root { UserKind::User } else { UserKind::Root }
    }

    /// What running the tests changes on this machine.
    pub(crate) fn announcement(&self, packages: &[&str]) -> String {
        let install = match (self.own, packages.is_empty()) {
            (UserKind::Root, false) => packages.join(", "),
            _ => "nothing".to_owned(),
        };
        match (self.own, self.sudo) {
            (UserKind::Root, _) => format!(
                "install: {install}\nstart:   nothing that outlives a test\ncreate:  the user \
                 `{}`, to run the suites unprivileged; it is removed at the end",
                account()
            ),
            (UserKind::User, true) => {
                "install: nothing\nstart:   the local suites as root, by `sudo -n`\n\
                                  create:  nothing"
                    .to_owned()
            }
            (UserKind::User, false) => {
                "install: nothing\nstart:   nothing that outlives a test\ncreate:  nothing"
                    .to_owned()
            }
        }
    }

    /// Runs a test program as whom this process is not.
    pub(crate) fn run_as_other(&self, program: &Path, settings: Settings<'_>) -> Outcome<Skipped> {
        match (self.own, self.sudo) {
            (UserKind::Root, _) => run_as_user(program, settings).map(Ok),
            (UserKind::User, true) => {
                let mut sudo = Command::new("sudo");
                sudo.arg("-n");
                for (name, value) in settings.variables() {
                    sudo.arg(format!("{name}={value}"));
                }
                run(sudo.arg(program))?;
                Ok(Ok(()))
            }
            (UserKind::User, false) => Ok(Err("`sudo -n` does not work here".to_owned())),
        }
    }
}

/// A name nobody else's run has.
fn account() -> String {
    format!("bastide-test-{}", std::process::id())
}

/// An account that is removed again, whatever happens.
#[derive(Debug)]
pub(crate) struct Account {
    name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Account {
    /// Makes one.
    pub(crate) fn create() -> Outcome<Self> {
        let name = account();
        run(Command::new("useradd").args(["--no-create-home", "--shell", "/bin/sh", &name]))?;
        let id = |flag: &str| -> Outcome<u32> {
            Ok(read(Command::new("id").args([flag, &name]))?.trim().parse()?)
        };
        let (uid, gid) = (id("-u")?, id("-g")?);
        Ok(Self { name, uid, gid })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // A run that fails here says so; there is nobody to hand the error to.
        drop(run(Command::new("userdel").arg(&self.name)));
    }
}

/// The stand-in for `sbx` that tests of runs start.
const STAND_IN: &str = "sbx-stand-in";

fn run_as_user(program: &Path, settings: Settings<'_>) -> Outcome {
    let account = Account::create()?;
    // The build folder may lie where the user cannot look.
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("trials");
    fs::copy(program, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    // Tests look for the stand-in beside themselves, as in the build folder.
    let stand_in = program.ancestors().skip(1).map(|folder| folder.join(STAND_IN));
    if let Some(stand_in) = stand_in.take(3).find(|path| path.is_file()) {
        let copy = folder.path().join(STAND_IN);
        fs::copy(stand_in, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    }
    chown(folder.path(), Some(account.uid), Some(account.gid))?;
    let (uid, gid) = (account.uid, account.gid);
    let mut command = match without_network(&copy, uid, gid) {
        Some(command) => command,
        None => {
            settings.note_skipped("skipped the network without a cable (T28): none can be made")?;
            let mut command = Command::new(&copy);
            command.uid(uid).gid(gid);
            command
        }
    };
    command.env_clear().env("HOME", folder.path()).env("TMPDIR", folder.path());
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command.envs(settings.variables());
    command.env("BASTIDE_TEST_MOUNT_TOOLS", top().join("target/mount-tools"));
    match fuse_device(folder.path(), uid, gid) {
        Ok(device) => drop(command.env("BASTIDE_TEST_FUSE", device)),
        Err(why) => settings.note_skipped(&format!("skipped FUSE for an ordinary user: {why}"))?,
    }
    run(&mut command)
}

/// A FUSE device of a user's own: that of the machine may be root's alone.
fn fuse_device(folder: &Path, uid: u32, gid: u32) -> std::io::Result<PathBuf> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let device = folder.join("fuse");
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, &device, FileType::CharacterDevice, mode, makedev(10, 229))?;
    chown(&device, Some(uid), Some(gid))?;
    Ok(device)
}

/// A program as another user, in a network that has loopback only, where the machine can make one: all of it
/// has to work with the cable out (T28).
fn without_network(program: &Path, uid: u32, gid: u32) -> Option<Command> {
    let line = "ip link set lo up && exec setpriv --reuid=$1 --regid=$2 --clear-groups -- \
                env --default-signal=HUP,INT,QUIT,TERM $3";
    let shell = |line: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", line, "sh"]);
        command
    };
    if works(&mut shell("ip link set lo up && setpriv --version && env --default-signal=HUP true"))
    {
        let mut command = shell(line);
        command.args([uid.to_string(), gid.to_string()]).arg(program);
        return Some(command);
    }
    None
}
