//! Following links, over whatever holds the files.

use std::collections::HashMap;

use super::{PathInput, invalid_path, refuse_filesystem_root, refuse_resolved_filesystem_root};
use crate::error::Result;
use crate::error::raise;
use crate::{PathGrant, PosixPath, WindowsPath};

/// What following links has to know about the files of a host.
pub trait HostFiles {
    /// The target of the link at the absolute `path`, or `None` if what is there is no link or
    /// nothing is there.
    ///
    /// # Errors
    /// The target cannot be told. Saying `None` instead would let a path past its link.
    fn read_link(&self, path: &str) -> Result<Option<String>>;

    /// Whether anything is at the absolute `path`, links followed.
    fn exists(&self, path: &str) -> bool;
}

/// What becomes of a path that is absolute already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsolutePaths {
    /// It is refused.
    Refused,
    /// It is fine below the workspace's folder, by name and, if that folder exists on this host, also
    /// with links followed.
    BelowRoot,
}

/// Where the absolute `path` leads, with every link on the way followed. What does not exist is
/// taken by name.
///
/// # Errors
/// A `RuntimeError` if links lead in a circle, a `ValueError` for a NUL, and whatever `files` says.
pub fn resolve_links(path: &PosixPath, files: &dyn HostFiles) -> Result<PosixPath> {
    let mut walk = Walk { files, here: Vec::new(), links: HashMap::new() };
    walk.run(path.as_str())?;
    let looping = walk.links.values().any(|link| match link {
        Link::Looping(at) => walk.here.starts_with(at),
        Link::Open | Link::Leads(_) => false,
    });
    let resolved = PosixPath::new(&format!("/{}", walk.here.join("/")));
    match looping {
        true => Err(raise::runtime_error(format!("Symlink loop from '{resolved}'"))),
        false => Ok(resolved),
    }
}

/// What is known of a link that was met.
enum Link {
    /// It is being followed.
    Open,
    /// It leads there.
    Leads(Vec<String>),
    /// It leads back to itself; it is kept as a name, here.
    Looping(Vec<String>),
}

struct Walk<'a> {
    files: &'a dyn HostFiles,
    /// The names from the root to where we are.
    here: Vec<String>,
    /// Every link met, by its own path. Each is followed once, so that links to links cannot
    /// multiply.
    links: HashMap<String, Link>,
}

/// What is still to be walked.
enum PathToken {
    Name(String),
    /// A link was followed to its end.
    Leave(String),
}

impl Walk<'_> {
    fn run(&mut self, path: &str) -> Result<()> {
        let mut steps: Vec<PathToken> = names_reversed(path).collect();
        while let Some(step) = steps.pop() {
            match step {
                PathToken::Leave(link) => {
                    if let Some(state @ Link::Open) = self.links.get_mut(&link) {
                        *state = Link::Leads(self.here.clone());
                    }
                }
                PathToken::Name(name) if name == ".." => {
                    self.here.pop();
                }
                PathToken::Name(name) => self.enter(name, &mut steps)?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, name: String, steps: &mut Vec<PathToken>) -> Result<()> {
        if name.contains('\0') {
            return Err(raise::value_error("embedded null byte"));
        }
        self.here.push(name);
        let at = format!("/{}", self.here.join("/"));
        match self.links.get(&at) {
            Some(Link::Leads(place)) => self.here.clone_from(place),
            Some(Link::Looping(_)) => {}
            Some(Link::Open) => {
                self.links.insert(at, Link::Looping(self.here.clone()));
            }
            None => {
                let Some(target) = self.files.read_link(&at)? else { return Ok(()) };
                if target.starts_with('/') {
                    self.here.clear();
                } else {
                    self.here.pop();
                }
                self.links.insert(at.clone(), Link::Open);
                steps.push(PathToken::Leave(at));
                steps.extend(names_reversed(&target));
            }
        }
        Ok(())
    }
}

fn names_reversed(path: &str) -> impl Iterator<Item = PathToken> {
    let names = path.split('/').rev().filter(|name| !matches!(*name, "" | "."));
    names.map(|name| PathToken::Name(name.to_owned()))
}

/// Where a grant is on the host, links followed.
///
/// # Errors
/// A `ValueError` if that is no absolute path of this host, or all of its file system.
pub fn grant_host_path(grant: &PathGrant, files: &dyn HostFiles) -> Result<PosixPath> {
    let raw = grant.host_path.as_deref().unwrap_or(&grant.path);
    let path = PosixPath::new(raw);
    if !path.is_absolute() {
        return Err(raise::value_error(format!(
            "sandbox path grant host_path must be absolute on the current host: {raw}"
        )));
    }
    refuse_filesystem_root(&path)?;
    let resolved = resolve_links(&path, files)?;
    refuse_resolved_filesystem_root(&resolved)?;
    Ok(resolved)
}

/// The path of an entry of a manifest below the workspace's folder `root`.
///
/// # Errors
/// `InvalidManifestPathError` if it is not below `root`.
pub fn resolve_workspace_path<'a>(
    root: impl Into<PathInput<'a>>,
    rel: impl Into<PathInput<'a>>,
    absolute: AbsolutePaths,
    files: &dyn HostFiles,
) -> Result<PosixPath> {
    let (root, rel) = (root.into().to_posix(), rel.into());
    if let Some(windows) = WindowsPath::absolute(rel.as_str()) {
        return Err(invalid_path(&windows.to_posix(), true));
    }
    let rel = rel.to_posix();
    if rel.climbs() && !rel.is_absolute() {
        return Err(invalid_path(rel.as_str(), false));
    }
    if !rel.is_absolute() {
        return Ok(root.join(&rel));
    }
    if absolute == AbsolutePaths::Refused {
        return Err(invalid_path(rel.as_str(), true));
    }
    let (rel, root) = (rel.normalized(), root.normalized());
    let outside = || invalid_path(rel.as_str(), true);
    if root.is_absolute() && files.exists(root.as_str()) {
        let resolved = resolve_links(&rel, files)?;
        if !resolved.is_below(&resolve_links(&root, files)?) {
            return Err(outside());
        }
    }
    if rel.is_below(&root) { Ok(rel) } else { Err(outside()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(&'static [(&'static str, &'static str)]);

    impl HostFiles for Files {
        fn read_link(&self, path: &str) -> Result<Option<String>> {
            Ok(self.0.iter().find(|(link, _)| *link == path).map(|(_, to)| (*to).to_owned()))
        }

        fn exists(&self, _: &str) -> bool {
            true
        }
    }

    #[test]
    fn follows_links_to_their_end() {
        let files = Files(&[
            ("/w/in", "dir/b"),
            ("/w/up", ".."),
            ("/w/abs", "/out"),
            ("/w/one", "two"),
            ("/w/two", "in"),
            ("/w/loop", "loop"),
            ("/w/a", "b/c"),
            ("/w/b", "a"),
        ]);
        let cases = [
            ("/w/in/x", Some("/w/dir/b/x")),
            ("/w/up/w/up/etc", Some("/etc")),
            ("/w/abs/../y", Some("/y")),
            ("/w/one", Some("/w/dir/b")),
            ("/w/missing/../abs", Some("/out")),
            ("//w/in", Some("/w/dir/b")),
            ("/w/loop", None),
            ("/w/loop/x", None),
            ("/w/a/d", None),
            // Where a circle is left again by `..`, what follows is still resolved.
            ("/w/loop/../abs", Some("/out")),
        ];
        for (path, want) in cases {
            let got = resolve_links(&PosixPath::new(path), &files).ok();
            assert_eq!(got.as_ref().map(PosixPath::as_str), want, "path {path}");
        }
    }
}
