//! Makes an archive of a folder an archive of what is in it.

use std::io::{Read, Write};

use super::links::{LinkTree, archive_makes_way, rebase_link};
use super::rules::{LinkPolicy, TarRules, WorkspaceCheck};
use super::{TarKind, TarMember, TarReader, TarWriter};
use crate::EntryPath;
use crate::refusal::unsafe_tar_member;
use bastide_model::error::raise;
use bastide_model::{Error, Result};

/// Copies an archive whose members all start with `prefix`, without it.
///
/// Pipes and devices are left out, since no archive of a workspace may hold them. With a
/// `workspace_root`, links that point below it by its absolute path become relative, where the
/// archive makes everything they lead through; such links come last.
///
/// # Errors
/// The archive cannot be read, a member does not start with the prefix or may not be unpacked, or
/// the copy cannot be written.
pub fn strip_prefix(
    tar: impl Read,
    out: impl Write,
    prefix: &str,
    workspace_root: Option<&str>,
) -> Result<()> {
    let prefix = EntryPath::new(prefix.as_bytes());
    if prefix.is_root() {
        return Err(raise::value_error("tar member prefix must not be empty"));
    }
    let mut reader = TarReader::open(tar)?;
    let mut writer = TarWriter::new(out);
    let mut tree = LinkTree::default();
    let mut written = OutputCheck::default();
    let mut late_links = Vec::new();
    while let Some(mut member) = reader.next_member()? {
        if matches!(member.kind, TarKind::Fifo | TarKind::CharDevice | TarKind::BlockDevice) {
            continue;
        }
        let path = match member.safe_path(LinkPolicy::Anywhere)? {
            None => EntryPath::default(),
            Some(path) => path.below(&prefix).ok_or_else(|| {
                let reason = format!("member does not start with prefix: {prefix}");
                unsafe_tar_member(&member.name, reason)
            })?,
        };
        member.rename(&path);
        tree.insert(path.as_bytes(), member.kind, &member.link);
        if member.kind == TarKind::Symlink
            && let Some(root) = workspace_root
            && let Some(target) = rebase_link(&member.link, path.as_bytes(), root)
        {
            late_links.push((member, path, target, root));
            continue;
        }
        writer.append(&member, &mut reader.content())?;
        written.add(&member);
    }
    for (mut member, path, target, root) in late_links {
        if archive_makes_way(&tree, &member.link, &path, root) {
            member.link = target;
        }
        writer.append(&member, &mut std::io::empty())?;
        written.add(&member);
    }
    writer.finish()?;
    written.finish()
}

/// Checks the copy as a whole, once it is complete: what the members of the original are refused
/// for comes first.
struct OutputCheck {
    check: WorkspaceCheck<'static>,
    first_refusal: Option<Error>,
}

impl Default for OutputCheck {
    fn default() -> Self {
        static RULES: TarRules = TarRules::PERMISSIVE;
        Self { check: WorkspaceCheck::new(&RULES), first_refusal: None }
    }
}

impl OutputCheck {
    fn add(&mut self, member: &TarMember) {
        if self.first_refusal.is_none() {
            self.first_refusal = self.check.add(member).err();
        }
    }

    fn finish(self) -> Result<()> {
        self.first_refusal.map_or_else(|| self.check.finish(), Err)
    }
}
