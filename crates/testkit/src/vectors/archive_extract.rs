//! Area `archive_extract`: archives that a user puts into a workspace.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::{Path, PathBuf};

use bastide::ExtractOptions;
use bastide_archive::zip::{ZipMember, ZipReader, check_zip};
use bastide_archive::{
    ArchiveLimits, ArchiveScheme, Extraction, check_tar_for_extraction, copy_input,
};
use bastide_model::PosixPath;
use bastide_model::Result;
use bastide_model::error::raise;
use bastide_model::paths::{PathUse, WorkspacePathPolicy};
use serde_json::{Value, json};

use super::case::malformed;
use super::compare::error_object;
use super::paths::Disk;
use super::session::in_session;
use super::tree::{self, Modes};
use super::unpack::carry_out;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("extract_archive", |case| {
        prepare(case)?;
        extract(case)?;
        left_behind(case)
    }),
    ("extract_archive_outcome", |case| {
        prepare(case)?;
        let result = extract(case).map_or_else(|error| error_object(&error), |()| json!("ok"));
        let mut outcome = left_behind(case)?;
        outcome["result"] = result;
        Ok(outcome)
    }),
    ("validate_tar_for_extraction", |case| {
        let (limits, tar) = (limits(case)?, case.bytes("archive_b64")?);
        check_tar_for_extraction(tar.as_slice(), limits).map(|_| Value::Null)
    }),
    ("validate_zipfile", |case| {
        let limits = limits(case)?;
        let zip = ZipReader::open(Cursor::new(case.bytes("archive_b64")?))?;
        check_zip(zip.members(), limits).map(|()| Value::Null)
    }),
    ("safe_zip_member_rel_path", |case| {
        let mode = u32::from_str_radix(case.text("unix_mode")?, 8);
        let mode = mode.map_err(|_| malformed("unix_mode", "an octal mode"))?;
        let path = ZipMember::new(case.text("filename")?, mode).safe_path()?;
        Ok(json!(path.map(|path| path.to_string())))
    }),
    ("archive_limits", |case| {
        let limits = ArchiveLimits::from_arguments(case.object("limits")?)?;
        Ok(json!({
            "max_input_bytes": limits.max_input_bytes,
            "max_extracted_bytes": limits.max_extracted_bytes,
            "max_members": limits.max_members,
        }))
    }),
];

fn limits(case: &Case<'_>) -> Result<ArchiveLimits> {
    match case.get("archive_limits") {
        Value::Null => Ok(ArchiveLimits::NONE),
        _ => ArchiveLimits::from_arguments(case.object("archive_limits")?),
    }
}

fn workspace(case: &Case<'_>) -> Result<PathBuf> {
    Ok(case.scratch.path()?.join("ws"))
}

fn prepare(case: &Case<'_>) -> Result<()> {
    tree::create(&workspace(case)?, case.list("tree")?)
}

/// Through a session where there is a place for one, else by the plan alone.
fn extract(case: &Case<'_>) -> Result<()> {
    match case.backend {
        Some(_) => extract_in_session(case),
        None => extract_by_plan(case),
    }
}

fn extract_in_session(case: &Case<'_>) -> Result<()> {
    let mut options = ExtractOptions::default();
    if let Some(scheme) = case.optional_text("compression_scheme")? {
        options = options.scheme(scheme);
    }
    if case.get("archive_limits") != &Value::Null {
        options = options.limits(limits(case)?);
    }
    let (path, archive) = (case.text("path")?, case.bytes("archive_b64")?);
    in_session(case, Vec::new(), async |session| {
        session.files().extract(path, archive, options).await
    })
}

fn extract_by_plan(case: &Case<'_>) -> Result<()> {
    let limits = limits(case)?;
    let path = PosixPath::new(case.text("path")?);
    let scheme = ArchiveScheme::of(path.as_str(), case.optional_text("compression_scheme")?)?;
    let path = archive_path(case)?;
    let shown = path.to_string_lossy();
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut spooled = Vec::new();
    copy_input(&mut case.bytes("archive_b64")?.as_slice(), &mut spooled, &limits, &shown)?;
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, &spooled))
        .map_err(|error| raise::workspace_archive_write(&shown).with_source(error))?;
    let spooled = Cursor::new(spooled);
    let mut plan = Extraction::open(spooled, scheme, limits, &shown, &folder.to_string_lossy())?;
    while let Some(mut step) = plan.next_step()? {
        carry_out(&folder, &mut step).map_err(|obstacle| step.refuse(obstacle))?;
    }
    Ok(())
}

/// Where the archive goes.
fn archive_path(case: &Case<'_>) -> Result<PathBuf> {
    let workspace = workspace(case)?;
    let policy = WorkspacePathPolicy::new(&*workspace.to_string_lossy(), Vec::new())?;
    let path = PosixPath::new(case.text("path")?);
    let resolved = policy.normalize_path_resolving(&path, PathUse::Write, &Disk)?;
    Ok(PathBuf::from(resolved.as_str()))
}

/// What there is besides the archive, and whether the archive is there as it was given.
fn left_behind(case: &Case<'_>) -> Result<Value> {
    let given = case.bytes("archive_b64")?;
    let archive = archive_path(case).ok();
    let written = archive.as_ref().and_then(|path| File::open(path).ok().map(|_| fs::read(path)));
    let is_written = written.is_some_and(|content| content.is_ok_and(|content| content == given));
    let relative = archive.as_ref().and_then(|path| path.strip_prefix(workspace(case).ok()?).ok());
    let mut tree = tree::list(&workspace(case)?, Modes::Hidden)?;
    tree.retain(|node| node["path"].as_str().map(Path::new) != relative);
    Ok(json!({"tree": tree, "archive_written": is_written}))
}
