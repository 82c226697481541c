//! Where a repository is, found without git and without believing it more than needed.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::config;
use crate::collect::HashKind;

/// The most of a file of git's own that is read.
const MAX_FILE: u64 = 1 << 20;

/// The most files that a configuration is read from.
const MAX_CONFIGS: usize = 32;

/// Where the parts of a repository are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitLocation {
    /// What `.git` is, or leads to: index and `HEAD` are there.
    pub(crate) git_dir: PathBuf,
    /// What all work trees of the repository have in common: objects, refs, configuration.
    pub(crate) common_dir: PathBuf,
    /// Whether `.git` is a file that leads elsewhere.
    pub(crate) is_linked: bool,
    pub(crate) hash: HashKind,
    /// Whether its refs are files, and not a table.
    pub(crate) has_ref_files: bool,
}

impl GitLocation {
    /// The repository whose work tree begins at `folder`. What its `.git` leads to must lie in `within`,
    /// or lead back to `folder`, as git has it for work trees.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if there is no `.git`; others if it is not what git makes.
    pub(crate) fn find(folder: &Path, within: &Path) -> io::Result<Self> {
        let git = folder.join(".git");
        let metadata = fs::symlink_metadata(&git)?;
        let (git_dir, common_dir) = if metadata.is_dir() {
            if git.join("commondir").symlink_metadata().is_ok() {
                return Err(odd(&git, "it says that another folder is the repository"));
            }
            (git.clone(), git.clone())
        } else if metadata.is_file() {
            linked(folder, &git, within).map_err(|error| match error.kind() {
                // There is a `.git`: what is missing is what it leads to.
                io::ErrorKind::NotFound => odd(&git, "it leads to no repository that leads back"),
                _ => error,
            })?
        } else {
            return Err(odd(&git, "it is neither a folder nor a file"));
        };
        for name in ["objects", "objects/pack", "objects/info", "refs", "worktrees"] {
            // Behind a link they could be anybody's, and would be copied into a clone or changed there.
            let path = common_dir.join(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_dir()) {
                return Err(odd(&path, "it is a link, or no folder"));
            }
        }
        Ok(Self::described(git_dir, common_dir, metadata.is_file()))
    }

    /// Something in the common folder, by a path that no link of the repository leads away from.
    ///
    /// # Errors
    ///
    /// If one of its folders is a link.
    pub(crate) fn common(&self, name: &str) -> io::Result<PathBuf> {
        let mut path = self.common_dir.clone();
        let mut parts = name.split('/').peekable();
        while let Some(part) = parts.next() {
            path.push(part);
            let is_around = parts.peek().is_some();
            if is_around && fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
                return Err(odd(&path, "it is a link"));
            }
        }
        Ok(path)
    }

    /// Where the objects are.
    ///
    /// # Errors
    ///
    /// If some are behind links: whoever is given these would be given those.
    pub(crate) fn own_objects(&self) -> io::Result<PathBuf> {
        let objects = self.common_dir.join("objects");
        for entry in fs::read_dir(&objects)? {
            let entry = entry?;
            if entry.file_type()?.is_symlink() {
                return Err(odd(&entry.path(), "it is a link"));
            }
        }
        objects.canonicalize()
    }

    /// A repository without a work tree, in `folder` itself.
    pub(crate) fn bare(folder: &Path) -> Option<Self> {
        let is_bare = folder.join("HEAD").is_file()
            && folder.join("objects").is_dir()
            && folder.join("refs").is_dir();
        is_bare.then(|| Self::described(folder.to_owned(), folder.to_owned(), false))
    }

    fn described(git_dir: PathBuf, common_dir: PathBuf, is_linked: bool) -> Self {
        let config = read(&common_dir.join("config")).unwrap_or_default();
        let says = |key: &str, value: &str| {
            config.lines().any(|line| {
                let line = line.to_ascii_lowercase();
                let mut parts = line.splitn(2, '=');
                parts.next().is_some_and(|name| name.trim() == key)
                    && parts.next().is_some_and(|got| got.trim() == value)
            })
        };
        Self {
            hash: match says("objectformat", "sha256") {
                true => HashKind::Sha256,
                false => HashKind::Sha1,
            },
            has_ref_files: !says("refstorage", "reftable"),
            is_linked,
            git_dir,
            common_dir,
        }
    }
}

/// What of the workspace `folder` git runs or reads because the configuration of its repository says so, or one that this
/// includes. Git reads it also where the repository is one that we would not use.
pub(crate) fn named_in(folder: &Path) -> Vec<PathBuf> {
    let mut waiting = configs_of(folder);
    let (mut seen, mut found) = (Vec::new(), Vec::new());
    while let Some(path) = waiting.pop() {
        if seen.contains(&path) || seen.len() >= MAX_CONFIGS {
            continue;
        }
        if let (Ok(text), Some(base)) = (read(&path), path.parent()) {
            found.extend(config::named_in(&text, base, folder));
            waiting.extend(config::included_by(&text, base));
        }
        seen.push(path);
    }
    found
}

/// Where the configuration of the repository in `folder` is, if there is one.
fn configs_of(folder: &Path) -> Vec<PathBuf> {
    let git = folder.join(".git");
    let led = |from: &Path, text: &str| from.join(text.trim_end_matches('\n'));
    let git_dir = match read(&git) {
        Ok(text) => match text.strip_prefix("gitdir: ") {
            Some(target) => led(folder, target),
            None => return Vec::new(),
        },
        Err(_) => git,
    };
    let common = read(&git_dir.join("commondir"));
    let common = common.map_or_else(|_| git_dir.clone(), |text| led(&git_dir, &text));
    vec![common.join("config"), git_dir.join("config.worktree")]
}

fn linked(folder: &Path, git: &Path, within: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let text = read(git)?;
    let Some(target) = text.trim_end_matches('\n').strip_prefix("gitdir: ") else {
        return Err(odd(git, "it does not say where the repository is"));
    };
    let git_dir = folder.join(target).canonicalize()?;
    if git_dir.starts_with(within.canonicalize()?) && !git_dir.join("commondir").exists() {
        return Ok((git_dir.clone(), git_dir));
    }
    let back = read(&git_dir.join("gitdir"))?;
    if Path::new(back.trim_end_matches('\n')).canonicalize()? != git.canonicalize()? {
        return Err(odd(git, "it leads to a repository that does not lead back"));
    }
    let common = read(&git_dir.join("commondir"))?;
    let common = git_dir.join(common.trim_end_matches('\n')).canonicalize()?;
    if git_dir.parent() != Some(&common.join("worktrees")) {
        return Err(odd(git, "it leads to a folder that is no work tree of its repository"));
    }
    Ok((git_dir, common))
}

/// A small file of git's own, as text.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(odd(path, "it is not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

fn odd(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}
