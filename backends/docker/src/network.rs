//! The networks of an engine.

use bastide::{Condition, Error, ErrorKind, NetworkAccess, Result};
use bollard::query_parameters::InspectNetworkOptions;

use crate::engine::{Engine, SMALL};

/// Refuses a network the engine does not have: it would start the container without any, and say nothing.
pub(crate) async fn check(engine: &Engine, network: NetworkAccess) -> Result<()> {
    if network != NetworkAccess::Bridge {
        return Ok(());
    }
    let call = engine.docker.inspect_network("bridge", None::<InspectNetworkOptions>);
    match engine.ask(SMALL, "look at the network bridge", call).await {
        Err(error) if error.status() == Some(404) => {
            let message =
                format!("the Docker daemon at {} has no network `bridge`", engine.address);
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_condition(Condition::BridgeMissing))
        }
        found => found.map(drop),
    }
}
