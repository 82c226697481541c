//! Making the users and groups of a manifest.

use bastide_model::Manifest;
use bastide_proto::Request;
use bastide_proto::accounts::Accounts;

use crate::link::Link;
use crate::{Error, ErrorKind, Result};

/// How long making accounts may take.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// Makes the users and groups of a manifest; those that are there already stay as they are.
pub(crate) async fn provision(link: &dyn Link, manifest: &Manifest) -> Result<()> {
    let groups = manifest.groups.iter().map(|group| {
        (group.name.clone(), group.users.iter().map(|user| user.name.clone()).collect())
    });
    let users = manifest.users.iter().map(|user| user.name.clone());
    let wanted = Accounts { groups: groups.collect(), users: users.collect() };
    let made = async { link.open(Request::Accounts(wanted)).await?.finish().await };
    match tokio::time::timeout(DEADLINE, made).await {
        Ok(made) => made.map_err(|error| match error.kind() {
            ErrorKind::AgentLost => error,
            kind => {
                Error::new(kind, format!("cannot make users and groups: {error}")).because(error)
            }
        }),
        Err(_) => Err(crate::fault::agent_lost("the guest was silent while it made accounts")),
    }
}
