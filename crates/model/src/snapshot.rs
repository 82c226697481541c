//! What is left of a workspace when its session stops, as data: where it is kept and under which
//! name.

use serde_json::Value;

use crate::custom::Custom;
use crate::lax::{Checked, Choice, Dump, FromInput, Input, Object};
use crate::posix_path::PosixPath;
use crate::registry::kinds::Builtin;
use crate::windows_path::WindowsPath;
use crate::{Error, Result, python};

/// A snapshot: its name, and where it is kept.
///
/// ```
/// use bastide_model::Snapshot;
/// use bastide_model::lax::{self, Dump};
/// use serde_json::json;
///
/// let snapshot: Snapshot = lax::read(&json!({"type": "local", "id": "a", "base_path": "/snap/"}))?;
/// assert_eq!(snapshot.dump()?, json!({"type": "local", "id": "a", "base_path": "/snap"}));
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Its name.
    pub id: String,
    /// Where it is kept.
    pub kind: SnapshotKind,
}

/// Where snapshots are kept.
#[derive(Debug, Clone, PartialEq)]
pub enum SnapshotKind {
    /// Nowhere: nothing is saved and nothing can be restored.
    Noop,
    /// In a folder of the host, each as one archive.
    Local {
        /// The folder.
        base_path: PosixPath,
    },
    /// By a client that the program provides.
    Remote {
        /// The name of the client among what the program provides.
        client_dependency_key: String,
    },
    /// In a way of the program's own.
    Custom(Custom),
}

impl Snapshot {
    /// A snapshot that is kept nowhere.
    pub fn noop(id: impl Into<String>) -> Self {
        Self { id: id.into(), kind: SnapshotKind::Noop }
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match &self.kind {
            SnapshotKind::Noop => "noop",
            SnapshotKind::Local { .. } => "local",
            SnapshotKind::Remote { .. } => "remote",
            SnapshotKind::Custom(custom) => custom.type_name(),
        }
    }

    /// The archive, if it is kept in a folder of the host.
    ///
    /// # Errors
    ///
    /// `ValueError` if the name is more than a name on any system.
    pub fn local_archive(&self) -> Result<Option<PosixPath>> {
        let SnapshotKind::Local { base_path } = &self.kind else {
            return Ok(None);
        };
        let windows = WindowsPath::new(&self.id);
        let is_name = !matches!(self.id.as_str(), "" | "." | "..")
            && !self.id.contains(['/', '\\'])
            && windows.drive().is_empty();
        if !is_name {
            return Err(Error::value_error("LocalSnapshot id must be a single path segment"));
        }
        Ok(Some(base_path.join(&PosixPath::new(&format!("{}.tar", self.id)))))
    }
}

/// The ways to keep snapshots that come with Bastide.
pub(crate) const BUILTIN: [Builtin<Snapshot>; 3] = [
    ("noop", "NoopSnapshot", |input| read(input, "NoopSnapshot", |_| Some(SnapshotKind::Noop))),
    ("local", "LocalSnapshot", |input| {
        read(input, "LocalSnapshot", |fields| {
            Some(SnapshotKind::Local { base_path: fields.required("base_path")? })
        })
    }),
    ("remote", "RemoteSnapshot", |input| {
        read(input, "RemoteSnapshot", |fields| {
            let client_dependency_key = fields.required("client_dependency_key")?;
            Some(SnapshotKind::Remote { client_dependency_key })
        })
    }),
];

fn read(
    input: Input<'_>,
    model: &str,
    kind: impl FnOnce(&mut crate::lax::Fields<'_>) -> Option<SnapshotKind>,
) -> Checked<Snapshot> {
    let mut fields = input.fields(model)?;
    fields.accept("type");
    let id = fields.required("id");
    let kind = kind(&mut fields);
    fields.build(|| Some(Snapshot { id: id?, kind: kind? }))
}

impl FromInput for Snapshot {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(map) = input.value().as_object() else {
            let message = "snapshot payload must be a SnapshotBase or object payload";
            return Err(input.type_error(message));
        };
        let word = map.get("type").unwrap_or(&Value::Null);
        match word.as_str().filter(|word| input.registry().snapshots().has(word)) {
            Some(known) => input.registry().snapshots().read(input, known, "snapshot"),
            None => {
                let word = python::text(word);
                Err(input.value_error(format!("unknown snapshot type `{word}`")))
            }
        }
    }
}

impl Dump for Snapshot {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("type", self.type_name())?;
        out.put("id", &self.id)?;
        match &self.kind {
            SnapshotKind::Noop => {}
            SnapshotKind::Local { base_path } => out.put("base_path", base_path)?,
            SnapshotKind::Remote { client_dependency_key } => {
                out.put("client_dependency_key", client_dependency_key)?;
            }
            SnapshotKind::Custom(custom) => {
                out.extend(custom.tagged_fields()?.into_map());
                out.put("id", &self.id)?;
            }
        }
        Ok(out.into())
    }
}

/// Where to keep a snapshot that has no name yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SnapshotSpec {
    /// Nowhere.
    #[default]
    Noop,
    /// In a folder of the host.
    Local {
        /// The folder.
        base_path: PosixPath,
    },
    /// By a client that the program provides.
    Remote {
        /// The name of the client among what the program provides.
        client_dependency_key: String,
    },
}

impl SnapshotSpec {
    /// The snapshot of that name.
    pub fn named(self, id: impl Into<String>) -> Snapshot {
        let kind = match self {
            Self::Noop => SnapshotKind::Noop,
            Self::Local { base_path } => SnapshotKind::Local { base_path },
            Self::Remote { client_dependency_key } => {
                SnapshotKind::Remote { client_dependency_key }
            }
        };
        Snapshot { id: id.into(), kind }
    }
}

impl FromInput for SnapshotSpec {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        const SPECS: &[Choice<SnapshotSpec>] = &[
            ("local", |input| {
                let mut fields = input.fields("LocalSnapshotSpec")?;
                fields.accept("type");
                let base_path = fields.required("base_path");
                fields.build(|| Some(SnapshotSpec::Local { base_path: base_path? }))
            }),
            ("noop", |input| {
                let mut fields = input.fields("NoopSnapshotSpec")?;
                fields.accept("type");
                fields.build(|| Some(SnapshotSpec::Noop))
            }),
            ("remote", |input| {
                let mut fields = input.fields("RemoteSnapshotSpec")?;
                fields.accept("type");
                let key = fields.required("client_dependency_key");
                fields.build(|| Some(SnapshotSpec::Remote { client_dependency_key: key? }))
            }),
        ];
        input.tagged("type", SPECS)
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
