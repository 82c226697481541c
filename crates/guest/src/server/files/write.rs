//! Writing a file.

use std::sync::Arc;

use bastide_proto::files::{Write, WriteReady};
use bastide_proto::frame::Tag;
use bastide_proto::{Fault, FaultKind};
use bytes::Bytes;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::at;
use super::staged::{Finish, Staged};
use crate::server::Guest;
use crate::server::beneath::{
    DirEntryRef, MissingParents, PathError, PathErrorKind, Roots, TrailingSymlink, names_of,
    reopen, stat_at, stat_held,
};
use crate::server::blocking::blocking;
use crate::server::call::{Disconnected, Inbox, Outbox, Refusal};
use crate::server::side_channel::SideChannel;

/// How much is gathered before it is written.
const CHUNK: usize = 512 * 1024;

/// A file that is being written.
struct OpenWrite {
    staged: Staged,
    path: Vec<u8>,
    device: u64,
}

/// Begins to write a file.
fn begin(roots: &Roots, write: &Write) -> Result<OpenWrite, PathError> {
    let leaf = if write.new { TrailingSymlink::Itself } else { TrailingSymlink::Target };
    let place = roots.change(&names_of(&write.path), leaf, MissingParents::IsMade)?;
    let DirEntryRef { folder, name, path, attributes } = place;
    let failed = |errno| PathError::os(errno, &path);
    let staged = match name {
        // Nothing new can be made there: its folder is not ours.
        None if write.new => return Err(PathError { why: PathErrorKind::Outside, path }),
        None => over_root(&folder).map_err(failed)?,
        Some(name) => {
            match stat_at(&folder, &name) {
                Ok(_) if write.new => return Err(failed(Errno::EXIST)),
                Err(errno) if errno != Errno::NOENT => return Err(failed(errno)),
                _ => {}
            }
            Staged::begin(folder, &name).map_err(failed)?
        }
    };
    Ok(OpenWrite { staged, path, device: attributes.device })
}

/// A grant can be a file. It cannot be replaced, being a mount of its own, but written over.
fn over_root(root: &std::os::fd::OwnedFd) -> Result<Staged, Errno> {
    match stat_held(root)?.kind {
        FileType::RegularFile => Staged::over_held(root, reopen(root, OFlags::WRONLY)?),
        _ => Err(Errno::ISDIR),
    }
}

impl OpenWrite {
    fn add(&mut self, chunks: &[Bytes]) -> Result<(), PathError> {
        for chunk in chunks {
            self.staged.write(chunk).map_err(|errno| PathError::os(errno, &self.path))?;
        }
        Ok(())
    }

    /// Ends it: with everything in it, or not at all.
    fn end(self, write: &Write) -> Result<(), Fault> {
        let failed = |errno| PathError::os(errno, &self.path).fault("cannot write");
        if let Some(size) = write.size {
            let written = self.staged.file().and_then(stat_held).map_err(failed)?.size;
            if written != size {
                let path = String::from_utf8_lossy(&self.path);
                let message =
                    format!("cannot write {path}: {written} bytes came where {size} were due");
                return Err(Fault::new(FaultKind::Invalid, message));
            }
        }
        let finish = Finish { mode: write.mode, new: write.new, ..Finish::default() };
        self.staged.finish(finish).map_err(failed)
    }
}

/// Writes a file that is here as a whole.
#[cfg(test)]
pub(super) fn whole(roots: &Roots, write: &Write, content: &[u8]) -> Result<(), Fault> {
    let fault = |error: PathError| error.fault("cannot write");
    let mut writing = begin(roots, write).map_err(fault)?;
    writing.add(&[Bytes::copy_from_slice(content)]).map_err(fault)?;
    writing.end(write)
}

/// Answers a request to write a file.
pub(super) async fn run(
    guest: &Arc<Guest>,
    write: Write,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let write = Arc::new(write);
    let mut writing = None;
    if let Some(ticket) = write.pass {
        let asked = Arc::clone(&write);
        let begun = at(guest, "write", move |roots| begin(roots, &asked)).await?;
        let passed = match (side, begun.staged.file()) {
            // Only what the host will take: it knows the devices of the roots.
            (Some(side), Ok(file))
                if stat_held(file).is_ok_and(|node| node.device == begun.device) =>
            {
                side.pass(ticket, file).await.is_ok()
            }
            _ => false,
        };
        outbox.item(&WriteReady { passed }).await?;
        writing = Some(begun);
    }
    loop {
        let (chunks, is_end) = receive_available(inbox).await?;
        let (asked, guest) = (Arc::clone(&write), Arc::clone(guest));
        let work = move || -> Result<Option<OpenWrite>, Fault> {
            let fault = |error: PathError| error.fault("cannot write");
            let mut writing = match writing {
                Some(writing) => writing,
                None => begin(&guest.roots, &asked).map_err(fault)?,
            };
            writing.add(&chunks).map_err(fault)?;
            if !is_end {
                return Ok(Some(writing));
            }
            writing.end(&asked)?;
            Ok(None)
        };
        match blocking(work).await?? {
            Some(more) => writing = Some(more),
            None => return Ok(()),
        }
    }
}

/// What has come of the content, at least one piece of it; and whether that was all.
async fn receive_available(inbox: &mut Inbox) -> Result<(Vec<Bytes>, bool), Disconnected> {
    let (mut chunks, mut length) = (Vec::new(), 0);
    let mut frame = inbox.next().await?;
    loop {
        match frame.tag {
            Tag::Input => {
                length += frame.body.len();
                chunks.push(frame.body);
            }
            Tag::InputEnd => return Ok((chunks, true)),
            _ => return Err(Disconnected),
        }
        if length >= CHUNK {
            return Ok((chunks, false));
        }
        match inbox.next_now()? {
            Some(next) => frame = next,
            None => return Ok((chunks, false)),
        }
    }
}
