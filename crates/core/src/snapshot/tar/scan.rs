//! Looking through a workspace, to pack it.

use std::collections::VecDeque;

use bastide_archive::tar::{Ownership, TarKind, TarMember};
use bastide_proto::Request;
use bastide_proto::tree::{
    AHEAD, Attributes, BATCH_CONTENT, Extent, FetchFile, FetchList, LARGE, MAX_DEPTH, MAX_NAME,
    Scan, ScanMessage, ScannedEntry, ScannedKind, ScannedStat, SmallFile,
};
use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc;

use super::pack::PackItem;
use crate::link::{Stream, broken};
use crate::snapshot::scanning::{ScanReply, next};
use crate::snapshot::{Progress, Workspace};
use crate::{Error, ErrorKind, Result};

/// How many entries that were left out are named.
const NAMED: usize = 100;

/// What is left out of an archive, and why.
type LeftOut = Vec<(String, String)>;

/// Sends everything in the workspace to the packer. Returns what was left out.
pub(super) async fn scan(
    workspace: &Workspace<'_>,
    items: mpsc::Sender<PackItem>,
) -> Result<LeftOut> {
    let left_out = workspace.left_out().iter().map(|path| ByteBuf::from(path.as_str())).collect();
    let request = Request::Scan(Scan { base: workspace.root().clone(), left_out });
    let stream = workspace.link().open(request).await?;
    let scanning = Scanning {
        workspace,
        stream,
        items,
        path: Vec::new(),
        waiting: VecDeque::new(),
        lists: 0,
        left_out: Vec::new(),
        progress: Progress::default(),
    };
    scanning.run().await
}

/// An entry that was told.
enum ScannedMember {
    /// Nothing more has to come for it.
    Member(Box<TarMember>),
    /// A file whose content comes.
    File(Box<TarMember>),
    /// A list ends here.
    ListEnd,
}

struct Scanning<'a> {
    workspace: &'a Workspace<'a>,
    stream: Stream,
    items: mpsc::Sender<PackItem>,
    /// The names that lead to the entry told last.
    path: Vec<Vec<u8>>,
    waiting: VecDeque<ScannedMember>,
    /// How many lists have not been sent on.
    lists: usize,
    left_out: LeftOut,
    progress: Progress,
}

impl Scanning<'_> {
    async fn run(mut self) -> Result<LeftOut> {
        loop {
            match next(&mut self.stream).await? {
                ScanReply::Message(ScanMessage::Busy | ScanMessage::Clock(_)) => {}
                ScanReply::Message(ScanMessage::Entries(entries)) => self.scanned(entries).await?,
                ScanReply::Message(ScanMessage::Files(files)) => self.small(files).await?,
                ScanReply::Message(ScanMessage::Large { stat, attributes }) => {
                    self.large(&stat, &attributes).await?;
                }
                ScanReply::Done => break,
                ScanReply::Message(_) | ScanReply::Data(_) => {
                    return Err(broken("not a word about a tree"));
                }
            }
        }
        self.send_on().await?;
        match self.waiting.is_empty() {
            true => Ok(self.left_out),
            false => Err(broken("files are missing")),
        }
    }

    /// Takes note of a list, and asks for the files in it.
    async fn scanned(&mut self, entries: Vec<ScannedEntry>) -> Result<()> {
        self.lists += 1;
        if self.lists > AHEAD + 1 {
            return Err(broken("more lists than may be on their way"));
        }
        let mut files = Vec::new();
        for (index, entry) in entries.into_iter().enumerate() {
            let index = u32::try_from(index).map_err(|_| broken("a long list"))?;
            match self.entry(entry)? {
                Some(scanned @ ScannedMember::File(_)) => {
                    files.push(FetchFile { index, ticket: None });
                    self.waiting.push_back(scanned);
                }
                Some(scanned) => self.waiting.push_back(scanned),
                None => {}
            }
        }
        self.waiting.push_back(ScannedMember::ListEnd);
        self.stream.to_guest.item(&FetchList { files }).await?;
        self.send_on().await
    }

    /// What becomes of an entry.
    fn entry(&mut self, entry: ScannedEntry) -> Result<Option<ScannedMember>> {
        let ScannedEntry { depth, name, kind, stat } = entry;
        let depth = usize::try_from(depth).map_err(|_| broken("a deep tree"))?;
        let is_root = depth == 0;
        let is_name = !name.is_empty()
            && name.len() <= MAX_NAME
            && !matches!(name.as_slice(), b"." | b"..")
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        if depth > MAX_DEPTH || depth > self.path.len() + 1 || is_root != name.is_empty() {
            return Err(broken("an entry of no folder"));
        }
        if !is_root {
            if !is_name {
                return Err(broken("a name that is none"));
            }
            self.path.truncate(depth - 1);
            self.path.push(name.into_vec());
        }
        let shown = match is_root {
            true => b".".to_vec(),
            false => [b"./", self.path.join(&b'/').as_slice()].concat(),
        };
        let mut leave_out = |why: &str| {
            if self.left_out.len() < NAMED {
                let path = String::from_utf8_lossy(&shown).into_owned();
                self.left_out.push((path, why.to_owned()));
            }
            Ok(None)
        };
        let (kind, link, attributes) = match kind {
            ScannedKind::Dir { attributes } => (TarKind::Dir, Vec::new(), attributes),
            ScannedKind::Symlink { target } => (TarKind::Symlink, target.into_vec(), Vec::new()),
            ScannedKind::File => (TarKind::File, Vec::new(), Vec::new()),
            // The reference unpacks none, and leaves them out itself.
            ScannedKind::Fifo => return leave_out("a pipe cannot be kept in an archive"),
            ScannedKind::Socket => return leave_out("a socket cannot be kept"),
            ScannedKind::Device => return leave_out("a device cannot be kept"),
            ScannedKind::Mount => return leave_out("something is mounted there"),
            ScannedKind::Closed { errno } => {
                let why = std::io::Error::from_raw_os_error(errno);
                return leave_out(&format!("it cannot be looked into: {why}"));
            }
            _ => return leave_out("it is of an unknown kind"),
        };
        let mut member = member(&shown, kind, &stat, attributes);
        member.link = link;
        // Each name of a file is a file of its own: nobody unpacks hard links of strangers, the reference
        // neither.
        Ok(Some(match kind {
            TarKind::File => ScannedMember::File(Box::new(member)),
            _ => ScannedMember::Member(Box::new(member)),
        }))
    }

    /// Sends on what nothing more has to come for.
    async fn send_on(&mut self) -> Result<()> {
        while let Some(scanned) = self.waiting.pop_front() {
            match scanned {
                ScannedMember::Member(member) => self.send(PackItem::Member(*member)).await?,
                ScannedMember::ListEnd => {
                    self.lists -= 1;
                    self.workspace.report(self.progress);
                }
                file @ ScannedMember::File(_) => {
                    self.waiting.push_front(file);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The file whose content comes now.
    async fn due(&mut self) -> Result<TarMember> {
        self.send_on().await?;
        match self.waiting.pop_front() {
            Some(ScannedMember::File(member)) => Ok(*member),
            _ => Err(broken("a file nobody asked for")),
        }
    }

    async fn small(&mut self, files: Vec<SmallFile>) -> Result<()> {
        let mut total = 0_u64;
        let mut rest = Bytes::new();
        for file in files {
            let mut member = self.due().await?;
            let (stat, attributes, extents) = match file {
                SmallFile::Here { stat, attributes, extents } => (stat, attributes, extents),
                SmallFile::Gone => {
                    self.gone(&member, "it went away while it was looked at");
                    continue;
                }
                SmallFile::Closed { errno } => {
                    let why = std::io::Error::from_raw_os_error(errno);
                    self.gone(&member, &format!("it cannot be read: {why}"));
                    continue;
                }
                _ => return Err(broken("a file of an unknown kind")),
            };
            let length = |extent: &Extent| match extent {
                Extent::Data(length) | Extent::Hole(length) => *length,
            };
            let size =
                extents.iter().try_fold(0_u64, |sum, extent| sum.checked_add(length(extent)));
            let size = size.filter(|size| *size == stat.size && *size <= LARGE);
            let size = size.ok_or_else(|| broken("a small file that is none"))?;
            total += size;
            if total > BATCH_CONTENT + LARGE {
                return Err(broken("more small files than fit"));
            }
            describe(&mut member, &stat, attributes);
            self.send(PackItem::Member(member)).await?;
            for extent in extents {
                match extent {
                    Extent::Hole(length) => self.send(PackItem::Hole(length)).await?,
                    Extent::Data(length) => self.data(length, &mut rest).await?,
                }
            }
            self.send(PackItem::End).await?;
            self.progress.entries += 1;
            self.progress.bytes += size;
        }
        match rest.is_empty() {
            true => self.send_on().await,
            false => Err(broken("more content than files")),
        }
    }

    /// Passes on so many bytes; what comes beyond them is the next file's.
    async fn data(&mut self, mut length: u64, rest: &mut Bytes) -> Result<()> {
        while length > 0 {
            if rest.is_empty() {
                *rest = match next(&mut self.stream).await? {
                    ScanReply::Data(data) => data,
                    _ => return Err(broken("files without their content")),
                };
                continue;
            }
            let chunk = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
            let chunk = rest.split_to(chunk);
            length -= chunk.len() as u64;
            self.send(PackItem::Data(chunk)).await?;
        }
        Ok(())
    }

    async fn large(&mut self, stat: &ScannedStat, attributes: &Attributes) -> Result<()> {
        let mut member = self.due().await?;
        describe(&mut member, stat, attributes.clone());
        self.send(PackItem::Member(member)).await?;
        loop {
            match next(&mut self.stream).await? {
                ScanReply::Data(data) => {
                    self.progress.bytes += data.len() as u64;
                    self.send(PackItem::Data(data)).await?;
                    self.workspace.report(self.progress);
                }
                ScanReply::Message(ScanMessage::Hole(length)) => {
                    self.send(PackItem::Hole(length)).await?;
                }
                ScanReply::Message(ScanMessage::LargeEnd { .. }) => break,
                ScanReply::Message(ScanMessage::Busy) => {}
                ScanReply::Message(_) | ScanReply::Done => {
                    return Err(broken("a large file without an end"));
                }
            }
        }
        self.progress.entries += 1;
        self.send(PackItem::End).await?;
        self.send_on().await
    }

    fn gone(&mut self, member: &TarMember, why: &str) {
        if self.left_out.len() < NAMED {
            let path = String::from_utf8_lossy(&member.name).into_owned();
            self.left_out.push((path, why.to_owned()));
        }
    }

    async fn send(&self, chunk: PackItem) -> Result<()> {
        // Why it takes no more is for the writer itself to say.
        let stopped = |_| Error::new(ErrorKind::Cancelled, "the archive is not written any more");
        self.items.send(chunk).await.map_err(stopped)
    }
}

fn member(name: &[u8], kind: TarKind, stat: &ScannedStat, attributes: Attributes) -> TarMember {
    let mut member = TarMember::new(name, kind);
    describe(&mut member, stat, attributes);
    member
}

fn describe(member: &mut TarMember, stat: &ScannedStat, attributes: Attributes) {
    member.mode = match member.kind {
        TarKind::Symlink => 0o777,
        _ => stat.mode & 0o7777,
    };
    member.size = if member.kind == TarKind::File { stat.size } else { 0 };
    let attributes = attributes.into_iter();
    member.set_ownership(&Ownership {
        uid: stat.uid,
        gid: stat.gid,
        seconds: stat.modified.seconds,
        nanos: stat.modified.nanos,
        attributes: attributes.map(|(name, value)| (name.into_vec(), value.into_vec())).collect(),
    });
}
