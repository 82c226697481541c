//! Files and folders of the host that a session works in: which may be, and where they are.

mod record;
mod system_paths;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bastide::compat::raise;
use bastide::host::resolve::{FileKind, Found, ResolveError, resolve};
use bastide::{Condition, Error, ErrorKind, Grant, Isolation, MachineSpec, Result, Rung};
use bastide_proto::boot::{InodeId, MountPoint, UserAndGroup};

use record::refuse_others;
pub(crate) use record::{GrantedFile, granted_files};
use system_paths::refuse_system_path;

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
    /// Which file that is, if it is the caller's: whatever is found there later has to be the same.
    pub(crate) identity: Option<InodeId>,
}

/// Refuses sandboxes inside the sandbox where commands write to folders of the host: in a user namespace of its own a
/// command mounts an overlay, and the kernel itself copies set-id programs, file capabilities and devices into its upper
/// folder. No filter sees what kind of file system is mounted.
pub(crate) fn refuse_nested(spec: &MachineSpec) -> Result<()> {
    let writable = spec.grants.iter().filter(|grant| !grant.read_only).map(|grant| &grant.host);
    let folder = spec.host_workspace.iter().chain(writable).next();
    let (true, Some(folder)) = (spec.nested_sandbox, folder) else { return Ok(()) };
    if spec.isolation == Isolation::Exactly(Rung::Unconfined) {
        return Ok(());
    }
    let message = format!(
        "sandboxes inside the sandbox cannot be had where commands write to {}: the kernel would leave set-id programs \
         there for them",
        folder.display()
    );
    let hint = "use a workspace of the session's own, grant the folder read-only, or do without nested sandboxes";
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_context("path", folder.display().to_string())
        .with_hint(hint))
}

/// Everything of the host a session works in, what lies in something else after it. The first is
/// the workspace, if that is a folder of the host.
pub(crate) fn files(spec: &MachineSpec, home: &Path) -> Result<Vec<HostFile>> {
    let home = home.canonicalize().map_err(|error| {
        let message = format!("cannot find {}: {error}", home.display());
        Error::new(ErrorKind::Io, message)
    })?;
    let open = writable_folders(spec);
    let mut files = Vec::new();
    if let Some(folder) = &spec.host_workspace {
        files.push(workspace(folder, spec.root.as_str(), &home, &open)?);
    }
    for grant in &spec.grants {
        let target = grant.path.as_str();
        // Of two with the same name the first is meant, and the workspace before all.
        if target != spec.root.as_str() && files.iter().all(|file| file.target != target) {
            files.push(granted(grant, &home, &open)?);
        }
    }
    refuse_others(&files, spec)?;
    Ok(files)
}

/// The folders that commands of the session may write to, wherever their paths lead now: a command of an earlier start
/// can have changed what lies in them, and through no other folder a path to them.
fn writable_folders(spec: &MachineSpec) -> Vec<InodeId> {
    let grants = spec.grants.iter().filter(|grant| !grant.read_only).map(|grant| &grant.host);
    let all = spec.host_workspace.iter().chain(grants);
    // One that cannot be found has nothing in it, and is refused by its own name.
    all.filter_map(|path| resolve(path, &[]).ok()).map(|found| found.identity).collect()
}

/// A folder that is the workspace; made if it is missing, as the reference does.
fn workspace(folder: &Path, root: &str, home: &Path, open: &[InodeId]) -> Result<HostFile> {
    let what = format!("{} cannot be a workspace", folder.display());
    refuse_system_path(&what, folder, home, true)?;
    let failed = |error: ResolveError| match error {
        ResolveError::PlantedLink(_) => error.into_refusal(&what, folder),
        ResolveError::Io(_) => {
            raise::workspace_start(folder.display()).with_source(error.into_refusal(&what, folder))
        }
    };
    let found = match resolve(folder, open) {
        Err(error) if error.is_missing() => fs::create_dir_all(folder)
            .map_err(ResolveError::Io)
            .and_then(|()| resolve(folder, open)),
        found => found,
    };
    let found = found.map_err(failed)?;
    refuse_system_path(&what, &found.path, home, true)?;
    match found.kind {
        FileKind::Folder => Ok(host_file(found, root, true)),
        _ => Err(failed(ResolveError::Io(io::ErrorKind::NotADirectory.into()))),
    }
}

fn granted(grant: &Grant, home: &Path, open: &[InodeId]) -> Result<HostFile> {
    let target = grant.path.as_str();
    let what = format!("{} cannot be granted at {target}", grant.host.display());
    refuse_system_path(&what, Path::new(target), home, !grant.read_only)?;
    let found =
        resolve(&grant.host, open).map_err(|error| error.into_refusal(&what, &grant.host))?;
    refuse_system_path(&what, &found.path, home, !grant.read_only)?;
    if found.kind == FileKind::Other {
        let error = io::Error::other("it is neither a folder nor a regular file");
        return Err(ResolveError::Io(error).into_refusal(&what, &grant.host));
    }
    Ok(host_file(found, target, !grant.read_only))
}

fn host_file(found: Found, target: &str, writable: bool) -> HostFile {
    let Found { path, identity, kind, owner } = found;
    HostFile {
        source: path,
        target: target.to_owned(),
        writable,
        is_dir: kind == FileKind::Folder,
        is_own: false,
        owner,
        identity: Some(identity),
    }
}

/// Refuses what is granted for reading only, but lies in something that may be written. A rung with mounts
/// covers it, where it is mounted in its own place; everywhere else it could be written by its other name.
pub(crate) fn refuse_overlaps(files: &[HostFile], rung: Rung) -> Result<()> {
    for closed in files.iter().filter(|file| !file.writable) {
        for open in files.iter().filter(|file| file.writable && !file.is_own) {
            let Ok(beneath) = closed.source.strip_prefix(&open.source) else { continue };
            let in_place = Path::new(&open.target).join(beneath) == Path::new(&closed.target);
            if rung == Rung::Unconfined {
                continue;
            }
            if rung == Rung::Namespaces && in_place {
                refuse_names(closed, open)?;
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

/// Refuses a file that has other names: a command of an earlier session can have made one in the folder around it, and by
/// that the file could be written.
fn refuse_names(closed: &HostFile, open: &HostFile) -> Result<()> {
    let names = fs::symlink_metadata(&closed.source).map_or(1, |found| found.nlink());
    if closed.is_dir || names < 2 {
        return Ok(());
    }
    let (what, around) = (closed.source.display(), open.source.display());
    let message = format!(
        "{what} cannot be granted for reading only: it has {names} names, and may be written by another in {around}"
    );
    let error = Error::new(ErrorKind::Unsupported, message).with_context("path", what.to_string());
    Err(error.with_hint("put a copy in its place, which has one name, or move it elsewhere"))
}

/// What has to be in folders of the host for others of them to be mounted there.
pub(crate) fn mount_points(files: &[HostFile]) -> Vec<MountPoint> {
    files.iter().filter_map(|file| mount_point(files, &file.target, file.is_dir)).collect()
}

/// What has to be in a folder of the host for something to be mounted on `target`, if that lies in one.
pub(crate) fn mount_point(files: &[HostFile], target: &str, is_dir: bool) -> Option<MountPoint> {
    let lies_in = |other: &&HostFile| {
        other.is_dir && other.target != target && is_beneath(target, &other.target)
    };
    let around = files.iter().filter(lies_in).max_by_key(|other| other.target.len())?;
    // The session's own storage is its own affair, and what may only be read is not written for this.
    if !around.writable || around.is_own {
        return None;
    }
    let beneath = Path::new(target).strip_prefix(&around.target).ok()?.to_owned();
    Some(MountPoint { folder: around.source.clone(), identity: around.identity?, beneath, is_dir })
}

/// The folders around a file that is granted for reading only, by their paths inside, outermost first, that lie in
/// folders of the host that may be written. A mount cannot be renamed from inside; a folder around one can, and then
/// another one takes its place on the host.
pub(crate) fn around<'a>(file: &'a HostFile, files: &[HostFile]) -> Vec<&'a str> {
    let can_be_renamed = |folder: &&str| {
        let holds = |other: &&HostFile| other.is_dir && is_beneath(folder, &other.target);
        let innermost = files.iter().filter(holds).max_by_key(|other| other.target.len());
        innermost.is_some_and(|other| other.writable && !other.is_own && other.target != *folder)
    };
    if file.writable {
        return Vec::new();
    }
    let ends = file.target.match_indices('/').map(|(end, _)| end).skip(1);
    ends.map(|end| &file.target[..end]).filter(can_be_renamed).collect()
}

fn is_beneath(path: &str, folder: &str) -> bool {
    Path::new(path).starts_with(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_links_before_it_trusts_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let workspace = workspace(&link, link.to_str().unwrap(), &home, &[]);
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
            identity: Some(InodeId { device: 1, inode: 2 }),
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
            identity: InodeId { device: 1, inode: 2 },
            beneath: PathBuf::from(beneath),
            is_dir,
        };
        assert_eq!(mount_points(&files), [point("deep/data", true), point("two.txt", false)]);
    }

    #[test]
    fn knows_which_folders_could_be_renamed_around_a_grant() {
        let mut own = file("/storage", "/workspace", true);
        own.is_own = true;
        let files = [
            own,
            file("/p", "/p", true),
            file("/p/a/b/c", "/p/a/b/c", false),
            file("/p/d/e", "/p/d/e", true),
            file("/q", "/p/f", false),
            file("/r", "/workspace/g/h", false),
            file("/s", "/s/t", false),
            file("/p/u/v", "/p/u/v", true),
            file("/p/u/v/w/x", "/p/u/v/w/x", false),
            file("/p/u/v/w/x/y/z", "/p/u/v/w/x/y/z", false),
        ];
        let got: Vec<_> = files.iter().map(|file| around(file, &files)).collect();
        let got: Vec<_> = got.into_iter().filter(|around| !around.is_empty()).collect();
        let outer = vec!["/p/u", "/p/u/v/w"];
        assert_eq!(got, [vec!["/p/a", "/p/a/b"], outer.clone(), outer]);
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
