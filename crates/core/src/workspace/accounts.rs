//! Making the users and groups of a manifest.

use bastide_model::Manifest;
use bastide_proto::Request;
use bastide_proto::accounts::Accounts;

use crate::compat::raise;
use crate::link::Link;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// How long making accounts may take.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// What `useradd` ends with where a name makes no sense.
const REFUSED: i64 = 3;

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
            // A name that makes no sense, which is the program's to refuse with the reference.
            ErrorKind::InvalidInput => {
                raise::exec_nonzero(["useradd"], REFUSED, "", error.to_string()).with_source(error)
            }
            kind => {
                let message = format!("cannot make users and groups: {error}");
                let refused = Error::new(kind, message).with_source(error);
                match kind {
                    // Where there can be none, as on this machine with the reference.
                    ErrorKind::Unsupported => refused.with_class(ErrorClass::ValueError),
                    _ => refused,
                }
            }
        }),
        Err(_) => {
            Err(crate::link::fault::agent_lost("the guest was silent while it made accounts"))
        }
    }
}
