//! Laying out a tree that the host sends as one stream.

mod layout;

use std::sync::Arc;

use bastide_proto::frame::Tag;
use bastide_proto::{Accepted, End, Frame, Put, PutMessage};

use super::Guest;
use super::blocking::blocking;
use super::call::{Disconnected, Inbox, Outbox, Refusal};
use super::credentials::with_credentials_of;

pub(super) use layout::Layout;
use layout::LayoutFailure;

/// How many bytes and frames are gathered before they are worked on.
const PIECE_BYTES: usize = 512 * 1024;
const PIECE_FRAMES: usize = 512;

/// Answers a request to lay out a tree.
pub(super) async fn run(
    guest: &Arc<Guest>,
    put: &Put,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let who = guest.users.find(put.user.as_deref()).await?;
    with_credentials_of(who, lay_out(guest, put, inbox, outbox)).await
}

async fn lay_out(
    guest: &Arc<Guest>,
    put: &Put,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let (asked, held) = (put.clone(), Arc::clone(guest));
    let begun = blocking(move || Layout::begin(&held.roots, &asked)).await?;
    let layout = begun.map_err(|error| error.fault("cannot open"))?;
    outbox.accept(Accepted::default()).await?;
    let end = match receive(guest, layout, inbox, outbox).await {
        Ok(()) => End::Done,
        Err(Refusal::Fault(fault)) => End::Failed(fault),
        Err(Refusal::Disconnected) => return Err(Refusal::Disconnected),
    };
    Ok(outbox.end(&end).await?)
}

async fn receive(
    guest: &Arc<Guest>,
    mut layout: Layout,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    loop {
        let frames = receive_available(inbox).await?;
        let guest = Arc::clone(guest);
        let (back, worked) = blocking(move || {
            let worked = layout.take(&guest.roots, frames);
            (layout, worked)
        })
        .await?;
        layout = back;
        match worked {
            Ok(true) => return Ok(()),
            Ok(false) => outbox.item(&PutMessage::Progress { made: layout.made() }).await?,
            Err(LayoutFailure::Fault(fault)) => return Err(fault.into()),
            Err(LayoutFailure::Obstacle(obstacle, fault)) => {
                outbox.queue_item(&PutMessage::Obstacle(obstacle)).await?;
                return Err(fault.into());
            }
            Err(LayoutFailure::Protocol) => return Err(Refusal::Disconnected),
        }
    }
}

/// What has come, at least one frame.
async fn receive_available(inbox: &mut Inbox) -> Result<Vec<Frame>, Disconnected> {
    let mut frames = vec![inbox.next().await?];
    let mut bytes = 0;
    while bytes < PIECE_BYTES && frames.len() < PIECE_FRAMES {
        let Some(frame) = inbox.next_now()? else { break };
        if !matches!(frame.tag, Tag::Input | Tag::InputEnd | Tag::Item) {
            return Err(Disconnected);
        }
        bytes += frame.body.len();
        frames.push(frame);
    }
    Ok(frames)
}
