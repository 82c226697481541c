//! Snapshots: where a workspace is kept while no session runs, and how that is written down.
//!
//! A [`SnapshotSpec`] is what a user asks for; a [`Snapshot`] is one that has an id and stands in a
//! session's state. Saving and restoring is for whoever holds the files; here are the names, the
//! rules and the errors.

mod defaults;
mod fingerprint;
mod local;

pub use defaults::{
    Platform, STALE_AFTER_SECONDS, StaleSnapshots, default_local_snapshot_base_dir,
};
pub use fingerprint::{
    FINGERPRINT_VERSION, FingerprintRecord, resume_manifest_digest, resume_manifest_text,
};
pub use local::LocalSnapshot;

use std::any::Any;
use std::sync::Arc;

use serde_json::Value;

use crate::custom::{Custom, CustomType};
use crate::error::raise;
use crate::lax::{Checked, Dump, FromInput, Input, Object};
use crate::posix_path::PosixPath;
use crate::registry::kinds::Builtin;
use crate::{Error, Result, python};

/// A snapshot: which kind, and what it is called there.
///
/// ```
/// use bastide_model::lax::{self, Dump};
/// use bastide_model::snapshot::Snapshot;
/// use serde_json::json;
///
/// let payload = json!({"type": "local", "id": "a", "base_path": "/snaps/"});
/// let snapshot: Snapshot = lax::read(&payload)?;
/// assert_eq!(snapshot.id(), "a");
/// assert_eq!(snapshot.dump()?, json!({"type": "local", "id": "a", "base_path": "/snaps"}));
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Snapshot {
    /// Nothing is kept.
    Noop {
        /// What it would be called.
        id: String,
    },
    /// A tar file on the host.
    Local(LocalSnapshot),
    /// Something a client of the caller's keeps.
    Remote {
        /// What it is called there.
        id: String,
        /// The name under which the session finds the client.
        client_dependency_key: String,
    },
    /// A type of the program's own; only the program knows how to save and restore it.
    Custom(Custom<dyn CustomSnapshot>),
}

/// A program's own type of snapshot.
pub trait CustomSnapshot: CustomType {
    /// What the snapshot is called.
    fn id(&self) -> &str;

    /// Where errors say the snapshot is.
    fn location(&self) -> String {
        format!("<{}>", self.type_name())
    }
}

impl Custom<dyn CustomSnapshot> {
    /// The snapshot, if it is of this type.
    #[must_use]
    pub fn downcast<T: CustomSnapshot>(&self) -> Option<&T> {
        let any: &dyn Any = &**self;
        any.downcast_ref()
    }
}

impl Snapshot {
    /// A snapshot of a program's own type.
    pub fn custom(snapshot: impl CustomSnapshot) -> Self {
        Self::Custom(Custom::sharing(Arc::new(snapshot)))
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::Noop { .. } => "noop",
            Self::Local(_) => "local",
            Self::Remote { .. } => "remote",
            Self::Custom(custom) => custom.type_name(),
        }
    }

    /// What the snapshot is called.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Noop { id } | Self::Remote { id, .. } => id,
            Self::Local(local) => &local.id,
            Self::Custom(custom) => custom.id(),
        }
    }

    /// The file on the host a workspace is kept in, where it is one: what events of saving say.
    #[must_use]
    pub fn tar_path(&self) -> Option<String> {
        match self {
            Self::Local(local) if !local.id.is_empty() => {
                let path = local.base_path.join(&PosixPath::new(&local.id));
                Some(format!("{path}.tar"))
            }
            _ => None,
        }
    }

    /// Where errors say the snapshot is.
    ///
    /// # Errors
    /// A local snapshot's id is no file name.
    pub fn location(&self) -> Result<String> {
        match self {
            Self::Noop { .. } => Ok("<noop>".to_owned()),
            Self::Local(local) => Ok(local.path()?.to_string()),
            Self::Remote { client_dependency_key, .. } => {
                Ok(format!("<remote:{client_dependency_key}>"))
            }
            Self::Custom(custom) => Ok(custom.location()),
        }
    }

    /// The error for restoring from a snapshot that never keeps anything; `None` for others.
    #[must_use]
    pub fn never_restorable(&self) -> Option<Error> {
        match self {
            Self::Noop { id } => Some(raise::snapshot_not_restorable(id, "<noop>")),
            Self::Local(_) | Self::Remote { .. } | Self::Custom(_) => None,
        }
    }
}

impl FromInput for Snapshot {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(payload) = input.value().as_object() else {
            return Err(
                input.type_error("snapshot payload must be a SnapshotBase or object payload")
            );
        };
        let tag = payload.get("type").unwrap_or(&Value::Null);
        let known = input.registry().snapshots();
        match tag.as_str().filter(|tag| known.has(tag)) {
            Some(tag) => known.read(input, tag, "snapshot"),
            None => {
                let message = format!("unknown snapshot type `{}`", python::text(tag));
                Err(input.value_error(message))
            }
        }
    }
}

/// The types of snapshots that come with Bastide.
pub(crate) const BUILTIN: [Builtin<Snapshot>; 3] = [
    ("noop", "NoopSnapshot", |input| {
        let mut fields = input.fields("NoopSnapshot")?;
        fields.accept("type");
        let id = fields.required("id");
        fields.build(|| Some(Snapshot::Noop { id: id? }))
    }),
    ("local", "LocalSnapshot", |input| {
        let mut fields = input.fields("LocalSnapshot")?;
        fields.accept("type");
        let id = fields.required("id");
        let base_path = fields.required("base_path");
        fields.build(|| Some(Snapshot::Local(LocalSnapshot { id: id?, base_path: base_path? })))
    }),
    ("remote", "RemoteSnapshot", |input| {
        let mut fields = input.fields("RemoteSnapshot")?;
        fields.accept("type");
        let id = fields.required("id");
        let key = fields.required("client_dependency_key");
        fields.build(|| Some(Snapshot::Remote { id: id?, client_dependency_key: key? }))
    }),
];

impl Dump for Snapshot {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        match self {
            Self::Noop { id } => {
                out.put("type", "noop")?;
                out.put("id", id)?;
            }
            Self::Local(local) => {
                out.put("type", "local")?;
                out.put("id", &local.id)?;
                out.put("base_path", &local.base_path)?;
            }
            Self::Remote { id, client_dependency_key } => {
                out.put("type", "remote")?;
                out.put("id", id)?;
                out.put("client_dependency_key", client_dependency_key)?;
            }
            Self::Custom(custom) => {
                let fields = custom.tagged_fields()?.into_map();
                out.put("type", custom.type_name())?;
                out.put("id", custom.id())?;
                out.extend(fields);
            }
        }
        Ok(out.into())
    }
}

/// What kind of snapshot a user asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SnapshotSpec {
    /// None.
    #[default]
    Noop,
    /// Tar files on the host.
    Local {
        /// The folder they are in.
        base_path: PosixPath,
    },
    /// Something a client of the caller's keeps.
    Remote {
        /// The name under which a session finds the client.
        client_dependency_key: String,
    },
}

impl SnapshotSpec {
    /// The snapshot of that kind that is called `id`.
    ///
    /// ```
    /// use bastide_model::snapshot::{Snapshot, SnapshotSpec};
    ///
    /// let snapshot = SnapshotSpec::default().build("a");
    /// assert_eq!(snapshot, Snapshot::Noop { id: "a".to_owned() });
    /// ```
    #[must_use]
    pub fn build(self, id: &str) -> Snapshot {
        let id = id.to_owned();
        match self {
            Self::Noop => Snapshot::Noop { id },
            Self::Local { base_path } => Snapshot::Local(LocalSnapshot { id, base_path }),
            Self::Remote { client_dependency_key } => {
                Snapshot::Remote { id, client_dependency_key }
            }
        }
    }
}

impl FromInput for SnapshotSpec {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        input.tagged(
            "type",
            &[
                ("local", |input| {
                    let mut fields = input.fields("LocalSnapshotSpec")?;
                    fields.accept("type");
                    let base_path = fields.required("base_path");
                    fields.build(|| Some(Self::Local { base_path: base_path? }))
                }),
                ("noop", |input| {
                    let mut fields = input.fields("NoopSnapshotSpec")?;
                    fields.accept("type");
                    fields.build(|| Some(Self::Noop))
                }),
                ("remote", |input| {
                    let mut fields = input.fields("RemoteSnapshotSpec")?;
                    fields.accept("type");
                    let key = fields.required("client_dependency_key");
                    fields.build(|| Some(Self::Remote { client_dependency_key: key? }))
                }),
            ],
        )
    }
}

impl Dump for SnapshotSpec {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        match self {
            Self::Noop => out.put("type", "noop")?,
            Self::Local { base_path } => {
                out.put("type", "local")?;
                out.put("base_path", base_path)?;
            }
            Self::Remote { client_dependency_key } => {
                out.put("type", "remote")?;
                out.put("client_dependency_key", client_dependency_key)?;
            }
        }
        Ok(out.into())
    }
}
