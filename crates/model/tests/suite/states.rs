//! States from outside: what is stored, what comes back, and what a program can add.

use bastide_model::custom::CustomType;
use bastide_model::receipt::{NetworkAccess, Receipt, Rung};
use bastide_model::state::{BackendState, CustomBackendState};
use bastide_model::{Manifest, Registry, Result, SessionState, Snapshot, lax};
use serde_json::{Map, Value, json};
use uuid::Uuid;

fn state(manifest: Manifest, backend: BackendState) -> SessionState {
    let snapshot = Snapshot::Noop { id: "s".to_owned() };
    SessionState::new(Uuid::from_u128(7), snapshot, manifest, backend)
}

fn local() -> BackendState {
    let machine = json!({"dir": "/run/town"}).as_object().cloned();
    let receipt = Receipt::new(Rung::Namespaces, NetworkAccess::None, "root (0)");
    BackendState::Local { machine, receipt: Some(Box::new(receipt)) }
}

fn with_secret_options() -> Result<Manifest> {
    let options = json!({"password": "hunter2"});
    lax::read(&json!({"entries": {"data": {
        "type": "s3_mount",
        "bucket": "b",
        "mount_strategy":
            {"type": "docker_volume", "driver": "rclone", "driver_options": options},
    }}}))
}

#[test]
fn a_local_session_is_stored_with_its_machine_and_its_receipt() {
    let registry = Registry::builtin();
    let before = state(Manifest::default(), local());
    let stored = before.serialize(registry).unwrap();
    assert_eq!(stored["type"], "local");
    assert_eq!(stored["machine"]["dir"], "/run/town");
    assert_eq!(stored["receipt"]["rung"], "namespaces");
    assert_eq!(SessionState::parse(stored, registry).unwrap(), before);
}

#[test]
fn a_state_without_credentials_does_not_lead_to_where_they_are() {
    let registry = Registry::builtin();
    let stored = state(with_secret_options().unwrap(), local()).serialize(registry).unwrap();
    assert!(!stored.to_string().contains("hunter2"));
    assert_eq!(stored["machine"], Value::Null);
    assert_ne!(stored["session_id"], Uuid::from_u128(7).to_string());

    let state = SessionState::parse(stored, registry).unwrap();
    assert!(state.is_mount_authority_redacted());
    let rebound = state
        .rebind_mount_authority(Some(&with_secret_options().unwrap()), "docker", registry)
        .unwrap();
    assert!(rebound.is_mount_authority_rebound() && !rebound.is_mount_authority_redacted());
    assert_eq!(rebound.manifest, with_secret_options().unwrap());
}

#[test]
fn what_is_wrong_with_a_stored_state_is_not_said() {
    let payload = json!({"type": "docker", "password": "hunter2", "manifest": {"root": 5}});
    let error = SessionState::parse(payload, Registry::builtin()).unwrap_err();
    assert_eq!(error.message(), "sandbox session state payload is invalid");
    assert!(!format!("{error:?}").contains("hunter2"));
}

/// A backend that a program brings.
#[derive(Debug)]
struct Balloon {
    height: i128,
}

impl CustomType for Balloon {
    fn type_name(&self) -> &str {
        "balloon"
    }

    fn fields(&self) -> Result<Map<String, Value>> {
        Ok([("height".to_owned(), json!(i64::try_from(self.height).unwrap_or(0)))]
            .into_iter()
            .collect())
    }
}

impl CustomBackendState for Balloon {
    fn forget_identity(&self, state: &mut Map<String, Value>) {
        state.insert("height".to_owned(), json!(0));
    }
}

#[test]
fn a_program_can_store_sessions_of_its_own_backend() {
    let registry = Registry::builtin()
        .clone()
        .with_backend_state("balloon", "Balloon", |input| {
            let mut fields = input.fields("Balloon")?;
            let height = fields.required("height");
            fields.build(|| Some(BackendState::custom(Balloon { height: height? })))
        })
        .unwrap();
    let before = state(Manifest::default(), BackendState::custom(Balloon { height: 300 }));
    let stored = before.serialize(&registry).unwrap();
    assert_eq!((&stored["type"], &stored["height"]), (&json!("balloon"), &json!(300)));
    assert_eq!(SessionState::parse(stored.clone(), &registry).unwrap(), before);
    assert!(SessionState::parse(stored, Registry::builtin()).is_err());

    let hidden =
        state(with_secret_options().unwrap(), BackendState::custom(Balloon { height: 300 }));
    assert_eq!(hidden.serialize(&registry).unwrap()["height"], 0);
}
