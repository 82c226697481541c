//! One call about files: its items, its data, its end.

use bastide_proto::files::{FileOp, FileRequest};
use bastide_proto::{End, Fault, FaultKind, Request};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::files_error::FilesError;
use super::{Files, SILENCE};
use crate::link::fault::agent_lost;
use crate::link::{Incoming, Stream, broken, decode};
use crate::{ErrorKind, Result};

/// What comes next in a call.
#[derive(Debug)]
pub(super) enum CallItem {
    Item(Bytes),
    Data(Bytes),
    Done,
}

impl Files<'_> {
    /// Opens a call.
    pub(super) async fn open_call(&self, op: FileOp) -> Result<Stream, FilesError> {
        let request = Request::Files(FileRequest { user: self.user.clone(), op });
        self.link.open(request).await.map_err(|error| match error.kind() {
            // The guest begins nothing for a user there is not. That is told like any other reason.
            ErrorKind::InvalidInput => Fault::new(FaultKind::Invalid, error.message()).into(),
            _ => error.into(),
        })
    }

    /// A call that answers with nothing but its end, and perhaps that it goes on.
    pub(super) async fn quiet(&self, op: FileOp) -> Result<(), FilesError> {
        let mut stream = self.open_call(op).await?;
        loop {
            match next(&mut stream).await? {
                CallItem::Item(_) => {}
                CallItem::Done => return Ok(()),
                CallItem::Data(_) => return Err(broken("data where none is due").into()),
            }
        }
    }

    /// A call that answers with one item.
    pub(super) async fn one<T: DeserializeOwned>(&self, op: FileOp) -> Result<T, FilesError> {
        let mut stream = self.open_call(op).await?;
        let item = item(&mut stream).await?;
        end(&mut stream).await?;
        Ok(item)
    }
}

/// What comes next, which must not take too long.
pub(super) async fn next(stream: &mut Stream) -> Result<CallItem, FilesError> {
    let incoming = tokio::time::timeout(SILENCE, stream.from_guest.next()).await;
    let silent = || agent_lost(&format!("the guest was silent for {} s", SILENCE.as_secs()));
    match incoming.map_err(|_| silent())?? {
        Incoming::Item(item) => Ok(CallItem::Item(item)),
        Incoming::Stdout(data) => Ok(CallItem::Data(data)),
        Incoming::End(End::Done) => Ok(CallItem::Done),
        Incoming::End(End::Failed(fault)) => Err(FilesError::Fault(fault)),
        Incoming::End(_) | Incoming::Stderr(_) => {
            Err(broken("not the answer to a call about files").into())
        }
    }
}

/// The next piece, which must be an item.
pub(super) async fn item<T: DeserializeOwned>(stream: &mut Stream) -> Result<T, FilesError> {
    match next(stream).await? {
        CallItem::Item(item) => Ok(decode(&item)?),
        CallItem::Data(_) | CallItem::Done => Err(broken("an item is missing").into()),
    }
}

/// The next piece, which must be the end.
pub(super) async fn end(stream: &mut Stream) -> Result<(), FilesError> {
    match next(stream).await? {
        CallItem::Done => Ok(()),
        CallItem::Item(_) | CallItem::Data(_) => Err(broken("more than was due").into()),
    }
}
