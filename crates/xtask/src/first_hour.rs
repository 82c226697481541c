//! `cargo xtask first-hour`: what a new user does on a fresh Debian with nothing but the README.
//!
//! The system is made by `debootstrap` and entered with namespaces of its own; of this machine it has the kernel, the
//! network, and the Rust toolchain, which would be fetched otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, read, run as run_command, say, step, top};

/// What is done inside, as root and as somebody else.
const SCRIPT: &str = include_str!("first_hour/first_hour.sh");

/// The packages that the README asks for, and an ordinary user.
const PACKAGES: &str = "build-essential,git,ca-certificates,python3,passwd,uidmap";

/// Makes the system, and plays the first hour in it.
pub(crate) fn run() -> Outcome {
    let folder = tempfile::Builder::new().prefix("first-hour-").tempdir_in(top().join("target"))?;
    let root = folder.path().join("root");
    step("a fresh system");
    let (suite, mirror) = (release()?, mirror()?);
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), &suite]);
    // It says each package; what it says is of use only if it fails.
    read(debootstrap.arg(&root).arg(mirror))?;
    fs::write(root.join("first_hour.sh"), SCRIPT)?;
    // Of what is committed, as a clone would have it.
    let source = root.join("source.git");
    run_command(Command::new("git").args(["clone", "--quiet", "--bare", "."]).arg(&source))?;
    let cargo_home = toolchain("CARGO_HOME", ".cargo")?;
    let settings = root.join("root/.cargo");
    fs::create_dir_all(&settings)?;
    if let Ok(config) = fs::read(cargo_home.join("config.toml")) {
        fs::write(settings.join("config.toml"), config)?;
    }
    step("the first hour");
    run_command(&mut enter(&root, &cargo_home)?)?;
    say("every command of the README did what it says");
    Ok(())
}

/// The system, entered: its own processes and mounts, and nothing of ours but the toolchain.
fn enter(root: &Path, cargo_home: &Path) -> Outcome<Command> {
    let mut enter = Command::new("bwrap");
    enter.arg("--bind").arg(root).arg("/");
    enter.args(["--dev-bind", "/dev", "/dev", "--ro-bind", "/sys", "/sys", "--proc", "/proc"]);
    enter.args(["--tmpfs", "/tmp", "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"]);
    enter.arg("--ro-bind").arg(toolchain("RUSTUP_HOME", ".rustup")?).arg("/opt/rustup");
    enter.arg("--ro-bind").arg(cargo_home.join("bin")).arg("/opt/cargo-bin");
    enter.args(["--unshare-pid", "--unshare-uts", "--unshare-ipc", "--cap-add", "ALL"]);
    enter.args(["--die-with-parent", "--clearenv", "--setenv", "HOME", "/root"]);
    enter.args(["--setenv", "RUSTUP_HOME", "/opt/rustup", "--setenv", "CARGO_TERM_COLOR", "never"]);
    let path = "/root/.cargo/bin:/opt/cargo-bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
    enter.args(["--setenv", "PATH", path, "--chdir", "/root", "bash", "/first_hour.sh"]);
    Ok(enter)
}

/// A folder of the toolchain on this machine.
fn toolchain(variable: &str, usual: &str) -> Outcome<PathBuf> {
    let line = format!("echo ${{{variable}:-$HOME/{usual}}}");
    Ok(PathBuf::from(read(Command::new("sh").arg("-c").arg(line))?.trim()))
}

/// The release of Debian this machine has.
fn release() -> Outcome<String> {
    let release = fs::read_to_string("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.ok_or("this machine is no Debian")?.to_owned())
}

/// Where this machine gets its packages.
fn mirror() -> Outcome<String> {
    let format = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let all = read(Command::new("apt-get").args(format))?;
    let first = all.lines().next().ok_or("this machine gets packages from nowhere")?;
    Ok(first.to_owned())
}
