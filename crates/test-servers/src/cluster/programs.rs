//! The programs of a cluster: Kubernetes from an archive that was made before, the others from packages of Debian.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{FOLDER, run_quietly};

/// The archive with the one program that is all of Kubernetes, by the name it is called.
pub const PROGRAM: &str = "kube-1.34-linux-amd64.xz";

const NAMES: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"];

/// Packages, and the release each comes from. The store and the engine of Debian 12 are too old; those of the next run with
/// its C library.
const PACKAGES: [&str; 5] = [
    "etcd-server/trixie",
    "containerd/trixie",
    "runc/bookworm",
    "containernetworking-plugins/bookworm",
    "busybox-static/bookworm",
];

/// The archive: in the folder that the variable names, or beside the repository.
///
/// # Errors
///
/// Says where it was looked for, for people.
pub fn find_program() -> Result<PathBuf, String> {
    let given = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let beside = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/cluster"));
    let path = given.unwrap_or_else(|| beside.to_owned()).join(PROGRAM);
    if cfg!(not(target_arch = "x86_64")) {
        return Err("the program of the test cluster is for x86_64".to_owned());
    }
    match path.exists() {
        true => Ok(path),
        false => Err(format!("no {} ({FOLDER} names its folder)", path.display())),
    }
}

/// Unpacks and fetches what is not there yet.
pub(super) fn prepare(folder: &Path, archive: &Path) -> io::Result<()> {
    unpack(&folder.join("bin"), archive)?;
    let packages = folder.join("packages");
    if packages.exists() {
        return Ok(());
    }
    let fetched = folder.join("fetched");
    drop(fs::remove_dir_all(&fetched));
    fetch(&fetched)?;
    let unfinished = folder.join("packages.unfinished");
    for entry in fs::read_dir(&fetched)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            run_quietly(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&unfinished))?;
        }
    }
    fs::remove_dir_all(&fetched)?;
    fs::rename(unfinished, packages)
}

fn unpack(bin: &Path, archive: &Path) -> io::Result<()> {
    let program = bin.join("kube");
    if program.exists() {
        return Ok(());
    }
    fs::create_dir_all(bin)?;
    let unfinished = bin.join("unfinished");
    let into = fs::File::create(&unfinished)?;
    let mut xz = Command::new("xz");
    xz.args(["--decompress", "--stdout"]).arg(archive).stdin(Stdio::null()).stdout(into);
    if !xz.status()?.success() {
        return Err(io::Error::other(format!("cannot unpack {}", archive.display())));
    }
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o755))?;
    for name in NAMES {
        drop(fs::remove_file(bin.join(name)));
        symlink("kube", bin.join(name))?;
    }
    fs::rename(unfinished, program)
}

/// Fetches packages with lists of our own: the system's stay as they are.
fn fetch(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder.join("lists/partial"))?;
    let mirror =
        mirror().ok_or_else(|| io::Error::other("no package source of Debian is set up here"))?;
    let list = folder.join("sources.list");
    fs::write(
        &list,
        ["bookworm", "trixie"].map(|release| format!("deb {mirror} {release} main\n")).concat(),
    )?;
    let apt = || {
        let mut apt = Command::new("apt-get");
        for (option, value) in [
            ("Dir::Etc::SourceList", list.display().to_string()),
            ("Dir::Etc::SourceParts", "/nonexistent".to_owned()),
            ("Dir::State::Lists", folder.join("lists").display().to_string()),
            ("Acquire::Languages", "none".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
        ] {
            apt.arg("-o").arg(format!("{option}={value}"));
        }
        apt.arg("-qq").current_dir(folder);
        apt
    };
    run_quietly(apt().arg("update"))?;
    run_quietly(apt().arg("download").args(PACKAGES))
}

/// Where this system gets its packages from.
fn mirror() -> Option<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let sources = read("/etc/apt/sources.list.d/debian.sources");
    let first = sources.lines().find_map(|line| line.strip_prefix("URIs:"));
    let list = read("/etc/apt/sources.list");
    let second = list.lines().find_map(|line| line.strip_prefix("deb "));
    let words = first.or(second)?.split_whitespace().map(str::to_owned);
    words.into_iter().find(|word| !word.starts_with('['))
}
