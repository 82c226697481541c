//! Folders and their entries.

use bastide_proto::files::{FileOp, Found, Glob, Listed, Resolved};
use bastide_proto::{Fault, FaultKind};
use serde_bytes::ByteBuf;

use super::call::{self, Piece};
use super::info::FileInfo;
use super::path::Target;
use super::trouble::{Trouble, is_missing, place_of, read_only};
use super::{Files, MAX_ENTRIES};
use crate::fault::refused;
use crate::link::{broken, decode};
use crate::{Error, ErrorKind, Result};

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
        let target = Target::new(self.policy, path, false)?;
        let listed = self.try_ls(&target).await;
        listed.map_err(|trouble| {
            trouble.into_error(self.policy, &target, |fault| {
                let place = place_of(&fault, &target);
                failed_command(&["ls", "-la", "--", &place], fault)
            })
        })
    }

    async fn try_ls(&self, target: &Target) -> Result<Vec<FileInfo>, Trouble> {
        let mut stream = self.open_call(FileOp::List { path: target.path.clone() }).await?;
        let (mut all, mut bytes) = (Vec::new(), 0);
        loop {
            let Listed { folder, entries } = match call::next(&mut stream).await? {
                Piece::Item(item) => decode(&item)?,
                Piece::Done => break,
                Piece::Data(_) => return Err(broken("data in a listing").into()),
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
        let target = Target::new(self.policy, path, false)?;
        let found = self.one::<Found>(FileOp::Stat { path: target.path.clone(), follow }).await;
        let found = found.map_err(|trouble| {
            trouble.into_error(self.policy, &target, |fault| match is_missing(&fault) {
                true => Error::workspace_read_not_found(&target.given).because(refused(fault)),
                false => Error::workspace_archive_read(&target.given).because(refused(fault)),
            })
        })?;
        Ok(FileInfo::new(found.path.into_vec(), found.stat))
    }

    /// Makes a folder, with `parents` also those above it. One that exists already is fine.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveWriteError` if it cannot be made, or lies where only reading is granted;
    /// `InvalidManifestPathError` if its path leads out.
    pub async fn mkdir(&self, path: &str, parents: bool) -> Result<()> {
        let target = Target::new(self.policy, path, true)?;
        let made = self.quiet(FileOp::MakeDir { path: target.path.clone(), parents }).await;
        made.map_err(|trouble| trouble.into_write_error(self.policy, &target))
    }

    /// Removes an entry: a link itself, never what it points to. Without `recursive` a folder must
    /// be empty; with it, a folder goes with all that is in it, and what does not exist is fine. The
    /// root of the workspace is emptied and stays.
    ///
    /// # Errors
    ///
    /// `ExecNonZeroError` if it does not exist, `WorkspaceArchiveWriteError` if it cannot be removed
    /// or holds something that may only be read, `InvalidManifestPathError` if its path leads out.
    pub async fn rm(&self, path: &str, recursive: bool) -> Result<()> {
        let target = Target::new(self.policy, path, true)?;
        if recursive {
            self.policy.validate_recursive_remove(&target.given)?;
        }
        let removed = self.quiet(FileOp::Remove { path: target.path.clone(), recursive }).await;
        removed.map_err(|trouble| match trouble {
            Trouble::Fault(fault) if is_missing(&fault) => {
                let flag = if recursive { "-rf" } else { "--" };
                let place = place_of(&fault, &target);
                failed_command(&["rm", flag, &place], fault)
            }
            trouble => trouble.into_write_error(self.policy, &target),
        })
    }

    /// Renames a regular file or a link, replacing what is there but never a folder.
    ///
    /// # Errors
    ///
    /// `ExecNonZeroError` if it cannot be renamed, `WorkspaceArchiveWriteError` where only reading
    /// is granted, `InvalidManifestPathError` if a path leads out.
    pub async fn mv(&self, source: &str, destination: &str) -> Result<()> {
        let from = Target::new(self.policy, source, true)?;
        let to = Target::new(self.policy, destination, true)?;
        let op = FileOp::Rename { from: from.path.clone(), to: to.path.clone() };
        let pair = Pair::new(&from, &to, false);
        self.paired(op, pair, |pair| {
            ["mv", "-f", "--", &pair.first, &pair.second].map(String::from)
        })
        .await?;
        Ok(())
    }

    /// Whether two paths name the same file, links followed or not. What does not exist is the same
    /// as nothing, and so is a link that is not followed.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` if a path leads out, `ExecNonZeroError` if one cannot be looked at.
    pub async fn same_file(&self, left: &str, right: &str, follow: bool) -> Result<bool> {
        let one = Target::new(self.policy, left, false)?;
        let other = Target::new(self.policy, right, false)?;
        let (left, right) = (one.path.clone(), other.path.clone());
        let pair = Pair::new(&one, &other, follow);
        let op = FileOp::SameFile { left, right, follow };
        let answer = self
            .paired(op, pair, |pair| ["test", &pair.first, "-ef", &pair.second].map(String::from))
            .await?;
        answer.ok_or_else(|| broken("no answer"))
    }

    /// A call about two paths.
    async fn paired<const N: usize>(
        &self,
        op: FileOp,
        mut pair: Pair<'_>,
        command: impl FnOnce(&Pair<'_>) -> [String; N],
    ) -> Result<Option<bool>> {
        match self.try_pair(op, &mut pair).await {
            Ok(answer) => Ok(answer),
            Err(Trouble::Other(error)) => Err(error),
            Err(Trouble::Fault(fault)) => Err(match fault.kind {
                FaultKind::Escape => pair.escape(&fault),
                FaultKind::ReadOnly => read_only(self.policy, &place_of(&fault, pair.targets[0])),
                _ => {
                    pair.learn(&fault);
                    let command = command(&pair);
                    failed_command(&command.each_ref().map(String::as_str), fault)
                }
            }),
        }
    }

    async fn try_pair(&self, op: FileOp, pair: &mut Pair<'_>) -> Result<Option<bool>, Trouble> {
        let mut stream = self.open_call(op.clone()).await?;
        let resolved: Resolved = call::item(&mut stream).await?;
        pair.resolved(&resolved);
        let mut answer = None;
        loop {
            match call::next(&mut stream).await? {
                Piece::Done => return Ok(answer),
                Piece::Item(item) if matches!(op, FileOp::SameFile { .. }) => {
                    answer = Some(decode(&item)?);
                }
                Piece::Item(_) => {}
                Piece::Data(_) => return Err(broken("data where none is due").into()),
            }
        }
    }

    /// Sets the permission bits of a file.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let target = Target::new(self.policy, path, true)?;
        let set = self.quiet(FileOp::SetMode { path: target.path.clone(), mode }).await;
        set.map_err(|trouble| trouble.into_write_error(self.policy, &target))
    }

    /// Sets the owner and the group of a file, each a name or a number of the sandbox; a link is
    /// followed.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn chown(&self, path: &str, owner: Option<&str>, group: Option<&str>) -> Result<()> {
        let target = Target::new(self.policy, path, true)?;
        let text = |text: Option<&str>| text.map(ToOwned::to_owned);
        let (path, owner, group) = (target.path.clone(), text(owner), text(group));
        let set = self.quiet(FileOp::SetOwner { path, owner, group, follow: true }).await;
        set.map_err(|trouble| trouble.into_write_error(self.policy, &target))
    }

    /// Makes a symbolic link that says `points_to`, wherever that may lead.
    ///
    /// # Errors
    ///
    /// As [`mkdir`](Self::mkdir).
    pub async fn symlink(&self, path: &str, points_to: &str) -> Result<()> {
        let target = Target::new(self.policy, path, true)?;
        let (path, text) = (target.path.clone(), ByteBuf::from(points_to));
        let made = self.quiet(FileOp::Symlink { path, target: text }).await;
        made.map_err(|trouble| trouble.into_write_error(self.policy, &target))
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
        let target = Target::new(self.policy, ".", false)?;
        let found = self.try_glob(&target, pattern).await;
        let mut found = found.map_err(|trouble| match trouble {
            Trouble::Fault(fault) => refused(fault),
            Trouble::Other(error) => error,
        })?;
        found.sort_unstable();
        Ok(found)
    }

    async fn try_glob(&self, target: &Target, pattern: &str) -> Result<Vec<String>, Trouble> {
        let max = MAX_ENTRIES as u64;
        let glob = Glob { base: target.path.clone(), pattern: pattern.to_owned(), max };
        let mut stream = self.open_call(FileOp::Glob(glob)).await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        loop {
            let some: Vec<ByteBuf> = match call::next(&mut stream).await? {
                Piece::Item(item) => decode(&item)?,
                Piece::Done => return Ok(found),
                Piece::Data(_) => return Err(broken("data in a search").into()),
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
struct Pair<'a> {
    targets: [&'a Target; 2],
    /// Whether links in their places are followed.
    follow: bool,
    first: String,
    second: String,
}

impl<'a> Pair<'a> {
    fn new(first: &'a Target, second: &'a Target, follow: bool) -> Self {
        let path = |target: &Target| target.path.as_str().to_owned();
        Self { targets: [first, second], follow, first: path(first), second: path(second) }
    }

    /// Where the guest says they lead.
    fn resolved(&mut self, resolved: &Resolved) {
        let text = |path: &ByteBuf| String::from_utf8_lossy(path).into_owned();
        (self.first, self.second) = (text(&resolved.first), text(&resolved.second));
    }

    /// Which of the two a failure is about: the one whose last names it has.
    fn about(&self, fault: &Fault) -> usize {
        let name = |target: &Target| {
            target.path.as_str().rsplit('/').next().unwrap_or_default().to_owned()
        };
        let path = fault.path.as_deref().unwrap_or_default();
        let ends = |target: &Target| path.ends_with(&name(target));
        match (ends(self.targets[0]), ends(self.targets[1])) {
            (false, true) => 1,
            _ => 0,
        }
    }

    /// Shows where the failure was.
    fn learn(&mut self, fault: &Fault) {
        let about = self.about(fault);
        let place = place_of(fault, self.targets[about]);
        *[&mut self.first, &mut self.second][about] = place;
    }

    fn escape(&self, fault: &Fault) -> Error {
        let target = self.targets[self.about(fault)];
        match self.follow {
            true => target.escape(),
            // The entry itself is fine; where its folder leads is not, and that is absolute.
            false => Error::invalid_manifest_path(place_of(fault, target), "absolute"),
        }
    }
}

/// The error of something that would have been a command.
fn failed_command(command: &[&str], fault: Fault) -> Error {
    let stderr = fault.message.clone();
    Error::exec_nonzero(command, 1, Vec::new(), stderr).because(refused(fault))
}
