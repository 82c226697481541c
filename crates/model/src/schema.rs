//! The manifest as a JSON Schema, for editors.
//!
//! The schema describes what a person should write: the types themselves rather than everything the
//! reference would take for them, and no keys that nobody reads. Point an editor at it with
//! `# yaml-language-server: $schema=...` or its settings for JSON and TOML.

mod build;
mod mounts;

use build::{Fields, flag, integer, list, map, nothing_or, reference, text, word};
use serde_json::{Value, json};

use crate::manifest::{DEFAULT_REMOTE_MOUNT_COMMANDS, DEFAULT_ROOT};

/// The schema of a manifest of built-in types.
///
/// ```
/// let schema = bastide_model::schema::manifest();
/// assert_eq!(schema["properties"]["root"]["default"], "/workspace");
/// ```
#[must_use]
pub fn manifest() -> Value {
    let mut schema = Fields::new("The workspace that somebody wants.")
        .optional("version", json!({"const": 1}), 1, "The version of this format.")
        .optional("root", text(), DEFAULT_ROOT, "Where the workspace is inside the sandbox.")
        .optional(
            "entries",
            nothing_or(map(reference("entry"))),
            json!({}),
            "What is in the workspace, by path relative to its root.",
        )
        .optional(
            "environment",
            reference("environment"),
            json!({"value": {}}),
            "The environment of every command.",
        )
        .optional("users", list(reference("user")), json!([]), "Users to make.")
        .optional("groups", list(reference("group")), json!([]), "Groups to make.")
        .optional(
            "extra_path_grants",
            list(reference("path_grant")),
            json!([]),
            "Access to paths outside the workspace.",
        )
        .optional(
            "remote_mount_command_allowlist",
            list(text()),
            json!(DEFAULT_REMOTE_MOUNT_COMMANDS),
            "The commands that models are told to use on remote mounts.",
        )
        .build();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Bastide manifest".into();
    schema["$defs"] = definitions().into_iter().collect();
    schema
}

fn definitions() -> Vec<(&'static str, Value)> {
    let mut definitions = vec![
        ("environment", environment()),
        ("env_value", env_value()),
        ("env_entry", env_entry()),
        ("user", Fields::new("A user.").required("name", text(), "The login name.").build()),
        (
            "group",
            Fields::new("A group.")
                .required("name", text(), "The group's name.")
                .required("users", list(reference("user")), "Who is in it.")
                .build(),
        ),
        ("path_grant", path_grant()),
        ("permissions", permissions()),
        ("entry", one_of_types(&ENTRY_TYPES)),
        ("dir", dir()),
        ("file", file()),
        ("local_file", local_file()),
        ("local_dir", local_dir()),
        ("git_repo", git_repo()),
    ];
    definitions.extend(mounts::definitions());
    definitions
}

/// The words of entries, which are also the names of their definitions.
const ENTRY_TYPES: [&str; 11] = [
    "dir",
    "file",
    "local_file",
    "local_dir",
    "git_repo",
    "azure_blob_mount",
    "box_mount",
    "gcs_mount",
    "r2_mount",
    "s3_mount",
    "s3_files_mount",
];

/// A choice by the word under `type`. Conditions instead of alternatives: an editor then complains
/// about the one that was meant, not about all of them.
fn one_of_types(words: &[&str]) -> Value {
    let branch = |word: &&str| {
        json!({
            "if": {"properties": {"type": {"const": word}}, "required": ["type"]},
            "then": reference(word),
        })
    };
    json!({
        "type": "object",
        "properties": {"type": {"enum": words}},
        "required": ["type"],
        "allOf": words.iter().map(branch).collect::<Vec<_>>(),
    })
}

fn environment() -> Value {
    let variable = json!({
        "anyOf": [text(), reference("env_value"), reference("env_entry")],
    });
    Fields::new("The environment of every command.")
        .optional("value", map(variable), json!({}), "The variables, by name.")
        .build()
}

fn env_value() -> Value {
    Fields::new("A value with its type.")
        .optional("type", word("str"), "str", "The type of the value.")
        .required("value", text(), "The text.")
        .build()
}

fn env_entry() -> Value {
    Fields::new("A value with something said about it.")
        .optional("description", nothing_or(text()), Value::Null, "What it is for.")
        .optional("ephemeral", flag(), false, "Whether it is meant for this session only.")
        .required("value", reference("env_value"), "The value.")
        .build()
}

fn path_grant() -> Value {
    Fields::new("Access to one path outside the workspace.")
        .required("path", text(), "The path inside the sandbox, absolute and not the root.")
        .optional("read_only", flag(), false, "Whether only reading is granted.")
        .optional("description", nothing_or(text()), Value::Null, "What it is for.")
        .optional(
            "host_path",
            nothing_or(text()),
            Value::Null,
            "The path on the host behind it, where that is another one.",
        )
        .build()
}

fn permissions() -> Value {
    Fields::new("Who may do what: 4 reads, 2 writes, 1 executes.")
        .optional("owner", integer(), 7, "What the owner may do.")
        .optional("group", integer(), 0, "What the group may do.")
        .optional("other", integer(), 0, "What everybody else may do.")
        .optional("directory", flag(), false, "Whether this is a folder.")
        .build()
}

/// The fields of every entry.
fn entry(kind: &str, about: &str, is_dir: bool, ephemeral: bool) -> Fields {
    let group = json!({"anyOf": [reference("group"), reference("user"), {"type": "null"}]});
    let usual = json!({"owner": 7, "group": 5, "other": 5, "directory": is_dir});
    Fields::new(about)
        .required("type", word(kind), "The sort of entry.")
        .optional("description", nothing_or(text()), Value::Null, "What it is for.")
        .optional(
            "ephemeral",
            flag(),
            ephemeral,
            "Whether it is made anew at every start and left out of snapshots.",
        )
        .optional("group", group, Value::Null, "The group it belongs to.")
        .optional("is_dir", flag(), is_dir, "Whether it is meant to be a folder.")
        .optional("permissions", reference("permissions"), usual, "Who may do what with it.")
}

fn dir() -> Value {
    entry("dir", "A folder.", true, false)
        .optional(
            "children",
            nothing_or(map(reference("entry"))),
            json!({}),
            "What is in it, by path relative to it.",
        )
        .build()
}

fn file() -> Value {
    entry("file", "A file.", false, false).required("content", text(), "What is in it.").build()
}

fn local_file() -> Value {
    entry("local_file", "A file copied from the host.", false, false)
        .required("src", text(), "The file on the host.")
        .build()
}

fn local_dir() -> Value {
    entry("local_dir", "A folder copied from the host.", true, false)
        .optional(
            "src",
            nothing_or(text()),
            Value::Null,
            "The folder on the host; nothing makes an empty one.",
        )
        .build()
}

fn git_repo() -> Value {
    entry("git_repo", "A git repository.", true, false)
        .optional("host", text(), "github.com", "The host.")
        .required("repo", text(), "The repository, such as `owner/name`.")
        .required("ref", text(), "A branch, a tag or a commit.")
        .optional("subpath", nothing_or(text()), Value::Null, "Only this folder of it.")
        .build()
}
