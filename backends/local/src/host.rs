//! Files and folders of the host that a session works in: which may be, and where they are.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bastide::compat::raise;
use bastide::{Condition, Error, ErrorKind, Grant, MachineSpec, Result, Rung};
use bastide_proto::boot::{MountPoint, UserAndGroup};

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
    /// Whether it is the session's own storage, and not the caller's.
    pub(crate) is_own: bool,
    /// Whose it is on the host.
    pub(crate) owner: UserAndGroup,
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
        let cause =
            Error::new(ErrorKind::InvalidInput, format!("{what}: {error}")).with_source(error);
        raise::workspace_start(folder.display()).with_source(cause)
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
        Error::new(ErrorKind::InvalidInput, message)
            .with_context("path", grant.host.display().to_string())
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
    let owner = UserAndGroup { uid: metadata.uid(), gid: metadata.gid() };
    Ok(HostFile { source, target, writable, is_dir, is_own: false, owner })
}

/// Refuses what is granted for reading only, but lies in something that may be written. A rung with mounts
/// covers it, where it is mounted in its own place; everywhere else it could be written by its other name.
pub(crate) fn refuse_overlaps(files: &[HostFile], rung: Rung) -> Result<()> {
    for closed in files.iter().filter(|file| !file.writable) {
        for open in files.iter().filter(|file| file.writable && !file.is_own) {
            let Ok(beneath) = closed.source.strip_prefix(&open.source) else { continue };
            let in_place = Path::new(&open.target).join(beneath) == Path::new(&closed.target);
            if rung == Rung::Unconfined || rung == Rung::Namespaces && in_place {
                continue;
            }
            let (what, around) = (closed.source.display(), open.source.display());
            let message = format!(
                "{what} cannot be granted for reading only: it lies in {around}, which may be written"
            );
            let error =
                Error::new(ErrorKind::Unsupported, message).with_context("path", what.to_string());
            return Err(match rung {
                Rung::Landlock if in_place => error.with_condition(Condition::GrantOverlaps),
                _ => error.with_hint(format!(
                    "grant it at {}, or move one out of the other",
                    Path::new(&open.target).join(beneath).display()
                )),
            });
        }
    }
    Ok(())
}

/// What has to be in folders of the host for others of them to be mounted there.
pub(crate) fn mount_points(files: &[HostFile]) -> Vec<MountPoint> {
    let mut points = Vec::new();
    for file in files {
        let lies_in = |other: &&HostFile| {
            other.is_dir && other.target != file.target && is_beneath(&file.target, &other.target)
        };
        let around = files.iter().filter(lies_in).max_by_key(|other| other.target.len());
        // The session's own storage is its own affair, and what may only be read is not written for this.
        let Some(around) = around.filter(|around| around.writable && !around.is_own) else {
            continue;
        };
        if let Ok(beneath) = Path::new(&file.target).strip_prefix(&around.target) {
            let (folder, beneath) = (around.source.clone(), beneath.to_owned());
            points.push(MountPoint { folder, beneath, is_dir: file.is_dir });
        }
    }
    points
}

fn is_beneath(path: &str, folder: &str) -> bool {
    Path::new(path).starts_with(folder)
}

/// Refuses a place that must not be a sandbox's: on the host, where links lead, and inside.
fn refuse_place(what: &str, place: &Path, home: &Path, writable: bool) -> Result<()> {
    let refused = |why: &str| {
        let error = Error::new(ErrorKind::InvalidInput, format!("{what}: {why}"));
        Err(error.with_context("path", place.display().to_string()))
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

    fn file(source: &str, target: &str, writable: bool) -> HostFile {
        HostFile {
            source: PathBuf::from(source),
            target: target.to_owned(),
            writable,
            is_dir: !source.ends_with(".txt"),
            is_own: false,
            owner: UserAndGroup { uid: 0, gid: 0 },
        }
    }

    #[test]
    fn refuses_grants_that_a_rung_cannot_hold() {
        let work = || file("/p", "/p", true);
        let cases = [
            // A part of the workspace, covered in its own place.
            (vec![work(), file("/p/a.txt", "/p/a.txt", false)], true, false),
            (vec![file("/p", "/w", true), file("/p/a", "/w/a", false)], true, false),
            // It could be written by the name it has in the workspace.
            (vec![work(), file("/p/a.txt", "/x/a.txt", false)], false, false),
            (vec![work(), file("/p", "/x", false)], false, false),
            (vec![file("/p", "/w", true), work(), file("/p/a", "/w/a", false)], false, false),
            // More inside less is what was asked for, and so is what lies beside.
            (vec![work(), file("/p/a", "/p/a", true)], true, true),
            (vec![file("/p/a", "/p/a", true), file("/p", "/p", false)], true, true),
            (vec![work(), file("/pa", "/pa", false)], true, true),
        ];
        for (files, namespaces, landlock) in cases {
            let got = refuse_overlaps(&files, Rung::Namespaces);
            assert_eq!(got.is_ok(), namespaces, "{files:?}: {got:?}");
            let got = refuse_overlaps(&files, Rung::Landlock);
            assert_eq!(got.is_ok(), landlock, "{files:?}: {got:?}");
        }
    }

    #[test]
    fn knows_what_is_mounted_in_folders_of_the_host() {
        let mut own = file("/storage", "/workspace", true);
        own.is_own = true;
        let files = [
            own,
            file("/p", "/p", true),
            file("/data", "/p/deep/data", false),
            file("/one.txt", "/p/deep/data/one.txt", false),
            file("/two.txt", "/p/two.txt", true),
            file("/q", "/workspace/q", false),
            file("/pp", "/pp", true),
        ];
        let point = |beneath: &str, is_dir| MountPoint {
            folder: PathBuf::from("/p"),
            beneath: PathBuf::from(beneath),
            is_dir,
        };
        assert_eq!(mount_points(&files), [point("deep/data", true), point("two.txt", false)]);
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
