//! Where ports of a session are reached, in the reference's words.

use bastide_model::ExposedPort;
use bastide_model::events::{Operation, OperationResult};
use serde_json::Map;

use super::ReferenceSession;
use crate::Result;
use crate::events::Finished;

impl ReferenceSession<'_> {
    /// Where a port can be reached that was declared when the session was made, or
    /// [exposed](crate::Session::expose) since.
    ///
    /// # Errors
    ///
    /// Fails with the reference's `exposed_port_unavailable`: reason `not_configured` if the port is
    /// neither declared nor exposed, `backend_unavailable` if the backend cannot say.
    pub async fn resolve_exposed_port(self, port: u16) -> Result<ExposedPort> {
        let session = self.session;
        let scope = session.operation_scope(|| Operation::ResolveExposedPort { port: port.into() });
        scope
            .record(session.exposed_port(port), |to| Finished {
                result: Ok(OperationResult::Port {
                    host: to.host.clone(),
                    port: i64::try_from(to.port).unwrap_or_default(),
                }),
                extra: Map::new(),
            })
            .await
    }
}
