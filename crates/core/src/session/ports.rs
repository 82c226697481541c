//! Ports of a session, reached from the host.

use bastide_model::ExposedPort;
use serde_json::json;

use super::Session;
use crate::compat::raise;
use crate::events::Finished;
use crate::{Error, ErrorKind, Result};

impl Session {
    /// Publishes a port of the session's loopback on the host's loopback. The address stays the same for
    /// as long as the session runs, whoever attaches to it and leaves again.
    ///
    /// Nobody needs to listen inside yet. A connection made before that is refused, as it would be
    /// inside.
    ///
    /// # Errors
    ///
    /// Fails with the reference's `exposed_port_unavailable` if the backend cannot publish it.
    pub async fn expose(&self, port: u16) -> Result<ExposedPort> {
        let scope = self.extension("expose", || json!({"port": port}));
        scope
            .record(self.expose_unrecorded(port), |to| {
                Finished::done().with("to", to.port.to_string())
            })
            .await
    }

    async fn expose_unrecorded(&self, port: u16) -> Result<ExposedPort> {
        if port == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "0 is no port to publish"));
        }
        let published = match self.backend.expose() {
            Some(expose) => expose.publish(&self.machine, port).await,
            None => Err(Error::new(ErrorKind::Unsupported, "the backend publishes no ports")),
        };
        match published {
            Ok(host_port) => Ok(on_loopback(host_port)),
            Err(error) => Err(self.unavailable(port, error)),
        }
    }

    /// Where a port can be reached that was declared or exposed.
    pub(crate) async fn exposed_port(&self, port: u16) -> Result<ExposedPort> {
        if self.exposed_ports.contains(&port) {
            return self.expose_unrecorded(port).await;
        }
        // What is down has nothing exposed, and nobody to ask.
        let published = match self.backend.expose().filter(|_| self.check_up().is_ok()) {
            Some(expose) => expose.published(&self.machine).await,
            None => Ok(Vec::new()),
        };
        let published = published.map_err(|error| self.unavailable(port, error))?;
        match published.iter().find(|(inside, _)| *inside == port) {
            Some((_, host_port)) => Ok(on_loopback(*host_port)),
            None => {
                let declared = self.exposed_ports.iter().copied();
                Err(raise::exposed_port_unavailable(port, declared, "not_configured", None)
                    .with_hint("declare the port when the session is made, or expose it"))
            }
        }
    }

    fn unavailable(&self, port: u16, error: Error) -> Error {
        let declared = self.exposed_ports.iter().copied();
        raise::exposed_port_unavailable(port, declared, "backend_unavailable", None)
            .with_context("backend", self.backend.name())
            .with_context("detail", error.to_string())
            .with_source(error)
    }
}

fn on_loopback(port: u16) -> ExposedPort {
    ExposedPort {
        host: "127.0.0.1".to_owned(),
        port: i128::from(port),
        tls: false,
        query: String::new(),
    }
}
