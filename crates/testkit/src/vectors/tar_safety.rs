//! Area `tar_safety`: which tar archives may be unpacked, and what becomes of them.

use std::fs;
use std::io::{Cursor, Read as _};
use std::path::Path;

use bastide_archive::tar::{
    LinkPolicy, LinkTree, TarKind, TarMember, TarReader, TarRules, check_workspace_tar, is_skipped,
    restored_mode, strip_prefix, target_stays_inside,
};
use bastide_archive::{EntryPath, TarRestore};
use bastide_model::Result;
use bastide_model::error::raise;
use serde_json::{Map, Value, json};

use super::case::malformed;
use super::compare::error_object;
use super::tree::{self, Modes};
use super::unpack::carry_out;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("validate_tar_bytes", validate_tar_bytes),
    ("validate_tarfile_no_symlinks", |case| {
        let rules = TarRules { links: LinkPolicy::Refused, ..TarRules::default() };
        check_workspace_tar(case.bytes("tar_b64")?.as_slice(), &rules).map(|()| Value::Null)
    }),
    ("safe_tar_member_rel_path", |case| {
        let member = member(case.get("member"))?;
        let links = match case.flag("allow_symlinks", false)? {
            true => LinkPolicy::Anywhere,
            false => LinkPolicy::Refused,
        };
        let path = member.safe_path(links)?;
        Ok(json!(path.map(|path| path.to_string())))
    }),
    ("should_skip_tar_member", |case| {
        let name = case.text("member_name")?.as_bytes();
        let skipped = paths(case, "skip_rel_paths")?;
        Ok(is_skipped(name, &skipped, case.optional_text("root_name")?).into())
    }),
    ("restored_regular_file_mode", |case| {
        let mode = u32::from_str_radix(case.text("mode")?, 8);
        let mode = mode.map_err(|_| malformed("mode", "an octal mode"))?;
        Ok(format!("{:04o}", restored_mode(mode)).into())
    }),
    ("safe_extract_tarfile", |case| {
        restore(case)?;
        Ok(json!({"tree": tree::list(&case.scratch.path()?.join("root"), Modes::Shown)?}))
    }),
    ("safe_extract_tarfile_outcome", |case| {
        let result = restore(case).map_or_else(|error| error_object(&error), |()| json!("ok"));
        Ok(json!({"result": result, "tree": tree::list(case.scratch.path()?, Modes::Shown)?}))
    }),
    ("strip_tar_member_prefix", |case| {
        let tar = case.bytes("tar_b64")?;
        let mut stripped = Vec::new();
        let root = case.optional_text("relativize_symlinks_under")?;
        strip_prefix(tar.as_slice(), &mut stripped, case.text("prefix")?, root)?;
        Ok(json!({"members": members(&stripped)?}))
    }),
    ("symlink_target_stays_under", |case| {
        let mut tree = LinkTree::default();
        for (name, node) in case.object("archive")? {
            let member = member(node)?;
            tree.insert(name.as_bytes(), member.kind, &member.link);
        }
        let (link, target) = (case.text("link_name")?, case.text("target")?);
        Ok(target_stays_inside(&tree, link.as_bytes(), target.as_bytes()).into())
    }),
];

fn validate_tar_bytes(case: &Case<'_>) -> Result<Value> {
    let tar = case.bytes("tar_b64")?;
    let external = case.flag("allow_external_symlink_targets", true)?;
    let rules = TarRules {
        links: if external { LinkPolicy::Anywhere } else { LinkPolicy::Inside },
        protected: paths(case, "reject_rel_paths")?,
        no_links: paths(case, "reject_symlink_rel_paths")?,
        skipped: paths(case, "skip_rel_paths")?,
        root_name: case.optional_text("root_name")?.map(str::to_owned),
    };
    check_workspace_tar(tar.as_slice(), &rules)?;
    let mut reader = TarReader::open(tar.as_slice())?;
    let mut members = Vec::new();
    while let Some(member) = reader.next_member()? {
        let verdict = rules.check_member(&member)?;
        members.push(json!({
            "name": String::from_utf8_lossy(&member.name),
            "rel_path": verdict.path.map(|path| path.to_string()),
            "skipped": verdict.skipped,
        }));
    }
    Ok(json!({ "members": members }))
}

fn paths(case: &Case<'_>, key: &str) -> Result<Vec<EntryPath>> {
    Ok(case.texts(key)?.into_iter().map(|path| EntryPath::new(path.as_bytes())).collect())
}

fn member(node: &Value) -> Result<TarMember> {
    let kind = match node["type"].as_str() {
        Some("file" | "oldfile" | "contiguous") => TarKind::File,
        Some("dir") => TarKind::Dir,
        Some("symlink") => TarKind::Symlink,
        Some("hardlink") => TarKind::Hardlink,
        Some("char") => TarKind::CharDevice,
        Some("block") => TarKind::BlockDevice,
        Some("fifo") => TarKind::Fifo,
        _ => return Err(malformed("type", "a kind of member")),
    };
    let mut member = TarMember::new(node["name"].as_str().unwrap_or_default().as_bytes(), kind);
    member.link = node["linkname"].as_str().unwrap_or_default().as_bytes().to_vec();
    Ok(member)
}

fn restore(case: &Case<'_>) -> Result<()> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let folder = scratch.join("root");
    make_folder(&folder)?;
    let external = case.flag("allow_external_symlink_targets", true)?;
    let links = if external { LinkPolicy::Anywhere } else { LinkPolicy::Inside };
    let tar = Cursor::new(case.bytes("tar_b64")?);
    let mut plan = TarRestore::open(tar, links, &folder.to_string_lossy())?;
    while let Some(mut step) = plan.next_step()? {
        carry_out(&folder, &mut step).map_err(|obstacle| step.refuse(obstacle))?;
    }
    Ok(())
}

fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| raise::runtime_error(error.to_string()))
}

/// The members of an archive, as the cases list them.
fn members(tar: &[u8]) -> Result<Vec<Value>> {
    let mut reader = TarReader::open(tar)?;
    let mut listed = Vec::new();
    while let Some(member) = reader.next_member()? {
        let mut fields = Map::new();
        let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
        put("name", String::from_utf8_lossy(&member.name).into());
        put("mode", format!("{:04o}", member.mode).into());
        match member.kind {
            TarKind::Dir => put("type", "dir".into()),
            TarKind::Symlink => {
                put("linkname", String::from_utf8_lossy(&member.link).into());
                put("type", "symlink".into())
            }
            _ => put("type", "file".into()),
        };
        if member.kind == TarKind::File {
            let mut content = Vec::new();
            let read = reader.content().read_to_end(&mut content);
            read.map_err(|error| raise::runtime_error(error.to_string()))?;
            fields.extend(tree::content_fields(&content));
        }
        listed.push(Value::Object(fields));
    }
    Ok(listed)
}
