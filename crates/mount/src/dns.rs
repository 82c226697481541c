//! Names of servers, resolved without the C library: a static program cannot load its modules.

use std::net::SocketAddr;
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Asks the servers that this machine is set up with.
#[derive(Debug, Clone)]
pub(crate) struct Dns(Result<Arc<TokioResolver>, String>);

impl Dns {
    /// Reads the machine's settings now, because later no file of it is in reach.
    pub(crate) fn from_system() -> Self {
        let built = TokioResolver::builder_tokio().and_then(|builder| builder.build());
        Self(built.map(Arc::new).map_err(|error| format!("no resolver: {error}")))
    }
}

impl Resolve for Dns {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.0.clone();
        Box::pin(async move {
            let found = resolver?.lookup_ip(name.as_str()).await?;
            let addresses: Vec<_> = found.iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}
