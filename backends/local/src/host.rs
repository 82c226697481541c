//! Files and folders of the host that a session works in: which may be, and where they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, Grant, MachineSpec, Result};

use crate::user::ID_LOCKS;

/// Where the kernel and hardware show themselves: nothing of it is anybody's workspace or grant.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// What a system runs from.
const SYSTEM: [&str; 10] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sbin",
    "/usr",
    "/var/lib/dpkg",
];

/// Folders in those that are people's own.
const PEOPLES: [&str; 2] = ["/usr/local", "/usr/src"];

/// Folders that are something else inside, or have to be there for others.
const SHARED: [&str; 8] =
    ["/home", "/opt", "/root", "/run", "/tmp", "/usr/local", "/var", "/var/tmp"];

/// Something of the host, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostFile {
    /// Where it is on the host, links followed.
    pub(crate) source: PathBuf,
    /// Where it is inside.
    pub(crate) target: String,
    pub(crate) writable: bool,
    pub(crate) is_dir: bool,
}

/// Everything of the host a session works in, what lies in something else after it. The first is
/// the workspace, if that is a folder of the host.
pub(crate) fn files(spec: &MachineSpec, home: &Path) -> Result<Vec<HostFile>> {
    let home = home.canonicalize().map_err(|error| {
        let message = format!("cannot find {}: {error}", home.display());
        Error::new(ErrorKind::Io, message)
    })?;
    let mut files = Vec::new();
    if let Some(folder) = &spec.host_workspace {
        files.push(workspace(folder, spec.root.as_str(), &home)?);
    }
    for grant in &spec.grants {
        let target = grant.path.as_str();
        // Of two with the same name the first is meant, and the workspace before all.
        if target != spec.root.as_str() && files.iter().all(|file| file.target != target) {
            files.push(granted(grant, &home)?);
        }
    }
    Ok(files)
}

/// A folder that is the workspace; made if it is missing, as the reference does.
fn workspace(folder: &Path, root: &str, home: &Path) -> Result<HostFile> {
    let what = format!("{} cannot be a workspace", folder.display());
    refuse_place(&what, folder, home, true)?;
    let failed = |error: io::Error| {
        let cause = Error::new(ErrorKind::InvalidInput, format!("{what}: {error}")).because(error);
        Error::workspace_start(folder.display()).because(cause)
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let source = folder.canonicalize().map_err(failed)?;
    refuse_place(&what, &source, home, true)?;
    let file = look(source, root, true).map_err(failed)?;
    match file.is_dir {
        true => Ok(file),
        false => Err(failed(io::ErrorKind::NotADirectory.into())),
    }
}

fn granted(grant: &Grant, home: &Path) -> Result<HostFile> {
    let target = grant.path.as_str();
    let what = format!("{} cannot be granted at {target}", grant.host.display());
    let failed = |error: io::Error| {
        let message = format!("{what}: {error}");
        Error::new(ErrorKind::InvalidInput, message).with("path", grant.host.display().to_string())
    };
    refuse_place(&what, Path::new(target), home, !grant.read_only)?;
    let source = grant.host.canonicalize().map_err(failed)?;
    refuse_place(&what, &source, home, !grant.read_only)?;
    look(source, target, !grant.read_only).map_err(failed)
}

fn look(source: PathBuf, target: &str, writable: bool) -> io::Result<HostFile> {
    let metadata = fs::metadata(&source)?;
    if !metadata.is_dir() && !metadata.is_file() {
        return Err(io::Error::other("it is neither a folder nor a regular file"));
    }
    let (target, is_dir) = (target.to_owned(), metadata.is_dir());
    Ok(HostFile { source, target, writable, is_dir })
}

/// Refuses a place that must not be a sandbox's: on the host, where links lead, and inside.
fn refuse_place(what: &str, place: &Path, home: &Path, writable: bool) -> Result<()> {
    let refused = |why: &str| {
        let error = Error::new(ErrorKind::InvalidInput, format!("{what}: {why}"));
        Err(error.with("path", place.display().to_string()))
    };
    let holds = |other: &str| Path::new(other).starts_with(place);
    let is_in = |other: &str| place.starts_with(other);
    if place == Path::new("/") {
        return refused("it is all of the file system");
    }
    let own = [home, Path::new(ID_LOCKS)];
    if own.iter().any(|own| own.starts_with(place) || place.starts_with(own)) {
        return refused("Bastide keeps its own state there");
    }
    if KERNEL.iter().any(|system| holds(system) || is_in(system)) {
        return refused("it belongs to the kernel");
    }
    if SYSTEM.iter().any(|system| holds(system)) || SHARED.iter().any(|shared| holds(shared)) {
        return refused("it lies over a system folder");
    }
    let is_peoples = PEOPLES.iter().any(|peoples| is_in(peoples));
    if writable && !is_peoples && SYSTEM.iter().any(|system| is_in(system)) {
        return refused("it lies in a system folder");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_a_sandboxs() {
        let home = Path::new("/home/user/.local/share/bastide");
        let cases = [
            ("/home/user/project", true, true),
            ("/tmp/project", true, true),
            ("/opt/app", true, true),
            ("/usr/local/app", true, true),
            ("/srv", true, true),
            ("/etc/app", false, true),
            ("/usr/share/doc", false, true),
            ("/", false, false),
            ("/home", true, false),
            ("/home/user", true, false),
            ("/home/user", false, false),
            ("/home/user/.local/share/bastide/sessions", false, false),
            ("/run/bastide/id-ranges", true, false),
            ("/run", false, false),
            ("/tmp", true, false),
            ("/usr", true, false),
            ("/usr/local", true, false),
            ("/usr/lib/app", true, false),
            ("/etc", false, false),
            ("/etc/app", true, false),
            ("/proc/1/root", false, false),
            ("/dev/shm/x", true, false),
            ("/sys/fs", false, false),
            ("/var", true, false),
        ];
        for (place, writable, fine) in cases {
            let checked = refuse_place("it", Path::new(place), home, writable);
            assert_eq!(checked.is_ok(), fine, "{place} writable {writable}: {checked:?}");
        }
    }

    #[test]
    fn follows_links_before_it_trusts_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let workspace = workspace(&link, link.to_str().unwrap(), &home);
        assert!(workspace.unwrap_err().message().contains("system folder"));
    }

    #[test]
    fn takes_the_first_of_two_grants_and_the_workspace_before_both() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let home = top.join("home");
        for name in ["home", "ws", "a", "b"] {
            fs::create_dir(top.join(name)).unwrap();
        }
        let path = |name: &str| top.join(name).to_str().unwrap().parse().unwrap();
        let mut spec = MachineSpec::new(path("ws"));
        spec.host_workspace = Some(top.join("ws"));
        let grant = |at: &str, host: &str, read_only| Grant {
            path: path(at),
            host: top.join(host),
            read_only,
        };
        spec.grants = vec![grant("ws", "b", false), grant("a", "a", true), grant("a", "b", false)];
        let files = files(&spec, &home).unwrap();
        let got: Vec<_> = files.iter().map(|file| (file.source.clone(), file.writable)).collect();
        assert_eq!(got, [(top.join("ws"), true), (top.join("a"), false)]);
    }
}
