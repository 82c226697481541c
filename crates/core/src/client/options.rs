//! Options as users write them down, for a new session.

use bastide_model::ClientOptions;

use super::CreateOptions;
use crate::backend::ResourceLimits;
use crate::compat::raise;
use crate::{Error, ErrorClass, ErrorKind, Result};

impl CreateOptions {
    /// The options of a local session, from client options that were read from JSON.
    ///
    /// ```
    /// use bastide::CreateOptions;
    /// use bastide::model::{ClientOptions, lax};
    ///
    /// let written = serde_json::json!({"type": "local", "network": "host", "memory": 1 << 30});
    /// let options = CreateOptions::written(&lax::read::<ClientOptions>(&written)?)?;
    /// assert_eq!(options.limits.memory, Some(1 << 30));
    /// # Ok::<(), bastide::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for what is no port, and for options of another backend.
    pub fn written(options: &ClientOptions) -> Result<Self> {
        let mut created = Self::default();
        let ports = match options {
            ClientOptions::UnixLocal { exposed_ports } => {
                created.unix_local = true;
                exposed_ports
            }
            ClientOptions::Local {
                exposed_ports,
                isolation,
                network,
                policy,
                nested_sandbox,
                limits,
            } => {
                created.isolation = *isolation;
                created.network = *network;
                created.policy = policy.as_deref().cloned();
                created.nested_sandbox = *nested_sandbox;
                created.limits = ResourceLimits {
                    memory: limits.memory,
                    pids: limits.pids,
                    cpu_millis: limits.cpu_millis,
                    disk: limits.disk,
                };
                exposed_ports
            }
            ClientOptions::Docker { .. } | ClientOptions::Custom(_) => {
                let word = options.type_name();
                let message =
                    format!("options of type `{word}` are not for sessions on this machine");
                return Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("give them to the backend they are for"));
            }
        };
        let port = |port: &i128| {
            u16::try_from(*port).ok().filter(|port| *port > 0).ok_or_else(|| {
                let message = "exposed_ports entries must be between 1 and 65535";
                let error = raise::value_error(message).with_class(ErrorClass::ValidationError);
                error.with_context("port", port.to_string())
            })
        };
        created.exposed_ports = ports.iter().map(port).collect::<Result<_>>()?;
        Ok(created)
    }
}
