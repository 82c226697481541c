//! Restores the archive of a workspace.

use std::io::{Read, Seek};

use super::{Action, OnConflict, Origin, UnpackStep};
use crate::EntryPath;
use crate::refusal::unsafe_tar_member;
use crate::tar::{LinkPolicy, TarKind, TarReader, TarRules, WorkspaceCheck, restored_mode};
use bastide_model::{Error, Result};

/// The steps that restore a workspace from a tar. Everything is checked before the first step, so a
/// refused archive leaves nothing behind; links come last, so no step can go through them.
///
/// ```
/// use std::io::Cursor;
///
/// use bastide_archive::tar::{LinkPolicy, TarKind, TarMember, TarWriter};
/// use bastide_archive::{Action, TarRestore};
///
/// let mut tar = Vec::new();
/// let mut writer = TarWriter::new(&mut tar);
/// writer.append(&TarMember::new(b"empty.txt", TarKind::File), &mut std::io::empty())?;
/// writer.finish()?;
///
/// let mut plan = TarRestore::open(Cursor::new(tar), LinkPolicy::Inside, "/workspace")?;
/// let step = plan.next_step()?.unwrap();
/// assert_eq!(step.path.to_string(), "empty.txt");
/// assert!(matches!(step.action, Action::File { mode: Some(0o644), .. }));
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug)]
pub struct TarRestore<R: Read> {
    reader: TarReader<R>,
    folder: String,
    /// Links still to be made, last one first, once files and folders are.
    links: Vec<(Vec<u8>, EntryPath, Vec<u8>)>,
    files_done: bool,
}

impl<R: Read + Seek> TarRestore<R> {
    /// Reads the whole archive, from the start of the stream, and checks it.
    ///
    /// `folder` is what errors call the folder that is filled.
    ///
    /// # Errors
    /// The archive cannot be read, or a member may not be unpacked.
    pub fn open(tar: R, links: LinkPolicy, folder: &str) -> Result<Self> {
        let rules = TarRules { links, ..TarRules::PERMISSIVE };
        let mut check = WorkspaceCheck::new(&rules);
        let mut reader = TarReader::open_whole(tar)?;
        // An archive that is cut off is that, whatever its members are.
        let mut first_refusal = None;
        while let Some(member) = reader.next_member()? {
            if first_refusal.is_none() {
                first_refusal = check.add(&member).err();
            }
        }
        first_refusal.map_or_else(|| check.finish(), Err)?;
        Ok(Self {
            reader: reader.rewound()?,
            folder: folder.to_owned(),
            links: Vec::new(),
            files_done: false,
        })
    }

    /// The next step, or `None` when the workspace is restored.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn next_step(&mut self) -> Result<Option<UnpackStep<'_>>> {
        while !self.files_done {
            let Some(member) = self.reader.next_member()? else {
                self.files_done = true;
                self.links.reverse();
                break;
            };
            let Some(path) = member.safe_path(LinkPolicy::Anywhere)? else { continue };
            if path.is_root() && member.kind != TarKind::Symlink {
                // Odd spellings such as `./.` are no root member; they would replace the folder.
                return Err(self.refuse_root());
            }
            let action = match member.kind {
                TarKind::Symlink => {
                    self.links.push((member.name, path, member.link));
                    continue;
                }
                TarKind::Dir => Action::Dir,
                _ => Action::File {
                    mode: Some(restored_mode(member.mode)),
                    content: Box::new(self.reader.content()),
                },
            };
            let origin = Origin::Restore { folder: self.folder.clone() };
            return Ok(Some(UnpackStep {
                path,
                existing: OnConflict::Replaced,
                action,
                archived_mode: Some(member.mode & 0o7777),
                member: member.name,
                origin,
            }));
        }
        let Some((member, path, target)) = self.links.pop() else { return Ok(None) };
        if path.is_root() {
            return Err(self.refuse_root());
        }
        let (existing, action) = (OnConflict::Replaced, Action::Link { target });
        let origin = Origin::Restore { folder: self.folder.clone() };
        Ok(Some(UnpackStep { path, existing, action, archived_mode: None, member, origin }))
    }

    fn refuse_root(&self) -> Error {
        unsafe_tar_member(self.folder.as_bytes(), "path escapes root after resolution")
    }
}
