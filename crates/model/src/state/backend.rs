//! What the backends store.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::custom::{Custom, CustomType};
use crate::lax::{Checked, FromInput, Input, Object};
use crate::receipt::Receipt;
use crate::registry::kinds::Builtin;
use crate::{Error, ErrorKind, Result};

/// What a backend needs to know to find a session again.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendState {
    /// A session in a folder of the host.
    UnixLocal {
        /// Whether the folder was made for the session and goes with it.
        workspace_root_owned: bool,
    },
    /// A session in a container.
    Docker {
        /// The image.
        image: String,
        /// The container.
        container_id: String,
        /// What network it has.
        network_mode: Option<NetworkMode>,
        /// The labels it has.
        labels: IndexMap<String, String>,
    },
    /// A session on this machine whose workspace is its own.
    Local {
        /// What the backend wrote down to find the session again; nothing before it first ran.
        machine: Option<Map<String, Value>>,
        /// What was in force when it last ran.
        receipt: Option<Box<Receipt>>,
    },
    /// What a program's own backend needs to know.
    Custom(Custom<dyn CustomBackendState>),
}

/// What a program's own backend stores.
pub trait CustomBackendState: CustomType {
    /// Takes what would lead to the running session out of a state whose mounts lost their
    /// credentials. Whoever finds such a state must not get at the mounts through it.
    fn forget_identity(&self, _state: &mut Map<String, Value>) {}
}

/// A choice of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NetworkMode {
    /// None at all.
    None,
}

impl NetworkMode {
    /// The word users write.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
        }
    }

    /// Reads a choice, or nothing.
    pub(crate) fn optional(input: Input<'_>) -> Checked<Option<Self>> {
        match input.value() {
            Value::Null => Ok(None),
            _ => input.one_of(&[("none", Self::None)]).map(Some),
        }
    }

    /// What is wrong with ports in a container without a network.
    pub(crate) const NO_PORTS: &'static str =
        "exposed_ports cannot be used when network_mode='none'";
}

impl BackendState {
    /// What a program's own backend needs to know.
    pub fn custom(state: impl CustomBackendState) -> Self {
        Self::Custom(Custom::sharing(Arc::new(state)))
    }

    /// The word under `type`, which is also the backend's.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::UnixLocal { .. } => "unix_local",
            Self::Docker { .. } => "docker",
            Self::Local { .. } => "local",
            Self::Custom(custom) => custom.type_name(),
        }
    }

    pub(super) fn put_fields(&self, out: &mut Object) -> Result<()> {
        match self {
            Self::UnixLocal { workspace_root_owned } => {
                out.put("workspace_root_owned", workspace_root_owned)
            }
            Self::Docker { image, container_id, network_mode, labels } => {
                out.put("image", image)?;
                out.put("container_id", container_id)?;
                let network_mode = network_mode.map(|mode| mode.as_str().to_owned());
                out.put("network_mode", &network_mode)?;
                out.put("labels", labels)
            }
            Self::Local { machine, receipt } => {
                out.put("machine", &machine.clone().map(Value::Object))?;
                let receipt = receipt.as_ref().map(serde_json::to_value).transpose();
                let receipt = receipt.map_err(|error| {
                    Error::new(ErrorKind::Internal, "a receipt cannot be written")
                        .with_source(error)
                })?;
                out.put("receipt", &receipt)
            }
            Self::Custom(custom) => {
                out.extend(custom.tagged_fields()?.into_map());
                Ok(())
            }
        }
    }

    /// Takes what would lead to the running session out of a state.
    pub(super) fn forget_identity(&self, state: &mut Map<String, Value>) {
        match self {
            // A folder of the host is no secret, and leads to no mount of another session.
            Self::UnixLocal { .. } => {}
            Self::Docker { .. } => {
                state.insert("container_id".to_owned(), "".into());
                forget_session(state);
            }
            Self::Local { .. } => {
                state.insert("machine".to_owned(), Value::Null);
                forget_session(state);
            }
            Self::Custom(custom) => custom.forget_identity(state),
        }
    }
}

/// Renames the session, in a way that the same session always gets the same other name.
fn forget_session(state: &mut Map<String, Value>) {
    let id = state.get("session_id").and_then(Value::as_str).unwrap_or_default();
    let name = format!("openai-agents:mount-authority-redacted:{id}");
    let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()).to_string();
    state.insert("session_id".to_owned(), id.into());
    state.insert("workspace_root_ready".to_owned(), false.into());
}

/// What the backends that come with Bastide store. A reader is given the whole state and takes the
/// backend's own fields out of it.
pub(crate) const BUILTIN: [Builtin<BackendState>; 3] = [
    ("unix_local", "UnixLocalSandboxSessionState", |input| {
        let mut fields = input.fields("UnixLocalSandboxSessionState")?;
        let owned = fields.or("workspace_root_owned", false);
        fields.build(|| Some(BackendState::UnixLocal { workspace_root_owned: owned? }))
    }),
    ("docker", "DockerSandboxSessionState", |input| {
        let mut fields = input.fields("DockerSandboxSessionState")?;
        let image = fields.required("image");
        let container_id = fields.required("container_id");
        let network_mode = fields.or_with("network_mode", None, NetworkMode::optional);
        let labels = fields.or_default("labels");
        fields.build(|| {
            Some(BackendState::Docker {
                image: image?,
                container_id: container_id?,
                network_mode: network_mode?,
                labels: labels?,
            })
        })
    }),
    ("local", "LocalSessionState", |input| {
        let mut fields = input.fields("LocalSessionState")?;
        let machine = fields.or_with("machine", None, |input| match input.value() {
            Value::Null => Ok(None),
            Value::Object(machine) => Ok(Some(machine.clone())),
            _ => Err(input.field_error("dict_type", "Input should be a valid dictionary")),
        });
        let receipt: Option<Option<Receipt>> = fields.or_default("receipt");
        fields.build(|| {
            Some(BackendState::Local { machine: machine?, receipt: receipt?.map(Box::new) })
        })
    }),
];

impl FromInput for Receipt {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        serde_json::from_value(input.value().clone())
            .map_err(|_| input.field_error("receipt_type", "Input should be a valid receipt"))
    }
}
