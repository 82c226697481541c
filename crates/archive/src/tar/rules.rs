//! Which tar archives may be unpacked.

use std::io::Read;

use super::{TarKind, TarMember, TarReader};
use crate::EntryPath;
use crate::inventory::{Inventory, MemberKind, Nested, PathConflict};
use crate::limits::{ArchiveLimits, Meter};
use crate::refusal::{unreadable_tar, unsafe_tar_member};
use bastide_model::{Error, Result};

/// Where symbolic links of an archive may point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkPolicy {
    /// There may be none.
    Refused,
    /// Into the archive only.
    Inside,
    /// Anywhere: they are kept as text and never followed.
    #[default]
    Anywhere,
}

/// What a workspace asks of an archive beyond what every archive must keep to.
///
/// ```
/// use bastide_archive::EntryPath;
/// use bastide_archive::tar::{TarKind, TarMember, TarRules};
///
/// let rules = TarRules { skipped: vec![EntryPath::new(b"run")], ..TarRules::default() };
/// let verdict = rules.check_member(&TarMember::new(b"./run/socket", TarKind::Fifo))?;
/// assert!(verdict.skipped);
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct TarRules {
    /// Where links may point.
    pub links: LinkPolicy,
    /// Places no member may be in, or replace a folder above of.
    pub protected: Vec<EntryPath>,
    /// Places where no link may be.
    pub no_links: Vec<EntryPath>,
    /// Places whose members are ignored, whatever they are.
    pub skipped: Vec<EntryPath>,
    /// The name of the workspace's folder, which may be in front of every member's.
    pub root_name: Option<String>,
}

/// What the rules say about one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarVerdict {
    /// Where the member goes; `None` is the folder itself, or nowhere.
    pub path: Option<EntryPath>,
    /// Whether it is ignored.
    pub skipped: bool,
}

impl TarRules {
    /// Only what every archive must keep to.
    pub const PERMISSIVE: Self = Self {
        links: LinkPolicy::Anywhere,
        protected: Vec::new(),
        no_links: Vec::new(),
        skipped: Vec::new(),
        root_name: None,
    };

    /// Judges one member on its own.
    ///
    /// # Errors
    /// The member may not be unpacked.
    pub fn check_member(&self, member: &TarMember) -> Result<TarVerdict> {
        if is_skipped(&member.name, &self.skipped, self.root_name.as_deref()) {
            return Ok(TarVerdict { path: None, skipped: true });
        }
        let path = member.safe_path(self.links)?;
        if path.is_some() {
            self.keep_out_of_protected(member)?;
        }
        Ok(TarVerdict { path, skipped: false })
    }

    fn keep_out_of_protected(&self, member: &TarMember) -> Result<()> {
        let readings = readings(&member.name, self.root_name.as_deref());
        for protected in &self.protected {
            let overlaps = |reading: &EntryPath| {
                reading.is_within(protected) || (!member.is_dir() && protected.is_within(reading))
            };
            if readings.iter().any(overlaps) {
                let reason = format!("archive member overlaps protected path: {protected}");
                return Err(unsafe_tar_member(&member.name, reason));
            }
        }
        Ok(())
    }

    fn check_link(&self, member: &TarMember, path: &EntryPath) -> Result<()> {
        let refuse = |reason: String| Err(unsafe_tar_member(&member.name, reason));
        let target = String::from_utf8_lossy(&member.link);
        if self.links == LinkPolicy::Inside {
            if member.link.starts_with(b"/") {
                return refuse(format!("absolute symlink target not allowed: {target}"));
            }
            if leaves(path, &member.link) {
                return refuse(format!("symlink target escapes archive root: {target}"));
            }
        }
        if self.no_links.contains(path) {
            return refuse(format!("symlink member not allowed: {path}"));
        }
        Ok(())
    }
}

/// Whether a relative target, read as text, leaves the archive.
fn leaves(link: &EntryPath, target: &[u8]) -> bool {
    let mut depth = link.parent().names().count();
    for name in EntryPath::new(target).names() {
        match (name, depth) {
            (b"..", 0) => return true,
            (b"..", _) => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

/// Whether a member is at or below one of the places to ignore. Its name may start with the name
/// of the workspace's folder.
#[must_use]
pub fn is_skipped(name: &[u8], skipped: &[EntryPath], root_name: Option<&str>) -> bool {
    if skipped.is_empty() {
        return false;
    }
    let readings = readings(name, root_name);
    readings.iter().any(|path| skipped.iter().any(|skipped| path.is_within(skipped)))
}

/// Where a member may be meant to go: as it says, and without the name of the workspace's folder.
fn readings(name: &[u8], root_name: Option<&str>) -> Vec<EntryPath> {
    let path = EntryPath::new(name);
    let inside = root_name.and_then(|root_name| path.without_first(root_name.as_bytes()));
    [Some(path), inside].into_iter().flatten().collect()
}

/// Judges all members of one archive together.
#[derive(Debug)]
pub(crate) struct WorkspaceCheck<'a> {
    rules: &'a TarRules,
    inventory: Inventory,
}

impl<'a> WorkspaceCheck<'a> {
    pub(crate) fn new(rules: &'a TarRules) -> Self {
        Self { rules, inventory: Inventory::default() }
    }

    pub(crate) fn add(&mut self, member: &TarMember) -> Result<()> {
        let Some(path) = self.rules.check_member(member)?.path else { return Ok(()) };
        claim_path(&mut self.inventory, member, &path)?;
        if member.kind == TarKind::Symlink {
            self.rules.check_link(member, &path)?;
        }
        Ok(())
    }

    /// To be asked when all members are added.
    pub(crate) fn finish(self) -> Result<()> {
        self.inventory.first_nested().map_or(Ok(()), |nested| Err(nested_error(&nested)))
    }
}

/// Checks a whole archive against the rules.
///
/// # Errors
/// A member may not be unpacked, or the archive cannot be read.
pub fn check_workspace_tar(tar: impl Read, rules: &TarRules) -> Result<()> {
    let unreadable =
        |error: Error| unsafe_tar_member(b"<tar>", "invalid tar stream").with_source(error);
    let mut reader = TarReader::open(tar).map_err(unreadable)?;
    let mut check = WorkspaceCheck::new(rules);
    // The reference reads the whole archive before it looks at the first member, so an archive
    // that is cut off is that, whatever its members are.
    let mut first_refusal = None;
    while let Some(member) = reader.next_member().map_err(unreadable)? {
        if first_refusal.is_none() {
            first_refusal = check.add(&member).err();
        }
    }
    first_refusal.map_or_else(|| check.finish(), Err)
}

/// Judges the members of an archive that is unpacked into a workspace, as they come.
#[derive(Debug)]
pub(crate) struct ExtractionCheck {
    meter: Meter,
    inventory: Inventory,
}

impl ExtractionCheck {
    pub(crate) fn new(limits: ArchiveLimits) -> Self {
        Self { meter: Meter::new(limits), inventory: Inventory::default() }
    }

    pub(crate) fn add(&mut self, member: &TarMember) -> Result<()> {
        let Some(path) = member.safe_path(LinkPolicy::Refused)? else { return Ok(()) };
        let bytes = if member.kind == TarKind::File { member.size } else { 0 };
        self.meter.count(&member.name, bytes)?;
        claim_path(&mut self.inventory, member, &path)?;
        self.inventory.last_is_nested().map_or(Ok(()), |nested| Err(nested_error(&nested)))
    }
}

fn claim_path(inventory: &mut Inventory, member: &TarMember, path: &EntryPath) -> Result<()> {
    let occupant = match member.kind {
        TarKind::Dir => MemberKind::Dir,
        TarKind::Symlink => MemberKind::Link,
        _ => MemberKind::File,
    };
    inventory.add(&member.name, path, occupant).map_err(|clash| match clash {
        PathConflict::Taken => {
            unsafe_tar_member(&member.name, format!("duplicate archive path: {path}"))
        }
        PathConflict::TooMany => {
            unreadable_tar("it has more folders and longer names than members account for")
        }
    })
}

fn nested_error(nested: &Nested) -> Error {
    let kind = if nested.above_is == MemberKind::Link { "symlink" } else { "non-directory" };
    let reason = format!("archive path descends through {kind}: {}", nested.above);
    unsafe_tar_member(&nested.member, reason)
}
