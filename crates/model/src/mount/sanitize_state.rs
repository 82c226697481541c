//! Taking credentials out of stored states.

use serde_json::{Map, Value};

use super::sanitize::{Sanitized, sanitize_manifest};
use crate::error::raise;
use crate::registry::Registry;
use crate::{ErrorClass, Result};

/// Marks a state whose mounts lost their credentials, or must be allowed to use some again.
pub const REDACTED_MOUNT_AUTHORITY: &str = "__openai_agents_redacted_mount_authority";

/// What older states carried instead; dropped.
const CREDENTIALLESS_MOUNT_AUTHORITY: &str = "__openai_agents_credentialless_mount_authority";

/// Takes the credentials of mounts out of a stored state, and marks it if there were any. What is no
/// object is left alone.
///
/// # Errors
///
/// As [`sanitize_manifest`].
pub fn sanitize_session_state(mut state: Value, registry: &Registry) -> Result<Sanitized<Value>> {
    let redacted = match state.as_object_mut() {
        Some(state) => sanitize_fields(state, registry)?,
        None => false,
    };
    Ok(Sanitized { value: state, redacted })
}

fn sanitize_fields(state: &mut Map<String, Value>, registry: &Registry) -> Result<bool> {
    let mut redacted = false;
    if let Some(manifest) = state.get_mut("manifest") {
        if !manifest.is_object() {
            return Err(raise::value_error("sandbox manifest has an invalid shape")
                .with_class(ErrorClass::InvalidRawMountManifestError)
                .with_protection());
        }
        let sanitized = sanitize_manifest(manifest.take(), registry)?;
        *manifest = sanitized.value;
        redacted = sanitized.redacted;
    }
    state.shift_remove(CREDENTIALLESS_MOUNT_AUTHORITY);
    redacted |= state.get(REDACTED_MOUNT_AUTHORITY) == Some(&Value::Bool(true));
    if redacted {
        state.insert(REDACTED_MOUNT_AUTHORITY.to_owned(), Value::Bool(true));
    }
    Ok(redacted)
}

/// Takes the credentials of mounts out of the part of a stored run that is about sandboxes: the
/// state of the session, and the one of each agent.
///
/// # Errors
///
/// `ValueError` if it has another shape, or a manifest in it is not trusted.
pub fn sanitize_run_state(mut sandbox: Value, registry: &Registry) -> Result<Sanitized<Value>> {
    let wrong = || raise::value_error("RunState sandbox resume state has an invalid envelope");
    let states = states_of(&mut sandbox).ok_or_else(wrong)?;
    let mut redacted = false;
    for state in states {
        redacted |= sanitize_fields(state, registry).map_err(|_| {
            raise::value_error("RunState sandbox resume state contains an invalid manifest")
        })?;
    }
    Ok(Sanitized { value: sandbox, redacted })
}

/// Every state in the part of a run that is about sandboxes, or `None` if it has another shape.
fn states_of(sandbox: &mut Value) -> Option<Vec<&mut Map<String, Value>>> {
    let mut states = Vec::new();
    for (key, value) in sandbox.as_object_mut()? {
        match (key.as_str(), value) {
            ("session_state", state) => states.push(state.as_object_mut()?),
            ("sessions_by_agent", Value::Null) => {}
            ("sessions_by_agent", sessions) => {
                for session in sessions.as_object_mut()?.values_mut() {
                    states.push(state_of_agent(session.as_object_mut()?)?);
                }
            }
            _ => {}
        }
    }
    Some(states)
}

/// The state in what is stored of an agent, which is the whole of it where it has no part for it.
fn state_of_agent(session: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    match session.contains_key("session_state") {
        true => session.get_mut("session_state")?.as_object_mut(),
        false => Some(session),
    }
}
