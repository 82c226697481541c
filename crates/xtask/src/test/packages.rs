//! What the suites use of the system, and what of that is installed for them.

use std::process::Command;

use crate::shell::{Outcome, run, say, works};

/// A program the trials use, and the package that brings it.
struct Package {
    program: &'static str,
    name: &'static str,
    /// Whether it is only worth its time where everything is run.
    heavy: bool,
}

const fn light(program: &'static str, name: &'static str) -> Package {
    Package { program, name, heavy: false }
}

const fn heavy(program: &'static str, name: &'static str) -> Package {
    Package { program, name, heavy: true }
}

const PACKAGES: &[Package] = &[
    light("newuidmap", "uidmap"),
    light("strace", "strace"),
    light("gdb", "gdb"),
    light("gcc", "gcc"),
    light("git", "git"),
    light("bwrap", "bubblewrap"),
    light("fusermount3", "fuse3"),
    light("python3", "python3-venv"),
    light("dockerd", "docker.io"),
    light("ip", "iproute2"),
    light("nft", "nftables"),
    light("openssl", "openssl"),
    light("busybox", "busybox-static"),
    light("mkfs.ext4", "e2fsprogs"),
    light("runsc", "runsc"),
    light("docker-registry", "docker-registry"),
    heavy("debootstrap", "debootstrap"),
    heavy("go", "golang-go"),
    heavy("node", "nodejs"),
    heavy("npm", "npm"),
    heavy("java", "default-jdk-headless"),
    heavy("chromium", "chromium"),
    heavy("pkg-config", "pkg-config"),
    // A header has no program; this path is looked for as it is.
    heavy("/usr/include/fuse3/fuse.h", "libfuse3-dev"),
];

/// The packages that are missing here.
pub(crate) fn missing(everything: bool) -> Vec<&'static str> {
    let wanted = PACKAGES.iter().filter(|package| everything || !package.heavy);
    let mut names: Vec<_> =
        wanted.filter(|package| !is_there(package.program)).map(|package| package.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn is_there(program: &str) -> bool {
    let folders = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    folders.iter().any(|folder| std::path::Path::new(folder).join(program).exists())
}

/// Installs packages where this machine has a way to; the trials that need them are skipped otherwise,
/// and say so.
pub(crate) fn install(names: &[&str], as_root: bool) -> Outcome {
    if names.is_empty() {
        return Ok(());
    }
    if !as_root || !works(Command::new("apt-get").arg("--version")) {
        say(&format!("not installed: {} (needs root and apt-get)", names.join(", ")));
        return Ok(());
    }
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq").args(arguments);
        command
    };
    let install = |names: &[&str]| {
        run(&mut apt(&[&["install", "-y", "--no-install-recommends"], names].concat()))
    };
    // The lists may be too old, or not there at all.
    if install(names).is_err() {
        drop(run(&mut apt(&["update"])));
        if install(names).is_err() {
            // One that this system does not have is no reason to go without the others.
            for name in names {
                if let Err(error) = install(&[name]) {
                    say(&format!("not installed: {error}"));
                }
            }
        }
    }
    Ok(())
}
