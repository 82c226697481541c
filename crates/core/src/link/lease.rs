//! Leases that guests keep by their own clocks, where nobody on this host watches over a machine.

use bastide_proto::warden::{LeaseState, LeaseUpdate};
use bastide_proto::{End, Request};

use super::fault::agent_lost;
use super::{Incoming, Link, MuxLink, decode};
use crate::backend::Connection;
use crate::{Result, SessionId};

/// Changes the lease of a guest over a link of its own, and says what it is then. `protocol` is the version that the guest
/// speaks.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the guest is too old,
/// [`AgentLost`](crate::ErrorKind::AgentLost) if it does not answer.
pub async fn change(
    id: &SessionId,
    connection: Connection,
    protocol: u32,
    update: LeaseUpdate,
) -> Result<LeaseState> {
    let broken = || agent_lost(&format!("the guest of session {id} did not say what its lease is"));
    let link = MuxLink::connect_at(connection, protocol).await?;
    let mut stream = link.open(Request::Lease(update)).await?;
    let Incoming::Item(item) = stream.from_guest.next().await? else { return Err(broken()) };
    let state = decode(&item)?;
    match stream.from_guest.next().await? {
        Incoming::End(End::Done) => Ok(state),
        _ => Err(broken()),
    }
}
