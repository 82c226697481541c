//! Area `session_state`: what is stored of sessions, and the options they are made with.

use bastide_model::lax::{self, Dump as _};
use bastide_model::{ClientOptions, Manifest, Registry, Result, SessionState};
use serde_json::{Map, Value, json};

use super::mount_security::acknowledged;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("state_serialize", |case| live(case)?.serialize(Registry::builtin())),
    ("state_model_dump", |case| live(case)?.dump(Registry::builtin())),
    ("state_deserialize", |case| show(&stored(case)?)),
    ("state_parse", |case| {
        show(&SessionState::parse(case.get("payload").clone(), Registry::builtin())?)
    }),
    ("state_validate_json", |case| {
        let (json, backend) = (case.text("json")?, case.text("backend")?);
        show(&SessionState::from_json(json, backend, Registry::builtin())?)
    }),
    ("state_roundtrip", roundtrip),
    ("state_rebind_path_grants", |case| {
        let trusted = trusted(case)?;
        show(&stored(case)?.rebind_path_grants(trusted.as_ref())?)
    }),
    ("state_rebind_mount_authority", rebind_mount_authority),
    ("state_assert_rebound", |case| {
        stored(case)?.check_resumable()?;
        Ok(Value::Null)
    }),
    ("client_options_parse", |case| lax::read::<ClientOptions>(case.get("options"))?.dump()),
];

/// The state of a running session that a case describes.
fn live(case: &Case<'_>) -> Result<SessionState> {
    let backend = case.text("backend")?;
    let mut fields = Map::new();
    fields.insert("session_id".to_owned(), json!("12345678-1234-5678-1234-567812345678"));
    fields.insert("snapshot".to_owned(), json!({"type": "noop", "id": "snap-1"}));
    if backend == "docker" {
        fields.insert("image".to_owned(), json!("img:1"));
        fields.insert("container_id".to_owned(), json!("cid0123"));
    }
    fields.extend(case.get("fields").as_object().cloned().unwrap_or_default());
    let manifest = match case.get("manifest") {
        Value::Null => Manifest::default(),
        manifest => lax::read(manifest)?,
    };
    SessionState::of_manifest(&Value::Object(fields), manifest, backend, Registry::builtin())
}

fn stored(case: &Case<'_>) -> Result<SessionState> {
    let payload = case.get("payload").clone();
    SessionState::deserialize(payload, case.text("backend")?, Registry::builtin())
}

fn trusted(case: &Case<'_>) -> Result<Option<Manifest>> {
    match case.get("trusted") {
        Value::Null => Ok(None),
        _ => acknowledged(case, "trusted").map(Some),
    }
}

fn show(state: &SessionState) -> Result<Value> {
    let class = match state.type_name() {
        "docker" => "DockerSandboxSessionState",
        "unix_local" => "UnixLocalSandboxSessionState",
        other => other,
    };
    Ok(json!({
        "state": state.dump(Registry::builtin())?,
        "class": class,
        "path_grants_require_rebind": state.path_grants_to_rebind(),
        "mount_authority_redacted": state.is_mount_authority_redacted(),
    }))
}

fn roundtrip(case: &Case<'_>) -> Result<Value> {
    let registry = Registry::builtin();
    let first = live(case)?.serialize(registry)?;
    let again = SessionState::deserialize(first.clone(), case.text("backend")?, registry)?;
    Ok(json!({ "first": first, "second": again.serialize(registry)? }))
}

fn rebind_mount_authority(case: &Case<'_>) -> Result<Value> {
    let (trusted, backend) = (trusted(case)?, case.text("backend")?);
    let state =
        stored(case)?.rebind_mount_authority(trusted.as_ref(), backend, Registry::builtin())?;
    Ok(json!({
        "manifest": state.manifest.dump()?,
        "mount_authority_redacted": state.is_mount_authority_redacted(),
        "mount_authority_rebound": state.is_mount_authority_rebound(),
    }))
}
