//! Hearing what a guest says about a tree it looks through.

use bastide_proto::End;
use bastide_proto::tree::ScanMessage;
use bytes::Bytes;

use super::restoring::SILENCE;
use crate::Result;
use crate::link::fault::{agent_lost, refused};
use crate::link::{Incoming, Stream, broken, decode};

/// What a guest says.
pub(crate) enum ScanReply {
    Message(ScanMessage),
    Data(Bytes),
    Done,
}

/// What a guest says next, which must not take too long.
pub(crate) async fn next(stream: &mut Stream) -> Result<ScanReply> {
    let incoming = tokio::time::timeout(SILENCE, stream.from_guest.next()).await;
    let silent = |_| agent_lost("the guest was silent while it looked through a tree");
    match incoming.map_err(silent)?? {
        Incoming::Item(item) => Ok(ScanReply::Message(decode(&item)?)),
        Incoming::Stdout(data) => Ok(ScanReply::Data(data)),
        Incoming::End(End::Done) => Ok(ScanReply::Done),
        Incoming::End(End::Failed(fault)) => Err(refused(fault)),
        _ => Err(broken("not the answer to a call about a tree")),
    }
}
