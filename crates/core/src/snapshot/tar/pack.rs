//! Writing an archive: a thread that is sent members and their contents.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use bastide_archive::tar::{LinkTree, TarKind, TarMember, TarWriter, target_stays_inside};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::OWNERS;
use crate::{Error, ErrorKind, Result};

/// How many pieces wait to be written.
const AHEAD: usize = 64;

/// The most entries an archive of a workspace may have: where each of them is has to be known.
const MAX_ENTRIES: usize = 4_000_000;

/// A piece of an archive.
pub(super) enum PackItem {
    /// A member; of a file, its content follows.
    Member(TarMember),
    /// Some of a file's content.
    Data(Bytes),
    /// So many bytes of nothing.
    Hole(u64),
    /// The end of a file's content.
    End,
}

/// An archive that is being written.
pub(super) struct Packer(JoinHandle<Result<(File, String)>>);

impl Packer {
    /// Starts an archive of the workspace at `root`.
    pub(super) fn start(file: File, root: &str) -> (Self, mpsc::Sender<PackItem>) {
        let (sender, items) = mpsc::channel(AHEAD);
        let root = root.to_owned();
        // It ends when nobody sends it pieces any more.
        (Self(tokio::task::spawn_blocking(move || write(file, &root, items))), sender)
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) -> Result<(File, String)> {
        self.0.await.map_err(|error| {
            Error::new(ErrorKind::Internal, "the writer of an archive failed").with_source(error)
        })?
    }
}

fn write(file: File, root: &str, mut items: mpsc::Receiver<PackItem>) -> Result<(File, String)> {
    let mut out = Hashed { file: BufWriter::with_capacity(1 << 20, file), digest: Sha256::new() };
    let mut writer = TarWriter::new(&mut out);
    let (mut tree, mut links, mut count) = (LinkTree::default(), Vec::new(), 0);
    while let Some(item) = items.blocking_recv() {
        let PackItem::Member(mut member) = item else {
            return Err(Error::new(ErrorKind::Internal, "content without its file"));
        };
        count += 1;
        if count > MAX_ENTRIES {
            let message = format!("the workspace has more than {MAX_ENTRIES} entries");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        if member.name == b"." {
            member.set_note(OWNERS.0, OWNERS.1);
        }
        tree.insert(&member.name, member.kind, &member.link);
        match member.kind {
            // Where one leads can only be said when everything is known.
            TarKind::Symlink => links.push(member),
            TarKind::File => {
                let mut content = Incoming {
                    items: &mut items,
                    now: CurrentPart::Data(Bytes::new()),
                    cut_off: false,
                };
                writer.append(&member, &mut content)?;
                content.drain();
                if content.cut_off {
                    return Err(Error::new(ErrorKind::Cancelled, "nobody sends the rest"));
                }
            }
            _ => writer.append(&member, &mut io::empty())?,
        }
    }
    for mut link in links {
        if let Some(target) = rebased(&link.link, &link.name, root)
            && target_stays_inside(&tree, &link.name, &target)
        {
            link.link = target;
        }
        writer.append(&link, &mut io::empty())?;
    }
    writer.finish()?;
    let failed = |error: io::Error| Error::new(ErrorKind::Io, error.to_string()).with_source(error);
    let Hashed { file, digest } = out;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    Ok((file, hex::encode(digest.finalize())))
}

/// What an absolute link into the workspace says as seen from its own folder, so that it still leads
/// there in another workspace. What follows the root stays as it is written: `..` behind a link means
/// what the link says.
fn rebased(target: &[u8], link: &[u8], root: &str) -> Option<Vec<u8>> {
    let trimmed = |path: &[u8]| {
        let slashes = path.iter().take_while(|byte| **byte == b'/').count();
        path[slashes..].to_vec()
    };
    if !target.starts_with(b"/") {
        return None;
    }
    let root = trimmed(root.trim_end_matches('/').as_bytes());
    let target = trimmed(target);
    let rest = target.strip_prefix(root.as_slice())?;
    if !(rest.is_empty() || rest.starts_with(b"/")) {
        return None;
    }
    let rest = trimmed(rest);
    let names = link.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let depth = names.count().saturating_sub(1);
    let mut path = vec![b"..".to_vec(); depth];
    if !rest.is_empty() {
        path.push(rest);
    }
    match path.is_empty() {
        true => Some(b".".to_vec()),
        false => Some(path.join(&b'/')),
    }
}

/// The content of the file at hand, as it comes. A file that became shorter meanwhile is filled up:
/// how long it is has been said already.
struct Incoming<'a> {
    items: &'a mut mpsc::Receiver<PackItem>,
    now: CurrentPart,
    cut_off: bool,
}

enum CurrentPart {
    Data(Bytes),
    Hole(u64),
    End,
}

impl Incoming<'_> {
    fn more(&mut self) {
        self.now = match self.items.blocking_recv() {
            Some(PackItem::Data(data)) => CurrentPart::Data(data),
            Some(PackItem::Hole(length)) => CurrentPart::Hole(length),
            Some(PackItem::End) => CurrentPart::End,
            Some(PackItem::Member(_)) | None => {
                self.cut_off = true;
                CurrentPart::End
            }
        };
    }

    /// Passes over what came beyond the size that was said.
    fn drain(&mut self) {
        while !matches!(self.now, CurrentPart::End) {
            self.more();
        }
    }
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match &mut self.now {
                CurrentPart::Data(data) if !data.is_empty() => {
                    let length = data.len().min(buffer.len());
                    buffer[..length].copy_from_slice(&data.split_to(length));
                    return Ok(length);
                }
                CurrentPart::Hole(left) if *left > 0 => {
                    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
                    buffer[..length].fill(0);
                    *left -= length as u64;
                    return Ok(length);
                }
                CurrentPart::End => {
                    if self.cut_off {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    buffer.fill(0);
                    return Ok(buffer.len());
                }
                CurrentPart::Data(_) | CurrentPart::Hole(_) => self.more(),
            }
        }
    }
}

/// A file, and the hash of what was written to it.
struct Hashed {
    file: BufWriter<File>,
    digest: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write(data)?;
        self.digest.update(&data[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_into_the_workspace_are_seen_from_where_they_are() {
        let cases = [
            ("/ws/d/b", "./l", Some("d/b")),
            ("/ws/a", "./d/up", Some("../a")),
            ("/ws", "./l", Some(".")),
            ("/ws/", "./d/l", Some("..")),
            ("/ws2/a", "./l", None),
            ("/ws/../etc", "./l", Some("../etc")),
            ("/ws/d/../a", "./e/l", Some("../d/../a")),
            ("//ws//d//b/", "./l", Some("d//b/")),
            ("d/b", "./l", None),
            ("/etc/hostname", "./l", None),
        ];
        for (target, link, want) in cases {
            let got = rebased(target.as_bytes(), link.as_bytes(), "/ws");
            assert_eq!(got.as_deref(), want.map(str::as_bytes), "{target} at {link}");
        }
    }
}
