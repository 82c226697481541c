//! Entries of a manifest as they come from Python: tuples, for bytes that are no text have no JSON.

use bastide::Result;
use bastide::model::entry::GitRepo;
use bastide::model::permissions::Permissions;
use bastide::model::users::{EntryGroup, Group};
use bastide::model::{Entry, EntryKind, Manifest, PosixPath};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// One entry: where, of what kind, with what, its permission bits, its group.
#[derive(FromPyObject)]
pub(crate) struct Item(String, String, Option<Payload>, u32, Option<String>);

/// What an entry is made of.
#[derive(FromPyObject)]
pub(crate) enum Payload {
    /// The content of a file.
    Content(PyBackedBytes),
    /// The path of a source on the host.
    Source(String),
    /// Host, repository, reference and folder of a repository.
    Repository(String, String, String, Option<String>),
    /// What is in a folder.
    Children(Vec<Item>),
}

/// The manifest that has these entries.
pub(crate) fn manifest(items: Vec<Item>) -> Result<Manifest> {
    let mut manifest = Manifest::default();
    for item in items {
        let (key, entry) = entry(item)?;
        manifest.entries.insert(key, entry);
    }
    Ok(manifest)
}

fn entry(item: Item) -> Result<(String, Entry)> {
    let Item(path, kind, payload, mode, group) = item;
    let kind = match (kind.as_str(), payload) {
        ("dir", Some(Payload::Children(children))) => {
            EntryKind::Dir { children: children.into_iter().map(entry).collect::<Result<_>>()? }
        }
        ("file", Some(Payload::Content(content))) => EntryKind::File { content: content.to_vec() },
        ("local_file", Some(Payload::Source(src))) => {
            EntryKind::LocalFile { src: PosixPath::new(&src) }
        }
        ("local_dir", Some(Payload::Source(src))) => {
            EntryKind::LocalDir { src: Some(PosixPath::new(&src)) }
        }
        ("local_dir", None) => EntryKind::LocalDir { src: None },
        ("git_repo", Some(Payload::Repository(host, repo, reference, subpath))) => {
            let mut from = GitRepo::new(&repo, &reference);
            from.host = host;
            from.subpath = subpath;
            EntryKind::GitRepo(from)
        }
        (kind, _) => {
            let message = format!("cannot lay out {path}: entries of type `{kind}`");
            return Err(bastide::compat::raise::value_error(message));
        }
    };
    let mut made = Entry::new(kind);
    let bits = |shift: u32| i128::from((mode >> shift) & 0o7);
    made.permissions = Permissions {
        owner: bits(6),
        group: bits(3),
        other: bits(0),
        directory: made.permissions.directory,
    };
    made.group = group.map(|name| EntryGroup::Group(Group { name, users: Vec::new() }));
    Ok((path, made))
}
