//! `cargo xtask first-hour`: what a new user does on a fresh Debian with nothing but the README.
//!
//! The system is made by `debootstrap` and entered with namespaces of its own; of this machine it has the kernel, the
//! network, and the Rust toolchain, which would be fetched otherwise. It lies below `target`, or where `TMPDIR` says: sessions of
//! root want a file system with id-mapped mounts, and a build some gigabytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{
    Outcome, cargo_home, read, run as run_command, say, step, toolchain, top, works,
};

/// What is done inside, as root and as somebody else.
const SCRIPT: &str = include_str!("first_hour/first_hour.sh");

/// How it is entered.
const ENTER: &str = include_str!("first_hour/enter.sh");

/// The packages that the README asks for. The certificates come with `rustup`, whose place this machine's toolchain takes.
const PACKAGES: &str = "build-essential,git,ca-certificates";

/// What the network is like: names, and whom to trust. A machine may reach registries by a proxy with a certificate of its own.
const NETWORK: [&str; 3] = ["etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt"];

/// Makes the system, and plays the first hour in it.
pub(crate) fn run() -> Outcome {
    if !works(Command::new("debootstrap").arg("--version")) {
        return Err("`debootstrap` is not there; the package of that name has it".into());
    }
    let place = std::env::var_os("TMPDIR").map_or_else(|| top().join("target"), PathBuf::from);
    let folder = tempfile::Builder::new().prefix("first-hour-").tempdir_in(place)?;
    let root = folder.path().join("root");
    step("a fresh system");
    let (suite, mirror) = (release()?, mirror()?);
    // Whatever it mounts meanwhile is gone with it.
    let mut debootstrap = Command::new("unshare");
    debootstrap.args(["--mount", "debootstrap", "--variant=minbase"]);
    debootstrap.args([&format!("--include={PACKAGES}"), &suite]);
    // It says each package; what it says is of use only if it fails.
    read(debootstrap.arg(&root).arg(mirror))?;
    for file in NETWORK {
        let ours = Path::new("/").join(file);
        if ours.exists() {
            fs::copy(ours, root.join(file))?;
        }
    }
    fs::write(root.join("first_hour.sh"), SCRIPT)?;
    // Of what is committed, as a clone would have it.
    let source = root.join("source.git");
    run_command(Command::new("git").args(["clone", "--quiet", "--bare", "."]).arg(&source))?;
    let cargo_home = cargo_home()?;
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
    let script = root.with_file_name("enter.sh");
    fs::write(&script, ENTER)?;
    let mut enter = Command::new("unshare");
    enter.args(["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "sh"]);
    enter.arg(script).arg(root.canonicalize()?);
    enter.arg(toolchain("RUSTUP_HOME", ".rustup")?).arg(cargo_home.join("bin"));
    Ok(enter)
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
