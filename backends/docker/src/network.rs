//! The networks of an engine.

use bastide::{Error, ErrorKind, NetworkAccess, Result};
use bollard::query_parameters::InspectNetworkOptions;

use crate::engine::{Engine, SMALL, status};

/// Refuses a network the engine does not have: it would start the container without any, and say nothing.
pub(crate) async fn check(engine: &Engine, network: NetworkAccess) -> Result<()> {
    if network != NetworkAccess::Bridge {
        return Ok(());
    }
    let asked = engine.docker.inspect_network("bridge", None::<InspectNetworkOptions>);
    match engine.ask(SMALL, "look at the network bridge", asked).await {
        Err(error) if status(&error) == Some(404) => {
            let message =
                format!("the Docker daemon at {} has no network `bridge`", engine.address);
            Err(Error::new(ErrorKind::Unsupported, message).with_hint(
                "start the daemon without `--bridge=none`, or take `--network none` or \
                 `--network host`",
            ))
        }
        found => found.map(drop),
    }
}
