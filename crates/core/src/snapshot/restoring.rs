//! Telling a guest to put a tree in the place of what is there.
//!
//! The guest makes it beside what is there, and it takes its place as a whole when all of it has come.
//! Whatever the tree is read from, it is sent like this.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bastide_proto::frame::MAX_DATA;
use bastide_proto::tree::{
    BATCH_CONTENT, LARGE, NewEntry, NewEntryKind, Restore, RestoreItem, RestoreMessage,
    TreeChecksum,
};
use bastide_proto::{End, GuestPath, Request};
use bytes::Bytes;
use serde_bytes::ByteBuf;

use crate::link::fault::{agent_lost, refused};
use crate::link::{Access, FdTicket, Incoming, Link, Receiver, Sender, Stream};
use crate::link::{broken, decode};
use crate::{Error, ErrorKind, Result};

/// How long a guest may be silent in the middle of a tree.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// How many bytes the descriptions in one list may take.
const LIST_BYTES: usize = 40 * 1024;

/// Entries that go together, and the bytes of the files among them.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) entries: Vec<NewEntry>,
    pub(crate) bytes: Vec<u8>,
    weight: usize,
}

impl List {
    /// Adds an entry, whose bytes have been added already.
    pub(crate) fn push(&mut self, made: NewEntry) {
        let attributes = made.attributes.iter();
        let attributes: usize = attributes.map(|(name, value)| name.len() + value.len() + 8).sum();
        let kind = match &made.kind {
            NewEntryKind::File { extents } => extents.len() * 10,
            NewEntryKind::Symlink { target } => target.len(),
            NewEntryKind::Link { to } => to.iter().map(|name| name.len() + 2).sum(),
            _ => 0,
        };
        self.weight += made.name.len() + attributes + kind + 64;
        self.entries.push(made);
    }

    /// Whether no more should go with it.
    pub(crate) fn is_full(&self) -> bool {
        let bytes = u64::try_from(self.bytes.len()).unwrap_or(u64::MAX);
        bytes + LARGE > BATCH_CONTENT || self.weight > LIST_BYTES
    }
}

/// What could not be given to a tree that was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) unowned: u64,
    pub(crate) unattributed: u64,
    pub(crate) cleared: bool,
}

/// A tree on its way to a guest.
pub(crate) struct Restoring<'a> {
    link: &'a dyn Link,
    to_guest: Sender,
    hearing: RestoreReplies,
}

/// What a guest says meanwhile.
struct RestoreReplies {
    from_guest: Receiver,
    root: GuestPath,
    only_empty: bool,
    /// Whether the guest has said its last word, or is lost.
    is_over: bool,
}

impl<'a> Restoring<'a> {
    /// Begins a tree that is to be at `root`. What is `kept` stays where it is; with `only_empty` nothing
    /// is replaced at all, with `replaced` nothing but that.
    pub(crate) async fn begin(
        link: &'a dyn Link,
        root: &GuestPath,
        kept: Vec<ByteBuf>,
        only_empty: bool,
        replaced: Option<TreeChecksum>,
    ) -> Result<Self> {
        let request = Request::Restore(Restore { base: root.clone(), kept, only_empty, replaced });
        let Stream { to_guest, from_guest, .. } = link.open(request).await?;
        let hearing = RestoreReplies { from_guest, root: root.clone(), only_empty, is_over: false };
        Ok(Self { link, to_guest, hearing })
    }

    /// Sends entries.
    pub(crate) async fn list(&mut self, list: List) -> Result<()> {
        let Self { to_guest, hearing, .. } = self;
        let sending = async {
            to_guest.queue_item(&RestoreItem::Entries(list.entries)).await?;
            send_bytes(to_guest, list.bytes.into()).await
        };
        hearing.while_sending(sending).await
    }

    /// Begins a large file. Where `passed`, it is to be filled through a descriptor, if the guest can
    /// pass one; else its content must be sent.
    pub(crate) async fn large(
        &mut self,
        entry: NewEntry,
        size: u64,
        passed: bool,
    ) -> Result<Option<Arc<File>>> {
        let side = self.link.side().filter(|_| passed);
        let mut ticket = side.and_then(|side| side.expect());
        let number = ticket.as_ref().map(FdTicket::number);
        self.item(&RestoreItem::Large { entry, size, ticket: number }).await?;
        let is_passed = loop {
            match self.hearing.receive().await? {
                RestoreMessage::Progress { .. } => {}
                RestoreMessage::Ready { passed } => break passed,
                _ => return Err(broken("not a file that is ready")),
            }
        };
        match (is_passed, &mut ticket) {
            (true, Some(ticket)) => {
                Ok(Some(ticket.file(self.link, Access::Write, SILENCE).await?.file()))
            }
            (true, None) => Err(broken("a descriptor nobody asked for")),
            (false, _) => Ok(None),
        }
    }

    /// Sends some content of a large file.
    pub(crate) async fn data(&mut self, content: Bytes) -> Result<()> {
        let Self { to_guest, hearing, .. } = self;
        hearing.while_sending(send_bytes(to_guest, content)).await
    }

    /// Leaves out some of a large file.
    pub(crate) async fn hole(&mut self, length: u64) -> Result<()> {
        self.item(&RestoreItem::Hole(length)).await
    }

    /// Ends a large file.
    pub(crate) async fn end_large(&mut self) -> Result<()> {
        self.item(&RestoreItem::LargeEnd).await
    }

    /// Everything was sent: it takes its place. If sending failed, what the guest made of it so far is
    /// cleared away before the error comes back.
    pub(crate) async fn finish(mut self, sent: Result<()>) -> Result<Restored> {
        match sent {
            Ok(()) => self.commit().await,
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    async fn commit(&mut self) -> Result<Restored> {
        self.item(&RestoreItem::Commit).await?;
        loop {
            match self.hearing.receive().await? {
                RestoreMessage::Progress { .. } => {}
                RestoreMessage::Restored { unowned, unattributed, cleared } => {
                    return match self.hearing.next().await? {
                        None => Ok(Restored { unowned, unattributed, cleared }),
                        Some(_) => Err(broken("more than was due")),
                    };
                }
                _ => return Err(broken("not the end of a tree")),
            }
        }
    }

    /// Has the guest clear away what it made, and waits for that. One that is lost does so by itself, or
    /// its sandbox is gone.
    async fn abandon(&mut self) {
        if self.hearing.is_over || self.to_guest.item(&RestoreItem::Abandon).await.is_err() {
            return;
        }
        while let Ok(Some(_)) = self.hearing.next().await {}
    }

    async fn item(&mut self, item: &RestoreItem) -> Result<()> {
        let Self { to_guest, hearing, .. } = self;
        hearing.while_sending(to_guest.item(item)).await
    }
}

async fn send_bytes(to_guest: &mut Sender, mut bytes: Bytes) -> Result<()> {
    while !bytes.is_empty() {
        let chunk = bytes.split_to(bytes.len().min(MAX_DATA));
        to_guest.queue_input(chunk).await?;
    }
    to_guest.flush().await
}

impl RestoreReplies {
    /// Sends something, and hears meanwhile what the guest says: one that fails says why and stops
    /// listening, and one that says how far it is must be heard.
    async fn while_sending(&mut self, sending: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::pin!(sending);
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return match sent {
                    Err(lost) if lost.kind() == ErrorKind::AgentLost => Err(self.early_error(lost).await),
                    sent => sent,
                },
                reply = self.next() => match reply? {
                    Some(RestoreMessage::Progress { .. }) => {}
                    _ => return Err(broken("not how far a tree is")),
                },
            }
        }
    }

    /// What a guest that stopped listening said before; else that it is lost.
    async fn early_error(&mut self, lost: Error) -> Error {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return lost,
                Err(error) if error.kind() == ErrorKind::AgentLost => return lost,
                Err(error) => return error,
            }
        }
    }

    /// The next word, which must not be the end.
    async fn receive(&mut self) -> Result<RestoreMessage> {
        match self.next().await? {
            Some(receive) => Ok(receive),
            None => Err(broken("the end of a tree before its end")),
        }
    }

    /// What the guest says; nothing at the end.
    async fn next(&mut self) -> Result<Option<RestoreMessage>> {
        let incoming = tokio::time::timeout(SILENCE, self.from_guest.next()).await;
        let silent = |_| agent_lost("the guest was silent while it restored a tree");
        let incoming = incoming.map_err(silent).and_then(|incoming| incoming);
        self.is_over = !matches!(incoming, Ok(Incoming::Item(_)));
        match incoming? {
            Incoming::Item(item) => Ok(Some(decode(&item)?)),
            Incoming::End(End::Done) => Ok(None),
            Incoming::End(End::Failed(fault)) => Err(self.refuse(refused(fault))),
            _ => Err(broken("not the answer to a call about a tree")),
        }
    }

    /// Says what it means that a folder is not empty.
    fn refuse(&self, error: Error) -> Error {
        let not_empty = rustix::io::Errno::NOTEMPTY.raw_os_error();
        if !self.only_empty || error.errno() != Some(not_empty) {
            return error;
        }
        Error::new(ErrorKind::Conflict, format!("{} is not empty", self.root))
            .with_hint("a folder of yours is never cleared: empty it, or choose another")
            .with_source(error)
    }
}
