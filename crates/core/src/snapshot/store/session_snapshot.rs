//! Sessions that are kept in a store while they are stopped.

use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::custom::CustomType;
use bastide_model::lax::{Checked, Input, Object};
use bastide_model::snapshot::{CustomSnapshot, FingerprintRecord, Snapshot};
use bastide_model::{Error as ModelError, Registry};
use serde_json::{Map, Value};

use super::{Store, Tree, blocking, record};
use crate::snapshot::{Saved, SnapshotStorage, SnapshotTypes, Workspace};
use crate::{Client, Error, ErrorKind, Result};

/// The word under `type`.
const WORD: &str = "store";

/// The way fingerprints are made, as they name it.
const VERSION: &str = "bastide_store_blake3_v1";

/// A snapshot in a [`Store`]: the type `store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSnapshot {
    /// Its name in the store.
    pub id: String,
    /// The snapshot of the store that the session starts from until it was saved itself. It is not
    /// changed.
    pub from: Option<String>,
}

impl StoreSnapshot {
    /// The snapshot in the form that a session's state has.
    #[must_use]
    pub fn into_snapshot(self) -> Snapshot {
        Snapshot::custom(self)
    }

    fn read(input: Input<'_>) -> Checked<Snapshot> {
        let mut fields = input.fields("StoreSnapshot")?;
        fields.accept("type");
        let id: Option<String> = fields.required("id");
        let from: Option<Option<String>> = fields.or_default("from");
        fields.build(|| Some(Snapshot::custom(Self { id: id?, from: from? })))
    }
}

impl CustomType for StoreSnapshot {
    fn type_name(&self) -> &str {
        WORD
    }

    fn fields(&self) -> Result<Map<String, Value>, ModelError> {
        let mut out = Object::new();
        out.put("from", &self.from)?;
        Ok(out.into_map())
    }
}

impl CustomSnapshot for StoreSnapshot {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Store {
    /// Adds this store to the snapshot types of a client.
    ///
    /// # Errors
    ///
    /// Fails if the client has another meaning for the type `store`.
    pub fn known_to(&self, client: Client) -> Result<Client> {
        let registry = client.registry().clone();
        let registry = self.registered(registry)?;
        let types = self.kept(client.snapshot_types().clone());
        Ok(client.with_registry(registry).with_snapshot_types(types))
    }

    fn registered(&self, registry: Registry) -> Result<Registry> {
        registry.with_snapshot(WORD, "StoreSnapshot", StoreSnapshot::read)
    }

    fn kept(&self, types: SnapshotTypes) -> SnapshotTypes {
        let store = self.clone();
        types.with(WORD, move |snapshot| {
            let Snapshot::Custom(custom) = snapshot else { return Err(unknown()) };
            let snapshot = custom.downcast::<StoreSnapshot>().ok_or_else(unknown)?.clone();
            record::check_name(&snapshot.id)?;
            if let Some(from) = &snapshot.from {
                record::check_name(from)?;
            }
            Ok(Arc::new(StoreStorage { store: store.clone(), snapshot }))
        })
    }
}

fn unknown() -> Error {
    Error::new(ErrorKind::InvalidInput, "that is no snapshot of a store")
}

/// Saves and restores the workspace of one session in a store.
#[derive(Debug)]
struct StoreStorage {
    store: Store,
    snapshot: StoreSnapshot,
}

impl StoreStorage {
    /// What there is to restore.
    async fn found(&self) -> Result<Option<String>> {
        let (store, snapshot) = (self.store.clone(), self.snapshot.clone());
        // Most sessions are new. One look is sooner taken than a thread made that takes it.
        if snapshot.from.is_none() && !store.has(&snapshot.id)? {
            return Ok(None);
        }
        blocking(move || match store.inspect(&snapshot.id) {
            Ok(_) => Ok(Some(snapshot.id)),
            Err(error) if error.is_not_found() => {
                // Who asks to start with something that is not there is not served with nothing.
                match snapshot.from {
                    Some(from) => store.inspect(&from).map(|_| Some(from)),
                    None => Ok(None),
                }
            }
            Err(error) => Err(error),
        })
        .await
    }
}

fn fingerprint(fingerprint: String) -> FingerprintRecord {
    FingerprintRecord { fingerprint, version: VERSION.to_owned() }
}

#[async_trait]
impl SnapshotStorage for StoreStorage {
    async fn is_restorable(&self, _workspace: &Workspace<'_>) -> Result<bool> {
        Ok(self.found().await?.is_some())
    }

    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved> {
        let saved = self.store.save(&Tree::of(workspace), &self.snapshot.id).await?;
        let mut kept = Saved::with_fingerprint(Some(fingerprint(saved.info.fingerprint)));
        kept.left_out = saved.info.left_out;
        Ok(kept)
    }

    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()> {
        let Some(name) = self.found().await? else {
            return Err(record::missing(&self.snapshot.id));
        };
        self.store.restore(&Tree::of(workspace), &name).await.map(drop)
    }

    async fn fingerprint(&self, workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        let now = self.store.fingerprint(&Tree::of(workspace)).await?;
        Ok(Some(fingerprint(now)))
    }
}
