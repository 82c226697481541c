//! Folders and their entries.

use std::time::SystemTime;

use bastide_model::PosixPath;
use bastide_model::paths::{PathUse, WorkspacePathPolicy};
use bastide_proto::files::{DirListing, FileOp, FoundFile, Glob, Resolved};
use bastide_proto::{Fault, FaultKind, UnresolvedPath};
use serde_bytes::ByteBuf;
use serde_json::json;

use super::call::{self, CallItem};
use super::files_error::{FilesError, is_missing, path_of, read_only};
use super::info::{FileInfo, file_time};
use super::path::Target;
use super::{Files, MAX_ENTRIES};
use crate::compat::raise;
use crate::events::Finished;
use crate::link::fault::refused;
use crate::link::{broken, decode};
use crate::{Error, ErrorClass, ErrorKind, Result};

/// The most bytes of names that are kept of one listing.
const MAX_BYTES: usize = 64 << 20;

impl Files<'_> {
    /// Lists a folder, by name.
    ///
    /// # Errors
    ///
    /// `ExecNonZeroError` if it cannot be listed or is not a folder, `InvalidManifestPathError` if
    /// its path leads out, [`LimitExceeded`](ErrorKind::LimitExceeded) if it has more than
    /// [`MAX_ENTRIES`] entries.
    pub async fn ls(&self, path: &str) -> Result<Vec<FileInfo>> {
        let scope = self.extension("ls", || json!({"path": path}));
        let work = async {
            let target = Target::new(self.policy, path, |path| {
                too_long(&["ls", "-la", "--", path.as_str()])
            })?;
            let listed = self.try_ls(&target).await;
            listed.map_err(|failure| {
                failure.into_error(self.policy, &target, |fault| {
                    let place = path_of(&fault, &target);
                    failed_command(&["ls", "-la", "--", &place], fault)
                })
            })
        };
        scope.record(work, |all| Finished::extension(json!({"entries": all.len()}))).await
    }

    async fn try_ls(&self, target: &Target) -> Result<Vec<FileInfo>, FilesError> {
        let mut stream = self.open_call(FileOp::List { path: target.path.clone() }).await?;
        let (mut all, mut bytes) = (Vec::new(), 0);
        loop {
            let DirListing { folder, entries } = match call::next(&mut stream).await? {
                CallItem::Item(item) => decode(&item)?,
                CallItem::Done => break,
                CallItem::Data(_) => return Err(broken("data in a listing").into()),
            };
            for (name, stat) in entries {
                bytes += folder.len() + name.len() + stat.target.as_ref().map_or(0, |t| t.len());
                if all.len() >= MAX_ENTRIES || bytes > MAX_BYTES {
                    let message = format!("{} has more than {MAX_ENTRIES} entries", target.path);
                    return Err(Error::new(ErrorKind::LimitExceeded, message).into());
                }
                let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
                all.push(FileInfo::new([&folder, slash, &name].concat(), stat));
            }
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(all)
    }

    /// Describes a file; a link is followed.
    ///
    /// # Errors
    ///
    /// `WorkspaceReadNotFoundError` if there is none, else `WorkspaceArchiveReadError`;
    /// `InvalidManifestPathError` if its path leads out.
    pub async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.describe(path, true).await
    }

    /// Describes a file; a link is described itself.
    ///
    /// # Errors
    ///
    /// As [`stat`](Self::stat).
    pub async fn lstat(&self, path: &str) -> Result<FileInfo> {
        self.describe(path, false).await
    }

    async fn describe(&self, path: &str, follow: bool) -> Result<FileInfo> {
        let scope = self.extension("stat", || json!({"path": path, "follow": follow}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_read_not_found)?;
            let found =
                self.one::<FoundFile>(FileOp::Stat { path: target.path.clone(), follow }).await;
            let found = found.map_err(|failure| {
                failure.into_error(self.policy, &target, |fault| match is_missing(&fault) {
                    true => {
                        raise::workspace_read_not_found(&target.given).with_source(refused(fault))
                    }
                    false => {
                        raise::workspace_archive_read(&target.given).with_source(refused(fault))
                    }
                })
            })?;
            Ok(FileInfo::new(found.path.into_vec(), found.stat))
        };
        scope.record_unit(work).await
    }

    /// Makes a folder in one that is there. One that exists already is fine.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveWriteError` if it cannot be made, or lies where only reading is granted;
    /// `InvalidManifestPathError` if its path leads out.
    pub async fn mkdir(&self, path: &str) -> Result<()> {
        self.make_folder(path, false).await
    }

    /// Makes a folder, and those above it that are missing.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn mkdir_all(&self, path: &str) -> Result<()> {
        self.make_folder(path, true).await
    }

    async fn make_folder(&self, path: &str, parents: bool) -> Result<()> {
        let scope = self.extension("mkdir", || json!({"path": path, "parents": parents}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            let made = self.quiet(FileOp::MakeDir { path: target.path.clone(), parents }).await;
            made.map_err(|failure| failure.into_write_error(self.policy, &target))
        };
        scope.record_unit(work).await
    }

    /// Removes an entry: a file, an empty folder, or a link itself, never what it points to.
    ///
    /// # Errors
    ///
    /// `ExecNonZeroError` if it does not exist, `WorkspaceArchiveWriteError` if it cannot be removed
    /// or may only be read, `InvalidManifestPathError` if its path leads out.
    pub async fn rm(&self, path: &str) -> Result<()> {
        self.remove(path, false).await
    }

    /// Removes an entry, and a folder with all that is in it. What does not exist is fine. The root of
    /// the workspace is emptied and stays.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveWriteError` if it cannot be removed or holds something that may only be read,
    /// `InvalidManifestPathError` if its path leads out.
    pub async fn rm_all(&self, path: &str) -> Result<()> {
        self.remove(path, true).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let scope = self.extension("rm", || json!({"path": path, "recursive": recursive}));
        let work = async {
            let target =
                Target::new(self.policy, path, |path| too_long(&["rm", "--", path.as_str()]))?;
            // What may only be read is not removed with what is around it. Whether the path itself may be
            // changed depends on where it leads.
            if recursive && self.policy.normalize_path(&target.given, PathUse::Write).is_ok() {
                self.policy.validate_recursive_remove(&target.given)?;
            }
            let removed = self.quiet(FileOp::Remove { path: target.path.clone(), recursive }).await;
            removed.map_err(|failure| match failure {
                FilesError::Fault(fault) if is_missing(&fault) => {
                    let flag = if recursive { "-rf" } else { "--" };
                    let place = path_of(&fault, &target);
                    failed_command(&["rm", flag, &place], fault)
                }
                failure => failure.into_write_error(self.policy, &target),
            })
        };
        scope.record_freeing_space(work).await
    }

    /// Renames a regular file or a link, replacing what is there but never a folder.
    ///
    /// # Errors
    ///
    /// `ExecNonZeroError` if it cannot be renamed, `WorkspaceArchiveWriteError` where only reading
    /// is granted, `InvalidManifestPathError` if a path leads out.
    pub async fn mv(&self, source: &str, destination: &str) -> Result<()> {
        let scope = self.extension("mv", || json!({"source": source, "destination": destination}));
        let work = async {
            let pair = self.pair([source, destination], false).await?;
            let [from, to] = pair.paths();
            let command =
                |[from, to]: [String; 2]| vec!["mv".into(), "-f".into(), "--".into(), from, to];
            self.paired(FileOp::Rename { from, to }, pair, command).await?;
            Ok(())
        };
        scope.record_unit(work).await
    }

    /// Whether two paths lead to the same file, links followed. What does not exist is the same as
    /// nothing.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` if a path leads out, `ExecNonZeroError` if one cannot be looked at.
    pub async fn same_file(&self, left: &str, right: &str) -> Result<bool> {
        self.compare(left, right, true).await
    }

    /// Whether two paths name the same file themselves. What does not exist is the same as nothing, and
    /// so is a link.
    ///
    /// # Errors
    ///
    /// As [`same_file`](Self::same_file).
    pub async fn same_entry(&self, left: &str, right: &str) -> Result<bool> {
        self.compare(left, right, false).await
    }

    async fn compare(&self, left: &str, right: &str, follow: bool) -> Result<bool> {
        let scope = self.extension("same_file", || json!({"left": left, "right": right}));
        let work = async {
            let pair = self.pair([left, right], follow).await?;
            let [left, right] = pair.paths();
            let command =
                |[left, right]: [String; 2]| vec!["test".into(), left, "-ef".into(), right];
            let answer =
                self.paired(FileOp::SameFile { left, right, follow }, pair, command).await?;
            answer.ok_or_else(|| broken("no answer"))
        };
        scope.record(work, |same| Finished::extension(json!({"same": same}))).await
    }

    /// Where a path leads, links followed; what it names need not exist. It is what the guest says: a
    /// path to be asked for, and nothing to rely on.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` if it leads out.
    pub(crate) async fn resolve(&self, path: &str) -> Result<String> {
        let pair = self.pair([path, path], true).await?;
        let [left, right] = pair.paths();
        let mut resolved = None;
        let looked = self.try_pair(FileOp::SameFile { left, right, follow: true }, &mut resolved);
        match looked.await {
            Err(FilesError::Other(error)) => return Err(error),
            Err(FilesError::Fault(fault)) if fault.kind == FaultKind::Escape => {
                return Err(pair.targets[0].escape());
            }
            // Whoever uses the path hears what is wrong with what it names.
            Ok(_) | Err(FilesError::Fault(_)) => {}
        }
        let first = resolved.and_then(|resolved| resolved.first);
        let first = first.and_then(|place| String::from_utf8(place.into_vec()).ok());
        Ok(first.unwrap_or_else(|| pair.targets[0].path.as_str().to_owned()))
    }

    /// Reads two paths. If the second is refused by its name, the first may still be by where it
    /// leads, and comes first.
    async fn pair(&self, paths: [&str; 2], follow: bool) -> Result<Pair> {
        let refuse = |_: PosixPath| too_long(&["test", paths[0], "-ef", paths[1]]);
        let first = Target::new(self.policy, paths[0], refuse)?;
        match Target::new(self.policy, paths[1], refuse) {
            Ok(second) => Ok(Pair { targets: [first, second], follow }),
            Err(error) => {
                let (left, right) = (first.path.clone(), first.path.clone());
                let pair = Pair { targets: [first.clone(), first], follow };
                let op = FileOp::SameFile { left, right, follow };
                match self.paired(op, pair, |_| Vec::new()).await {
                    Err(outside)
                        if outside.class() == Some(ErrorClass::InvalidManifestPathError) =>
                    {
                        Err(outside)
                    }
                    _ => Err(error),
                }
            }
        }
    }

    /// A call about two paths; `command` is what it would have been.
    async fn paired(
        &self,
        op: FileOp,
        pair: Pair,
        command: impl FnOnce([String; 2]) -> Vec<String>,
    ) -> Result<Option<bool>> {
        let mut resolved = None;
        match self.try_pair(op, &mut resolved).await {
            Ok(answer) => Ok(answer),
            Err(FilesError::Other(error)) => Err(error),
            Err(FilesError::Fault(fault)) => {
                Err(pair.refuse(self.policy, fault, resolved.as_ref(), command))
            }
        }
    }

    async fn try_pair(
        &self,
        op: FileOp,
        resolved: &mut Option<Resolved>,
    ) -> Result<Option<bool>, FilesError> {
        let has_answer = matches!(op, FileOp::SameFile { .. });
        let mut stream = self.open_call(op).await?;
        *resolved = Some(call::item(&mut stream).await?);
        let mut answer = None;
        loop {
            match call::next(&mut stream).await? {
                CallItem::Done => return Ok(answer),
                CallItem::Item(item) if has_answer => answer = Some(decode(&item)?),
                CallItem::Item(_) => {}
                CallItem::Data(_) => return Err(broken("data where none is due").into()),
            }
        }
    }

    /// Sets the permission bits of a file.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let scope = self.extension("chmod", || json!({"path": path, "mode": format!("{mode:o}")}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            let set = self.quiet(FileOp::SetMode { path: target.path.clone(), mode }).await;
            set.map_err(|failure| failure.into_write_error(self.policy, &target))
        };
        scope.record_unit(work).await
    }

    /// Sets when a file, folder or link was last changed; a link is not followed. A session that an earlier version
    /// started cannot, and keeps the time at which it was written.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn set_modified(&self, path: &str, modified: SystemTime) -> Result<()> {
        let scope = self.extension("set_modified", || json!({"path": path}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            if self.link.protocol() < bastide_proto::USAGE_VERSION {
                return Ok(());
            }
            let (path, modified) = (target.path.clone(), file_time(modified));
            let set = self.quiet(FileOp::SetTime { path, modified }).await;
            set.map_err(|failure| failure.into_write_error(self.policy, &target))
        };
        scope.record_unit(work).await
    }

    /// Sets the owner and the group of a file, each a name or a number of the sandbox; a link is
    /// followed.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn chown(&self, path: &str, owner: Option<&str>, group: Option<&str>) -> Result<()> {
        let scope =
            self.extension("chown", || json!({"path": path, "owner": owner, "group": group}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            let text = |text: Option<&str>| text.map(ToOwned::to_owned);
            let (path, owner, group) = (target.path.clone(), text(owner), text(group));
            let set = self.quiet(FileOp::SetOwner { path, owner, group, follow: true }).await;
            set.map_err(|failure| failure.into_write_error(self.policy, &target))
        };
        scope.record_unit(work).await
    }

    /// Makes a symbolic link that says `points_to`, wherever that may lead.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn symlink(&self, path: &str, points_to: &str) -> Result<()> {
        let scope = self.extension("symlink", || json!({"path": path, "points_to": points_to}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            let (path, text) = (target.path.clone(), ByteBuf::from(points_to));
            let made = self.quiet(FileOp::Symlink { path, target: text }).await;
            made.map_err(|failure| failure.into_write_error(self.policy, &target))
        };
        scope.record_unit(work).await
    }

    /// Finds files of the workspace by pattern, sorted, as paths from its root. `*`, `?` and `[...]`
    /// match within a name, `**` any number of names; none of them matches a dot at the front of a
    /// name. Links are found and never entered.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a pattern that is absolute, empty or leads
    /// upwards, [`LimitExceeded`](ErrorKind::LimitExceeded) if there are more than [`MAX_ENTRIES`]
    /// matches.
    pub async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        let scope = self.extension("glob", || json!({"pattern": pattern}));
        let work = async {
            let target = Target::new(self.policy, ".", raise::workspace_read_not_found)?;
            let found = self.try_glob(&target, pattern).await;
            let mut found = found.map_err(|failure| match failure {
                FilesError::Fault(fault) => refused(fault),
                FilesError::Other(error) => error,
            })?;
            found.sort_unstable();
            Ok(found)
        };
        scope.record(work, |found| Finished::extension(json!({"found": found.len()}))).await
    }

    async fn try_glob(&self, target: &Target, pattern: &str) -> Result<Vec<String>, FilesError> {
        let max = MAX_ENTRIES as u64;
        let glob = Glob { base: target.path.clone(), pattern: pattern.to_owned(), max };
        let mut stream = self.open_call(FileOp::Glob(glob)).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        loop {
            let some: Vec<ByteBuf> = match call::next(&mut stream).await? {
                CallItem::Item(item) => decode(&item)?,
                CallItem::Done => return Ok(found),
                CallItem::Data(_) => return Err(broken("data in a search").into()),
            };
            for path in some {
                bytes += path.len();
                found.push(String::from_utf8_lossy(&path).into_owned());
            }
            if found.len() > MAX_ENTRIES || bytes > MAX_BYTES {
                return Err(broken("more matches than were asked for").into());
            }
        }
    }
}

/// Two paths of one call.
struct Pair {
    targets: [Target; 2],
    /// Whether links in their places are followed.
    follow: bool,
}

impl Pair {
    fn paths(&self) -> [UnresolvedPath; 2] {
        self.targets.each_ref().map(|target| target.path.clone())
    }

    /// The error of a call that failed. What the guest says about where they lead is only shown.
    fn refuse(
        &self,
        policy: &WorkspacePathPolicy,
        fault: Fault,
        resolved: Option<&Resolved>,
        command: impl FnOnce([String; 2]) -> Vec<String>,
    ) -> Error {
        let led = |index: usize| {
            let resolved = resolved.map(|resolved| [&resolved.first, &resolved.second][index]);
            resolved.and_then(Option::as_ref)
        };
        let about = &self.targets[usize::from(led(0).is_some() && led(1).is_none())];
        match fault.kind {
            FaultKind::Escape if self.follow => about.escape(),
            // The entry itself is fine; where its folder leads is not, and that is absolute.
            FaultKind::Escape => raise::invalid_manifest_path(path_of(&fault, about), "absolute"),
            FaultKind::ReadOnly => read_only(policy, &path_of(&fault, about)),
            _ => {
                let shown = |index: usize| match led(index) {
                    Some(path) => String::from_utf8_lossy(path).into_owned(),
                    None => self.targets[index].path.as_str().to_owned(),
                };
                let command = command([shown(0), shown(1)]);
                let command: Vec<&str> = command.iter().map(String::as_str).collect();
                failed_command(&command, fault)
            }
        }
    }
}

/// The error of a path that no command could be given.
fn too_long(command: &[&str]) -> Error {
    raise::exec_nonzero(command, 1, Vec::new(), "File name too long")
}

/// The system's number for a source that is neither.
const INVALID: i32 = 22;

/// The error of something that would have been a command.
fn failed_command(command: &[&str], fault: Fault) -> Error {
    let stderr = match command {
        ["mv", .., from, _] if fault.errno == Some(INVALID) => {
            format!("[Errno {INVALID}] Move source must be a regular file or symlink: '{from}'")
        }
        _ => fault.message.clone(),
    };
    raise::exec_nonzero(command, 1, Vec::new(), stderr).with_source(refused(fault))
}
