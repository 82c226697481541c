//! Laying out a tree that the host sends as one stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bastide_proto::frame::Tag;
use bastide_proto::{Accepted, End, Entry, EntryKind, Fault, FaultKind, Frame, Put};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, renameat, unlinkat};

use super::Guest;
use super::beneath::{make_folder, split};
use super::call::{Gone, Inbox, Outbox, Refusal, fault};

/// Answers a request to lay out a tree.
pub(super) async fn run(
    guest: &Guest,
    put: &Put,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let Some((root, beneath)) = guest.roots.find(&put.base) else {
        let message = format!("{} is outside the workspace and its grants", put.base);
        return Err(Fault::new(FaultKind::Escape, message).into());
    };
    let base = make_folder(root.as_fd(), beneath, 0o755)
        .map_err(|error| fault(&format!("cannot open {}", put.base), &error))?;
    outbox.accept(Accepted::default()).await?;
    let end = match receive(Arc::new(base), inbox).await {
        Ok(()) => End::Done,
        Err(Refusal::Fault(fault)) => End::Failed(fault),
        Err(Refusal::Gone) => return Err(Refusal::Gone),
    };
    Ok(outbox.end(&end).await?)
}

async fn receive(base: Arc<OwnedFd>, inbox: &mut Inbox) -> Result<(), Refusal> {
    loop {
        let frame = inbox.next().await?;
        match frame.tag {
            Tag::InputEnd => return Ok(()),
            Tag::Item => {}
            _ => return Err(Refusal::Gone),
        }
        let entry = checked(&frame)?;
        let failed = |error: io::Error| fault(&format!("cannot make {}", entry.path), &error);
        match entry.kind {
            EntryKind::Dir => make_dir(&base, &entry).map_err(failed)?,
            EntryKind::File => {
                let mut file = NewFile::create(&base, &entry).map_err(failed)?;
                while let Some(data) = next_data(inbox).await? {
                    file.write(&data.body).map_err(failed)?;
                }
                file.finish(&entry).map_err(failed)?;
            }
            _ => return Err(Fault::new(FaultKind::Invalid, "unknown kind of entry").into()),
        }
    }
}

async fn next_data(inbox: &mut Inbox) -> Result<Option<Frame>, Gone> {
    let frame = inbox.next().await?;
    match frame.tag {
        Tag::Input => Ok(Some(frame)),
        Tag::InputEnd => Ok(None),
        _ => Err(Gone),
    }
}

fn checked(frame: &Frame) -> Result<Entry, Refusal> {
    let invalid = |message: String| Refusal::Fault(Fault::new(FaultKind::Invalid, message));
    let entry: Entry = bastide_proto::decode(&frame.body)
        .map_err(|_| invalid("malformed entry of a tree".to_owned()))?;
    let bad = |part: &str| matches!(part, "" | "." | "..") || part.contains('\0');
    let is_base = entry.path.is_empty() && entry.kind == EntryKind::Dir;
    if !is_base && entry.path.split('/').any(bad) {
        return Err(invalid(format!("{:?} is not a normalized relative path", entry.path)));
    }
    Ok(entry)
}

fn make_dir(base: &OwnedFd, entry: &Entry) -> io::Result<()> {
    let folder = make_folder(base.as_fd(), &entry.path, 0o700)?;
    Ok(fchmod(&folder, Mode::from_raw_mode(entry.mode & 0o7777))?)
}

/// A file that is written under another name and takes its own when it is whole.
struct NewFile {
    folder: OwnedFd,
    file: OwnedFd,
    temporary: String,
    finished: bool,
}

impl NewFile {
    fn create(base: &OwnedFd, entry: &Entry) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let folder = make_folder(base.as_fd(), split(&entry.path).0, 0o755)?;
        let temporary = format!(".bastide-{}.tmp", NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = openat(&folder, &temporary, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { folder, file, temporary, finished: false })
    }

    fn write(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = rustix::io::write(&self.file, data)?;
            data = &data[written..];
        }
        Ok(())
    }

    fn finish(mut self, entry: &Entry) -> io::Result<()> {
        fchmod(&self.file, Mode::from_raw_mode(entry.mode & 0o7777))?;
        renameat(&self.folder, &self.temporary, &self.folder, split(&entry.path).1)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.finished {
            // The call has failed already; a leftover that cannot be removed is not news.
            let _ = unlinkat(&self.folder, &self.temporary, AtFlags::empty());
        }
    }
}
