//! File trees of the recorded cases: making them from nodes and listing them back.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use bastide_model::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::case::{decode_base64, encode_base64, malformed};

/// Contents longer than this are listed by size and digest.
const LISTED_WHOLE: usize = 4096;

/// Whether a listing shows the modes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modes {
    /// Files and folders carry their mode.
    All,
    /// Files carry their mode.
    Shown,
    /// They do not.
    Hidden,
}

/// Makes `nodes` in order under `base`, with any missing parents.
pub fn create(base: &Path, nodes: &[Value]) -> Result<()> {
    make_dir_all(base).map_err(|error| os_error(base, error))?;
    for node in nodes {
        let path = base.join(text(node, "path")?);
        create_node(base, &path, node)?;
    }
    // Last, because making a node changes the time of its folder.
    for node in nodes {
        if let Some(seconds) = node["mtime"].as_i64() {
            let path = base.join(text(node, "path")?);
            set_mtime(&path, seconds).map_err(|error| os_error(&path, error))?;
        }
    }
    Ok(())
}

fn create_node(base: &Path, path: &Path, node: &Value) -> Result<()> {
    let failed = |error| os_error(path, error);
    if let Some(parent) = path.parent() {
        make_dir_all(parent).map_err(failed)?;
    }
    let mode = |default: u32| match node["mode"].as_str() {
        Some(octal) => u32::from_str_radix(octal.trim_start_matches("0o"), 8)
            .map_err(|_| malformed("mode", "an octal mode")),
        None => Ok(default),
    };
    let default = match text(node, "type")? {
        "dir" => {
            make_dir_all(path).map_err(failed)?;
            0o755
        }
        "file" => {
            fs::write(path, content(node)?).map_err(failed)?;
            0o644
        }
        "fifo" => {
            let made = mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0);
            made.map_err(|error| failed(error.into()))?;
            0o644
        }
        "symlink" => return symlink(text(node, "target")?, path).map_err(failed),
        "hardlink" => return fs::hard_link(base.join(text(node, "target")?), path).map_err(failed),
        other => return Err(malformed("type", &format!("a known node, but `{other}`"))),
    };
    fs::set_permissions(path, Permissions::from_mode(mode(default)?)).map_err(failed)
}

/// The content a node describes.
pub fn content(node: &Value) -> Result<Vec<u8>> {
    if let Some(encoded) = node["content_b64"].as_str() {
        return decode_base64(encoded);
    }
    if let Some(repeat) = node.get("repeat") {
        let count = repeat["count"].as_u64().and_then(|count| usize::try_from(count).ok());
        let count = count.ok_or_else(|| malformed("repeat", "a count"))?;
        return Ok(text(repeat, "text")?.repeat(count).into_bytes());
    }
    Ok(node["content"].as_str().unwrap_or_default().as_bytes().to_vec())
}

/// Lists everything below `base`, depth first and by name; a missing `base` lists as empty.
pub fn list(base: &Path, modes: Modes) -> Result<Vec<Value>> {
    let mut nodes = Vec::new();
    if base.is_dir() {
        list_into(base, "", modes, &mut nodes)?;
    }
    Ok(nodes)
}

fn list_into(dir: &Path, prefix: &str, modes: Modes, nodes: &mut Vec<Value>) -> Result<()> {
    let failed = |error| os_error(dir, error);
    let entries: io::Result<Vec<_>> = fs::read_dir(dir).map_err(failed)?.collect();
    let mut names: Vec<_> = entries.map_err(failed)?.iter().map(fs::DirEntry::file_name).collect();
    names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
    for name in names {
        let path = dir.join(&name);
        let shown = format!("{prefix}{}", name.to_string_lossy());
        nodes.push(node(&path, &shown, modes).map_err(|error| os_error(&path, error))?);
        if path.is_dir() && !path.is_symlink() {
            list_into(&path, &format!("{shown}/"), modes, nodes)?;
        }
    }
    Ok(())
}

fn node(path: &Path, shown: &str, modes: Modes) -> io::Result<Value> {
    let metadata = fs::symlink_metadata(path)?;
    let mut node = Map::new();
    node.insert("path".to_owned(), shown.into());
    let mut put = |key: &str, value: Value| node.insert(key.to_owned(), value);
    let shown_mode = || format!("{:04o}", metadata.permissions().mode() & 0o7777).into();
    if metadata.is_symlink() {
        put("type", "symlink".into());
        put("target", fs::read_link(path)?.to_string_lossy().into());
    } else if metadata.is_dir() {
        put("type", "dir".into());
        if modes == Modes::All {
            put("mode", shown_mode());
        }
    } else if metadata.is_file() {
        put("type", "file".into());
        if modes != Modes::Hidden {
            put("mode", shown_mode());
        }
        node.extend(content_fields(&fs::read(path)?));
    } else {
        put("type", "other".into());
    }
    Ok(Value::Object(node))
}

/// How a listing shows a file's content.
pub fn content_fields(content: &[u8]) -> Map<String, Value> {
    let fields = match std::str::from_utf8(content) {
        _ if content.len() > LISTED_WHOLE => {
            json!({"size": content.len(), "sha256": sha256(content)})
        }
        Ok(text) => json!({"content": text}),
        Err(_) => json!({"content_b64": encode_base64(content)}),
    };
    match fields {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}

/// Makes a folder and its parents as the cases expect them, whatever the umask.
fn make_dir_all(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_dir_all(parent)?;
    }
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn set_mtime(path: &Path, seconds: i64) -> io::Result<()> {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn text<'a>(node: &'a Value, key: &str) -> Result<&'a str> {
    node[key].as_str().ok_or_else(|| malformed(key, "text"))
}

fn os_error(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: {error}", path.display())).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_what_it_made() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = json!([
            {"path": "b/file", "type": "file", "content": "hi", "mode": "0600", "mtime": 1},
            {"path": "a", "type": "symlink", "target": "b/file"},
            {"path": "c", "type": "fifo"},
            {"path": "d", "type": "file", "repeat": {"text": "xy", "count": 4096}},
            {"path": "e", "type": "hardlink", "target": "b/file"},
            {"path": "f", "type": "file", "content_b64": "/w=="},
        ]);
        create(folder.path(), nodes.as_array().unwrap()).unwrap();
        let listed = list(folder.path(), Modes::Shown).unwrap();
        let digest = &listed[4]["sha256"];
        let expected = json!([
            {"path": "a", "type": "symlink", "target": "b/file"},
            {"path": "b", "type": "dir"},
            {"path": "b/file", "type": "file", "mode": "0600", "content": "hi"},
            {"path": "c", "type": "other"},
            {"path": "d", "type": "file", "mode": "0644", "size": 8192, "sha256": digest},
            {"path": "e", "type": "file", "mode": "0600", "content": "hi"},
            {"path": "f", "type": "file", "mode": "0644", "content_b64": "/w=="},
        ]);
        assert_eq!(Value::Array(listed), expected);
    }
}
