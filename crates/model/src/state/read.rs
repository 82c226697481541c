//! States out of storage.

use std::collections::HashSet;

use serde_json::Value;
use uuid::Uuid;

use super::{BackendState, NetworkMode, REDACTED_HOST_PATH_GRANTS, SessionState};
use crate::error::raise;
use crate::lax::{Checked, Context, Input, Invalid, is_int};
use crate::manifest::Manifest;
use crate::mount::{REDACTED_MOUNT_AUTHORITY, sanitize_session_state};
use crate::registry::Registry;
use crate::{Error, FieldError, Result, json_text};

/// What is said of a state that cannot be read. What is wrong with it is not: it may be next to a
/// credential.
const INVALID: &str = "sandbox session state payload is invalid";

impl SessionState {
    /// Reads the state of a session of `backend`, whose word the payload may leave out.
    ///
    /// # Errors
    ///
    /// A `ValueError` that does not say what is wrong.
    pub fn deserialize(payload: Value, backend: &str, registry: &Registry) -> Result<Self> {
        Self::read_stored(payload, |_| Some(backend.to_owned()), registry)
    }

    /// Reads the state of a session of whatever backend it names.
    ///
    /// # Errors
    ///
    /// A `ValueError` that does not say what is wrong; `TypeError` if the payload is no object.
    pub fn parse(payload: Value, registry: &Registry) -> Result<Self> {
        if !payload.is_object() {
            let message = "session state payload must be a SandboxSessionState or dict";
            return Err(raise::type_error(message));
        }
        let named = |state: &Value| state.get("type").and_then(Value::as_str).map(str::to_owned);
        Self::read_stored(payload, named, registry)
    }

    fn read_stored(
        payload: Value,
        backend: impl FnOnce(&Value) -> Option<String>,
        registry: &Registry,
    ) -> Result<Self> {
        let invalid = |_: Error| raise::value_error(INVALID);
        let sanitized = sanitize_session_state(payload, registry).map_err(invalid)?;
        let payload = sanitized.value;
        let backend = backend(&payload).ok_or_else(|| raise::value_error(INVALID))?;
        let mut state = Self::read(&payload, &backend, None, registry).map_err(invalid)?;
        state.mount_authority_redacted |= sanitized.redacted;
        state.forget_host_paths(&payload);
        Ok(state)
    }

    /// Drops grants with a path of the host behind them, and remembers that they must be given
    /// again.
    fn forget_host_paths(&mut self, payload: &Value) {
        let marked = payload.get(REDACTED_HOST_PATH_GRANTS).and_then(Value::as_array);
        let marked = marked.into_iter().flatten().filter_map(Value::as_str);
        let mut paths: Vec<String> = marked.map(str::to_owned).collect();
        self.manifest.extra_path_grants.retain(|grant| {
            let is_backed = grant.host_path.is_some();
            if is_backed {
                paths.push(grant.path.clone());
            }
            !is_backed
        });
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        self.path_grants_to_rebind = paths;
    }

    /// Reads the state of a session of `backend` that a program wrote for itself with
    /// [`dump`](Self::dump): grants keep their paths of the host. Credentials of mounts are dropped
    /// all the same.
    ///
    /// # Errors
    ///
    /// A `ValueError` if it is no JSON; else `ValidationError`, or what a rule says.
    pub fn from_json(text: &str, backend: &str, registry: &Registry) -> Result<Self> {
        let value = json_text::parse(text)
            .map_err(|_| raise::value_error("sandbox session state JSON is invalid"))?;
        let is_marked = value.get(REDACTED_MOUNT_AUTHORITY) == Some(&Value::Bool(true));
        if value.get("manifest").is_none() {
            return Self::checked(&value, backend, None, is_marked, registry);
        }
        let Ok(sanitized) = sanitize_session_state(value, registry) else {
            return Err(hidden());
        };
        let mut state =
            Self::checked(&sanitized.value, backend, None, sanitized.redacted, registry)?;
        state.mount_authority_redacted = sanitized.redacted;
        Ok(state)
    }

    /// The state of a session that a program starts: `fields` as JSON, and the `manifest` with
    /// everything the program gave it.
    ///
    /// # Errors
    ///
    /// `ValidationError`, or what a rule says.
    pub fn of_manifest(
        fields: &Value,
        manifest: Manifest,
        backend: &str,
        registry: &Registry,
    ) -> Result<Self> {
        let is_marked = fields.get(REDACTED_MOUNT_AUTHORITY) == Some(&Value::Bool(true));
        let hide = is_marked || manifest.holds_mount_authority();
        let mut state = Self::checked(fields, backend, Some(manifest), hide, registry)?;
        state.mount_authority_redacted = is_marked;
        Ok(state)
    }

    /// Reads a state, and says what is wrong with it unless that must be hidden.
    fn checked(
        value: &Value,
        backend: &str,
        manifest: Option<Manifest>,
        hide: bool,
        registry: &Registry,
    ) -> Result<Self> {
        let read = Self::read(value, backend, manifest, registry);
        read.map_err(|error| if hide { hidden() } else { error })
    }

    fn read(
        value: &Value,
        backend: &str,
        manifest: Option<Manifest>,
        registry: &Registry,
    ) -> Result<Self> {
        let context = Context::with(registry);
        let read = context.check(value, |input| state(input, backend, manifest));
        read.map_err(Invalid::into_error)
    }
}

/// The whole state is wrong, and nobody says why.
fn hidden() -> Error {
    let message = format!("Value error, {INVALID}");
    let tag = "value_error".to_owned();
    Invalid::Fields(vec![FieldError { loc: Vec::new(), path: Vec::new(), tag, message }])
        .into_error()
}

fn state(input: Input<'_>, backend: &str, manifest: Option<Manifest>) -> Checked<SessionState> {
    let mut fields = input.fields("SandboxSessionState")?;
    fields.or_with("type", (), |input| match input.value().as_str() {
        Some(word) if word == backend => Ok(()),
        _ => Err(input.field_error("literal_error", format!("Input should be '{backend}'"))),
    });
    let session_id = match fields.has("session_id") {
        true => fields.required("session_id"),
        false => Some(Uuid::new_v4()),
    };
    let snapshot = fields.required("snapshot");
    let manifest = manifest.or_else(|| fields.required("manifest"));
    let exposed_ports = fields.or_with("exposed_ports", Vec::new(), exposed_ports);
    let fingerprint = fields.or_default("snapshot_fingerprint");
    let fingerprint_version = fields.or_default("snapshot_fingerprint_version");
    let workspace_root_ready = fields.or("workspace_root_ready", false);
    let backend =
        fields.whole(|input| input.registry().backend_states().read(input, backend, "state"));
    let state = fields.build(|| {
        let state = SessionState::new(session_id?, snapshot?, manifest?, backend?);
        Some(SessionState {
            exposed_ports: exposed_ports?,
            snapshot_fingerprint: fingerprint?,
            snapshot_fingerprint_version: fingerprint_version?,
            workspace_root_ready: workspace_root_ready?,
            ..state
        })
    })?;
    let has_no_network =
        matches!(state.backend, BackendState::Docker { network_mode: Some(NetworkMode::None), .. });
    if has_no_network && !state.exposed_ports.is_empty() {
        let message = format!("Value error, {}", NetworkMode::NO_PORTS);
        return Err(input.field_error("value_error", message));
    }
    Ok(state)
}

/// One port or several; each only once.
fn exposed_ports(input: Input<'_>) -> Checked<Vec<u16>> {
    let items = match input.value() {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items.iter().collect(),
        Value::Number(number) if is_int(number) => vec![input.value()],
        Value::Bool(_) => vec![input.value()],
        // The names in an object are what the reference would take for ports.
        Value::Object(fields) if fields.is_empty() => return Ok(Vec::new()),
        Value::Object(_) => return Err(input.type_error("exposed_ports must contain integers")),
        Value::Number(_) | Value::String(_) => {
            let message = "exposed_ports must be an iterable of TCP port integers";
            return Err(input.type_error(message));
        }
    };
    let mut seen = HashSet::new();
    let mut ports = Vec::new();
    for item in items {
        let port = match item {
            Value::Bool(flag) => Some(u16::from(*flag)),
            Value::Number(number) if is_int(number) => {
                number.as_u64().and_then(|port| u16::try_from(port).ok())
            }
            _ => return Err(input.type_error("exposed_ports must contain integers")),
        };
        let port = port.filter(|port| *port != 0).ok_or_else(|| {
            input.value_error("exposed_ports entries must be between 1 and 65535")
        })?;
        if seen.insert(port) {
            ports.push(port);
        }
    }
    Ok(ports)
}
