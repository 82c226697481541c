//! Entries out of JSON.

use indexmap::IndexMap;
use serde_json::Value;

use super::{Entry, EntryKind, GitRepo};
use crate::lax::{Checked, Fields, FromInput, Input};
use crate::mount;
use crate::permissions::Permissions;
use crate::registry::kinds::Builtin;
use crate::users::EntryGroup;

/// The sorts of entries that come with Bastide.
pub(crate) const BUILTIN: [Builtin<Entry>; 11] = [
    ("dir", "Dir", dir),
    ("file", "File", file),
    ("local_file", "LocalFile", local_file),
    ("local_dir", "LocalDir", local_dir),
    ("git_repo", "GitRepo", git_repo),
    ("azure_blob_mount", "AzureBlobMount", mount::read::azure_blob),
    ("box_mount", "BoxMount", mount::read::box_folder),
    ("gcs_mount", "GCSMount", mount::read::gcs),
    ("r2_mount", "R2Mount", mount::read::r2),
    ("s3_mount", "S3Mount", mount::read::s3),
    ("s3_files_mount", "S3FilesMount", mount::read::s3_files),
];

impl FromInput for Entry {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(map) = input.value().as_object() else {
            let name = input.type_name();
            let message = format!("Artifact entry must be a BaseEntry or mapping, got {name}");
            return Err(input.wrong_type("model_type", message));
        };
        let Some(tag) = map.get("type").and_then(Value::as_str) else {
            let message = "Artifact entry mapping must include a string `type` field";
            return Err(input.without_type(message));
        };
        input.registry().entries().read(input, tag, "artifact")
    }
}

/// Reads a map of entries.
pub(crate) fn entries(input: Input<'_>) -> Checked<IndexMap<String, Entry>> {
    let map = match input.value() {
        Value::Null => return Ok(IndexMap::new()),
        Value::Object(map) => map,
        _ => {
            let name = input.type_name();
            let message = format!("Artifact mapping must be a mapping, got {name}");
            return Err(input.wrong_type("dict_type", message));
        }
    };
    input.keyed(map, Entry::from_input)
}

/// What an entry is where its own `is_dir` does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryShape {
    /// A file.
    File,
    /// A folder.
    Folder,
}

/// The fields that every sort of entry has, in the reference's order: the first thing that the
/// reader of a sort of entry asks for.
///
/// ```
/// use bastide_model::custom::{Custom, CustomType};
/// use bastide_model::entry::{Entry, EntryFields, EntryKind, EntryShape};
/// use bastide_model::lax::{Checked, Input};
/// # use serde_json::{Map, Value};
/// # #[derive(Debug)]
/// # struct Note(String);
/// # impl CustomType for Note {
/// #     fn type_name(&self) -> &str { "note" }
/// #     fn fields(&self) -> bastide_model::Result<Map<String, Value>> { Ok(Map::new()) }
/// # }
///
/// fn note(input: Input<'_>) -> Checked<Entry> {
///     let mut fields = input.fields("Note")?;
///     let common = EntryFields::read(&mut fields, EntryShape::File);
///     let text: Option<String> = fields.required("text");
///     fields.build(|| {
///         let note = Custom::new(Note(text?));
///         Some(common?.entry(EntryKind::Custom(note)))
///     })
/// }
/// ```
#[derive(Debug)]
pub struct EntryFields {
    description: Option<String>,
    ephemeral: bool,
    group: Option<EntryGroup>,
    is_dir: bool,
    permissions: Permissions,
}

impl EntryFields {
    /// Reads the fields of an entry that survives a session.
    pub fn read(fields: &mut Fields<'_>, shape: EntryShape) -> Option<Self> {
        Self::read_with(fields, shape, false)
    }

    pub(crate) fn read_with(
        fields: &mut Fields<'_>,
        shape: EntryShape,
        ephemeral: bool,
    ) -> Option<Self> {
        fields.accept("type");
        let description = fields.or_default("description");
        let ephemeral = fields.or("ephemeral", ephemeral);
        let group = fields.or_default("group");
        let is_dir = fields.or("is_dir", shape == EntryShape::Folder);
        let permissions = fields.or("permissions", Permissions::of_entries());
        Some(Self {
            description: description?,
            ephemeral: ephemeral?,
            group: group?,
            is_dir: is_dir?,
            permissions: permissions?,
        })
    }

    /// The entry of these fields. What is a folder by its sort has the permissions of a folder.
    #[must_use]
    pub fn entry(self, kind: EntryKind) -> Entry {
        let Self { description, ephemeral, group, is_dir, mut permissions } = self;
        permissions.directory |= kind.is_dir();
        Entry { description, ephemeral, group, is_dir, permissions, kind }
    }
}

/// Reads an entry whose own fields `own` reads.
fn entry(
    input: Input<'_>,
    model: &str,
    shape: EntryShape,
    own: impl FnOnce(&mut Fields<'_>) -> Option<EntryKind>,
) -> Checked<Entry> {
    let mut fields = input.fields(model)?;
    let common = EntryFields::read(&mut fields, shape);
    let kind = own(&mut fields);
    fields.build(|| Some(common?.entry(kind?)))
}

fn dir(input: Input<'_>) -> Checked<Entry> {
    entry(input, "Dir", EntryShape::Folder, |fields| {
        let children = fields.or_with("children", IndexMap::new(), entries)?;
        Some(EntryKind::Dir { children })
    })
}

fn file(input: Input<'_>) -> Checked<Entry> {
    entry(input, "File", EntryShape::File, |fields| {
        let content = fields.required_with("content", |input| {
            let text = input.value().as_str();
            let bytes = text.map(|text| text.as_bytes().to_vec());
            bytes.ok_or_else(|| input.field_error("bytes_type", "Input should be a valid bytes"))
        })?;
        Some(EntryKind::File { content })
    })
}

fn local_file(input: Input<'_>) -> Checked<Entry> {
    entry(input, "LocalFile", EntryShape::File, |fields| {
        Some(EntryKind::LocalFile { src: fields.required("src")? })
    })
}

fn local_dir(input: Input<'_>) -> Checked<Entry> {
    entry(input, "LocalDir", EntryShape::Folder, |fields| {
        Some(EntryKind::LocalDir { src: fields.or_default("src")? })
    })
}

fn git_repo(input: Input<'_>) -> Checked<Entry> {
    entry(input, "GitRepo", EntryShape::Folder, |fields| {
        GitRepo::read(fields).map(EntryKind::GitRepo)
    })
}
