//! What a manifest comes to, as steps in the order in which they are taken.

use bastide_model::entry::GitRepo;
use bastide_model::{Entry, EntryKind, Manifest, PosixPath};
use bytes::Bytes;

use crate::compat::raise;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// One step.
#[derive(Debug)]
pub(super) enum LayoutStep {
    /// Something that goes over as part of a stream.
    Put(Put),
    /// A repository.
    Git(GitStep),
    /// The group of what is at a path.
    Group { path: PosixPath, group: String },
}

/// Something that goes over as part of a stream.
#[derive(Debug)]
pub(super) enum Put {
    Dir { path: PosixPath, mode: Option<u32> },
    File { path: PosixPath, mode: u32, content: Bytes },
    HostFile { path: PosixPath, mode: u32, src: PosixPath },
    HostDir { path: PosixPath, mode: u32, src: PosixPath },
}

/// A repository that is to be put somewhere.
#[derive(Debug)]
pub(super) struct GitStep {
    pub(super) path: PosixPath,
    pub(super) mode: u32,
    pub(super) repo: GitRepo,
    pub(super) subpath: Option<PosixPath>,
}

/// The steps that lay out a manifest, or only what of it is made anew at every start. Everything is
/// checked first: what cannot be done at all is refused before anything is done.
pub(super) fn steps(manifest: &Manifest, only_ephemeral: bool) -> Result<Vec<LayoutStep>> {
    let mut steps = Vec::new();
    if only_ephemeral {
        for (path, entry) in manifest.ephemeral_entries()? {
            add(&mut steps, path, entry)?;
        }
        return Ok(steps);
    }
    for (key, entry) in manifest.validated_entries()? {
        add(&mut steps, bastide_model::manifest::rel_path(key)?, entry)?;
    }
    Ok(steps)
}

fn add(steps: &mut Vec<LayoutStep>, path: PosixPath, entry: &Entry) -> Result<()> {
    if entry.permissions.mode() < 0 {
        let message = format!("the permissions of {path} make no sense: none can be negative");
        return Err(raise::value_error(message).with_class(ErrorClass::OverflowError));
    }
    if path.as_str().contains('\0') {
        return Err(raise::value_error("embedded null byte"));
    }
    let mode = u32::try_from(entry.permissions.mode() & 0o7777).unwrap_or(0o700);
    let place = path.clone();
    match &entry.kind {
        EntryKind::Dir { children } => {
            let first = steps.len();
            steps.push(LayoutStep::Put(Put::Dir { path: path.clone(), mode: None }));
            for (key, child) in children {
                let below = bastide_model::manifest::rel_path(key)?;
                add(steps, path.join(&below), child)?;
            }
            // A folder that may not be written to is closed when everything is in it.
            match steps.len() == first + 1 {
                true => steps[first] = LayoutStep::Put(Put::Dir { path, mode: Some(mode) }),
                false => steps.push(LayoutStep::Put(Put::Dir { path, mode: Some(mode) })),
            }
        }
        EntryKind::File { content } => {
            let content = Bytes::copy_from_slice(content);
            steps.push(LayoutStep::Put(Put::File { path, mode, content }));
        }
        EntryKind::LocalFile { src } => {
            steps.push(LayoutStep::Put(Put::HostFile { path, mode, src: src.clone() }));
        }
        EntryKind::LocalDir { src: Some(src) } => {
            steps.push(LayoutStep::Put(Put::HostDir { path, mode, src: src.clone() }));
        }
        EntryKind::LocalDir { src: None } => {
            steps.push(LayoutStep::Put(Put::Dir { path, mode: Some(mode) }));
        }
        EntryKind::GitRepo(repo) => {
            let subpath = repo.checked_subpath()?;
            steps.push(LayoutStep::Git(GitStep { path, mode, repo: repo.clone(), subpath }));
        }
        // Mounted when everything else is there.
        EntryKind::Mount(_) => return Ok(()),
        EntryKind::Custom(_) => {
            let message = format!("cannot lay out {path}: entries of type `{}`", entry.type_name());
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_context("type", entry.type_name())
                .with_hint("entries of type `file`, `dir`, `local_file`, `local_dir` and `git_repo` can be laid out"));
        }
    }
    if let Some(group) = &entry.group {
        steps.push(LayoutStep::Group { path: place, group: group.name().to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bastide_model::lax;
    use serde_json::json;

    use super::*;

    fn shown(manifest: serde_json::Value, only_ephemeral: bool) -> Vec<String> {
        let manifest: Manifest = lax::read(&manifest).unwrap();
        let steps = steps(&manifest, only_ephemeral).unwrap();
        let show = |step: &LayoutStep| match step {
            LayoutStep::Put(Put::Dir { path, mode: None }) => format!("dir {path}"),
            LayoutStep::Put(Put::Dir { path, mode: Some(mode) }) => format!("dir {path} {mode:o}"),
            LayoutStep::Put(Put::File { path, mode, .. }) => format!("file {path} {mode:o}"),
            LayoutStep::Put(Put::HostFile { path, .. }) => format!("host file {path}"),
            LayoutStep::Put(Put::HostDir { path, .. }) => format!("host dir {path}"),
            LayoutStep::Git(git) => format!("git {}", git.path),
            LayoutStep::Group { path, group } => format!("group {path} {group}"),
        };
        steps.iter().map(show).collect()
    }

    #[test]
    fn closes_folders_when_everything_is_in_them() {
        let manifest = json!({"entries": {
            "d": {"type": "dir", "permissions": {"owner": 5}, "children": {
                "e": {"type": "dir"},
                "f": {"type": "file", "content": "x", "group": {"name": "g"}},
            }},
            "r": {"type": "git_repo", "repo": "a/b", "ref": "main"},
        }});
        let want = ["dir d", "dir d/e 755", "file d/f 755", "group d/f g", "dir d 500", "git r"];
        assert_eq!(shown(manifest, false), want);
    }

    #[test]
    fn makes_only_the_outermost_ephemeral_entries_with_all_that_is_in_them() {
        let manifest = json!({"entries": {
            "keep": {"type": "dir", "children": {
                "e": {"type": "file", "content": "", "ephemeral": true},
                "k": {"type": "file", "content": ""},
            }},
            "all": {"type": "dir", "ephemeral": true, "children": {"k": {"type": "file", "content": ""}}},
        }});
        assert_eq!(
            shown(manifest, true),
            ["file keep/e 755", "dir all", "file all/k 755", "dir all 755"]
        );
    }

    #[test]
    fn refuses_permissions_below_nothing() {
        let bad = json!({"entries": {"a": {"type": "file", "content": "", "permissions": {"owner": -1}}}});
        let bad: Manifest = lax::read(&bad).unwrap();
        assert_eq!(steps(&bad, false).unwrap_err().class(), Some(ErrorClass::OverflowError));
    }

    #[test]
    fn refuses_a_wrong_path_or_an_unknown_type_before_anything_else() {
        let bad = json!({"entries": {"a": {"type": "file", "content": ""}, "/abs": {"type": "file", "content": ""}}});
        let bad: Manifest = lax::read(&bad).unwrap();
        assert_eq!(
            steps(&bad, false).unwrap_err().class(),
            Some(ErrorClass::InvalidManifestPathError)
        );
    }
}
