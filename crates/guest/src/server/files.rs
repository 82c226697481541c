//! Files of the session, as the host asks for them.
//!
//! Each operation is a plain function over the [`Roots`](super::beneath::Roots), done on another
//! thread in small pieces; what is here sends the pieces on their way and the answers back.

mod change;
mod describe;
mod folder;
mod glob;
mod linked;
mod pattern;
mod read;
mod remove;
mod rename;
mod staged;
mod watch;
mod write;

#[cfg(test)]
mod races;

use std::sync::Arc;

use bastide_proto::files::{FileOp, FileRequest, Resolved};
use bastide_proto::{Accepted, End, Fault, FaultKind, UnresolvedPath};
use serde_bytes::ByteBuf;

use super::Guest;
use super::beneath::{MissingParents, PathError, PathErrorKind, Roots, TrailingSymlink, names_of};
use super::blocking::blocking;
use super::call::{Inbox, Outbox, Refusal};
use super::credentials::with_credentials_of;
use super::side_channel::SideChannel;

pub(super) use folder::some_entries;
pub(super) use remove::{Removal, RemoveProgress};
pub(super) use staged::{Finish, Staged, random_name, timestamps};
pub(super) use watch::FOLDER_CHANGES;

/// Answers a request about files.
pub(super) async fn run(
    guest: &Arc<Guest>,
    request: FileRequest,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let who = guest.users.find(request.user.as_deref()).await?;
    outbox.accept(Accepted::default()).await?;
    let performed = with_credentials_of(who, perform(guest, request.op, side, inbox, outbox));
    let end = match performed.await {
        Ok(()) => End::Done,
        Err(Refusal::Fault(fault)) => End::Failed(fault),
        Err(Refusal::Disconnected) => return Err(Refusal::Disconnected),
    };
    Ok(outbox.end(&end).await?)
}

async fn perform(
    guest: &Arc<Guest>,
    op: FileOp,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    match op {
        FileOp::Read(read) => read::run(guest, read, side, outbox).await,
        FileOp::Write(write) => write::run(guest, write, side, inbox, outbox).await,
        FileOp::List { path } => folder::run(guest, path, outbox).await,
        FileOp::Stat { path, follow } => {
            let found =
                at(guest, "look at", move |roots| describe::stat(roots, &path, follow)).await?;
            Ok(outbox.queue_item(&found).await?)
        }
        FileOp::MakeDir { path, parents } => {
            at(guest, "make", move |roots| change::make_dir(roots, &path, parents)).await
        }
        FileOp::SetMode { path, mode } => {
            at(guest, "change", move |roots| change::set_mode(roots, &path, mode)).await
        }
        FileOp::SetOwner { path, owner, group, follow } => {
            let ids =
                blocking(move || change::Ids::of(owner.as_deref(), group.as_deref())).await??;
            at(guest, "change", move |roots| change::set_owner(roots, &path, ids, follow)).await
        }
        FileOp::SetTime { path, modified } => {
            at(guest, "change", move |roots| change::set_time(roots, &path, modified)).await
        }
        FileOp::EnterMount { path } => {
            at(guest, "enter", move |roots| roots.enter_mount(&path)).await
        }
        FileOp::Symlink { path, target } => {
            at(guest, "link", move |roots| change::symlink(roots, &path, &target)).await
        }
        FileOp::SameFile { left, right, follow } => {
            let leaf = if follow { TrailingSymlink::Target } else { TrailingSymlink::Itself };
            let compared = move |roots: &Roots| {
                let (resolved, led) = resolve_both(roots, [&left, &right], leaf, false);
                Ok((resolved, led.and_then(|()| change::same_file(roots, &left, &right, leaf))))
            };
            let (resolved, same) = at(guest, "look at", compared).await?;
            outbox.queue_item(&resolved).await?;
            let same = same.map_err(|error| error.fault("cannot look at"))?;
            Ok(outbox.queue_item(&same).await?)
        }
        FileOp::Remove { path, recursive } => {
            remove::run(guest, path, recursive, inbox, outbox).await
        }
        FileOp::Rename { from, to } => rename::run(guest, from, to, inbox, outbox).await,
        FileOp::Glob(glob) => glob::run(guest, glob, inbox, outbox).await,
        FileOp::Watch { path, recursive } => {
            watch::run(guest, path, recursive, inbox, outbox).await
        }
        _ => Err(Fault::new(FaultKind::Invalid, "the guest does not know this request").into()),
    }
}

/// Does something that may block with the roots; `doing` is what it was, as in "cannot {doing}".
async fn at<T: Send + 'static>(
    guest: &Arc<Guest>,
    doing: &'static str,
    work: impl FnOnce(&Roots) -> Result<T, PathError> + Send + 'static,
) -> Result<T, Refusal> {
    let guest = Arc::clone(guest);
    let done = blocking(move || work(&guest.roots)).await?;
    Ok(done.map_err(|error| error.fault(&format!("cannot {doing}")))?)
}

/// Where a path leads, whether anything is there or not; an error if it must not lead there.
fn resolve(
    roots: &Roots,
    path: &UnresolvedPath,
    leaf: TrailingSymlink,
    to_change: bool,
) -> Result<Vec<u8>, PathError> {
    let names = names_of(path);
    let placed = match to_change {
        true => roots.change(&names, leaf, MissingParents::Fails),
        false => roots.locate(&names, leaf, MissingParents::Fails),
    };
    match placed {
        Ok(place) => Ok(place.path),
        Err(PathError { why: PathErrorKind::Os(_), path }) => Ok(path),
        Err(error) => Err(error),
    }
}

/// Where two paths lead, and the first failure among them.
fn resolve_both(
    roots: &Roots,
    [first, second]: [&UnresolvedPath; 2],
    leaf: TrailingSymlink,
    to_change: bool,
) -> (Resolved, Result<(), PathError>) {
    let (first, second) =
        (resolve(roots, first, leaf, to_change), resolve(roots, second, leaf, to_change));
    let path = |led: &Result<Vec<u8>, PathError>| led.as_ref().ok().cloned().map(ByteBuf::from);
    let resolved = Resolved { first: path(&first), second: path(&second) };
    (resolved, first.and(second).map(drop))
}
