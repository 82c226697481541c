//! Taking credentials out of manifests on their way to and from storage.
//!
//! What was stored is not trusted: somebody may have written credentials into it, or asked for a
//! mount that nobody knows. So this works on JSON, before anything of it is read.

use std::collections::BTreeSet;
use std::ops::Bound;

use serde_json::{Map, Value, json};

use super::authority::has_line_break;
use super::inline_url::url_holds_authority;
use super::materialized::absolute_manifest_path;
use super::rclone_args::{RcloneArgs, analyze_rclone_args, is_safe_remote_name};
use super::rules::{
    COMMON_FIELDS, SourceRules, StrategyRules, capability_of, option_fields, pattern_fields,
    source_rules, strategy_rules,
};
use crate::error::raise;
use crate::lax::Dump as _;
use crate::manifest::{DEFAULT_ROOT, MAX_KEY, Manifest};
use crate::posix_path::PosixPath;
use crate::registry::Registry;
use crate::{Error, ErrorClass, ErrorKind, Result};

/// What is left of something after the credentials of its mounts were taken out.
#[derive(Debug, Clone, PartialEq)]
pub struct Sanitized<T> {
    /// What is left.
    pub value: T,
    /// Whether anything was taken out, or must be granted again by a program.
    pub redacted: bool,
}

/// Deeper manifests are refused; see the same limit of [reading](crate::lax).
const MAX_DEPTH: usize = 256;

impl Manifest {
    /// The manifest without the credentials of its mounts.
    ///
    /// # Errors
    ///
    /// `MountConfigError` for mounts of the program's own types and manifests that cannot be written
    /// as JSON; `ValueError` if a credential file is made by the manifest in a way that cannot be
    /// emptied.
    pub fn sanitized(&self, registry: &Registry) -> Result<Sanitized<Self>> {
        self.check_mount_types()?;
        let raw = self.dump().map_err(|error| match self.holds_mount_authority() {
            true => cannot_be_written(),
            false => error,
        })?;
        let Sanitized { value, redacted } = sanitize_manifest(raw, registry)?;
        let value = crate::lax::Context::with(registry).read(&value)?;
        Ok(Sanitized { value, redacted })
    }
}

/// What is said of a state whose mounts cannot be written without their credentials.
pub(crate) fn cannot_be_written() -> Error {
    let message = "sandbox session state containing mount authority could not be serialized";
    raise::mount_config(message).with_protection()
}

/// Takes the credentials of mounts out of a manifest that was or will be stored. What is no object
/// is left alone.
///
/// ```
/// use bastide_model::Registry;
/// use bastide_model::mount::sanitize_manifest;
/// use serde_json::json;
///
/// let manifest = json!({"entries": {"data": {
///     "type": "s3_mount",
///     "bucket": "b",
///     "access_key_id": "AKIA",
///     "mount_strategy": {"type": "docker_volume", "driver": "rclone"},
/// }}});
/// let sanitized = sanitize_manifest(manifest, Registry::builtin())?;
/// assert!(sanitized.redacted);
/// assert_eq!(sanitized.value["entries"]["data"]["access_key_id"], json!(null));
/// # Ok::<(), bastide_model::Error>(())
/// ```
///
/// # Errors
///
/// `ValueError` for anything that is not known to be harmless then. No input is in its words.
pub fn sanitize_manifest(mut manifest: Value, registry: &Registry) -> Result<Sanitized<Value>> {
    let Some(map) = manifest.as_object_mut() else {
        return Ok(Sanitized { value: manifest, redacted: false });
    };
    let root = map.get("root").and_then(Value::as_str).unwrap_or(DEFAULT_ROOT).to_owned();
    let mut redacted = false;
    if let Some(entries) = map.get_mut("entries") {
        let mut pass =
            SanitizePass { registry, root: &root, redacted: false, files: BTreeSet::new() };
        pass.check_shape(entries, 0)?;
        pass.mounts(entries)?;
        pass.credential_files(entries, &PosixPath::default())?;
        redacted = pass.redacted;
    }
    Ok(Sanitized { value: manifest, redacted })
}

/// A stored manifest that is not trusted. Its message is ours and holds nothing of the input.
fn refused(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
        .with_class(ErrorClass::InvalidRawMountManifestError)
        .with_protection()
}

/// One pass over the entries of a manifest.
struct SanitizePass<'a> {
    registry: &'a Registry,
    root: &'a str,
    redacted: bool,
    /// Credential files that mounts name, as absolute paths. Sorted, so that what is at or below a
    /// path is found without asking all of them.
    files: BTreeSet<String>,
}

/// What an entry is to us.
enum EntryClass {
    /// It may have entries in it.
    Folder,
    Mount(&'static SourceRules),
    /// A mount of the program's own type, or one that nobody knows.
    ForeignMount {
        is_known: bool,
    },
    Other,
}

impl SanitizePass<'_> {
    fn sort(&self, entry: &Map<String, Value>) -> EntryClass {
        let tag = entry.get("type").and_then(Value::as_str).unwrap_or_default();
        if let Some(rules) = source_rules(tag) {
            return EntryClass::Mount(rules);
        }
        let is_known = self.registry.has_entry(tag);
        let is_builtin = Registry::builtin().has_entry(tag);
        match entry.contains_key("mount_strategy") && !is_builtin {
            true => EntryClass::ForeignMount { is_known },
            false if tag == "dir" || !is_known => EntryClass::Folder,
            false => EntryClass::Other,
        }
    }

    /// The entries in an entry, where it can have any.
    fn children<'v>(&self, entry: &'v mut Map<String, Value>) -> Option<&'v mut Value> {
        match self.sort(entry) {
            EntryClass::Folder | EntryClass::ForeignMount { is_known: false } => {
                entry.get_mut("children")
            }
            EntryClass::Mount(_)
            | EntryClass::ForeignMount { is_known: true }
            | EntryClass::Other => None,
        }
    }

    fn check_shape(&self, entries: &mut Value, depth: usize) -> Result<()> {
        let wrong = || refused("sandbox manifest entries have an invalid shape");
        if depth > MAX_DEPTH {
            return Err(wrong());
        }
        for (name, entry) in entries.as_object_mut().ok_or_else(wrong)? {
            let entry = entry.as_object_mut().ok_or_else(wrong)?;
            if name.len() > MAX_KEY || !entry.get("type").is_some_and(Value::is_string) {
                return Err(wrong());
            }
            if let Some(children) = self.children(entry) {
                self.check_shape(children, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Sanitizes every mount, a folder before what is in it.
    fn mounts(&mut self, entries: &mut Value) -> Result<()> {
        for entry in entries.as_object_mut().into_iter().flat_map(Map::values_mut) {
            let Some(entry) = entry.as_object_mut() else { continue };
            match self.sort(entry) {
                EntryClass::Mount(rules) => self.mount(entry, rules)?,
                EntryClass::ForeignMount { is_known: true } => {
                    return Err(refused("custom mount implementations cannot be restored safely"));
                }
                EntryClass::ForeignMount { is_known: false } => {
                    return Err(refused("sandbox manifest contains an unknown mount-like entry"));
                }
                EntryClass::Folder | EntryClass::Other => {}
            }
            if let Some(children) = self.children(entry) {
                self.mounts(children)?;
            }
        }
        Ok(())
    }

    fn mount(&mut self, entry: &mut Map<String, Value>, rules: &SourceRules) -> Result<()> {
        self.keep(entry, |field| COMMON_FIELDS.contains(&field) || rules.fields.contains(&field));
        for field in rules.authority {
            let Some(value) = self.take(entry, field, Value::Null, |value| !value.is_null()) else {
                continue;
            };
            if rules.files.contains(field) {
                let wrong = "sandbox manifest credential-file path has an invalid shape";
                self.note_file(&value, wrong)?;
            }
        }
        for field in rules.urls {
            self.take(entry, field, Value::Null, value_holds_authority);
        }
        for field in rules.rclone_lines {
            self.take(entry, field, json!(""), |value| value.as_str().is_some_and(has_line_break));
        }
        if rules.mount_type == "s3_files_mount" {
            self.take(entry, "extra_options", json!({}), is_truthy);
        }
        let has_comma = |field: &&str| {
            entry.get(*field).and_then(Value::as_str).is_some_and(|v| v.contains(','))
        };
        let breaks_s3fs = rules.s3fs_options.iter().any(has_comma);
        match entry.get_mut("mount_strategy") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Object(strategy)) => self.strategy(strategy, rules, breaks_s3fs),
            Some(_) => Err(refused("sandbox manifest mount strategy has an invalid shape")),
        }
    }

    fn strategy(
        &mut self,
        strategy: &mut Map<String, Value>,
        source: &SourceRules,
        breaks_s3fs: bool,
    ) -> Result<()> {
        let tag = strategy.get("type").and_then(Value::as_str).map(str::to_owned);
        let Some(tag) = tag else {
            strategy.insert("type".to_owned(), Value::Null);
            self.redacted = true;
            self.pattern(strategy, source, "")?;
            self.keep(strategy, |field| field == "type");
            return Ok(());
        };
        if tag == "blaxel_cloud_bucket" && breaks_s3fs {
            return Err(refused(
                "sandbox manifest cloud mount configuration contains an s3fs option delimiter",
            ));
        }
        let Some(StrategyRules { fields, opaque, .. }) = strategy_rules(&tag) else {
            return Err(refused("sandbox manifest mount strategy has an unknown type"));
        };
        if self.registry.has_own_mount_strategy(&tag) {
            return Err(refused("custom mount strategies cannot be restored safely"));
        }
        self.keep(strategy, |field| field == "type" || fields.contains(&field));
        for field in *opaque {
            let empty = match strategy.get(*field) {
                Some(Value::Object(_)) => json!({}),
                _ => Value::Null,
            };
            self.take(strategy, field, empty, is_truthy);
        }
        self.pattern(strategy, source, &tag)
    }

    fn pattern(
        &mut self,
        strategy: &mut Map<String, Value>,
        source: &SourceRules,
        strategy_type: &str,
    ) -> Result<()> {
        let pattern = match strategy.get_mut("pattern") {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Object(pattern)) => pattern,
            Some(_) => {
                return Err(refused("sandbox manifest mount pattern has an invalid shape"));
            }
        };
        let tag = pattern.get("type").and_then(Value::as_str).map(str::to_owned);
        if tag.is_none() {
            pattern.insert("type".to_owned(), Value::Null);
            self.redacted = true;
        }
        // What the program finds by itself must be allowed again, although nothing is taken out.
        let capability = capability_of(source.mount_type, strategy_type, tag.as_deref());
        self.redacted |= capability.is_some_and(|capability| capability.discovers);
        let fields = match tag.as_deref().map(pattern_fields) {
            Some(Some(fields)) => fields,
            Some(None) => {
                return Err(refused("sandbox manifest mount pattern has an unknown type"));
            }
            None => &[],
        };
        self.take(pattern, "remote_name", Value::Null, |name| match name {
            Value::Null => false,
            Value::String(name) => !is_safe_remote_name(name),
            _ => true,
        });
        if let Some(file) = self.take(pattern, "config_file_path", Value::Null, |v| !v.is_null()) {
            let wrong = "sandbox manifest rclone config-file path has an invalid shape";
            self.note_file(&file, wrong)?;
        }
        self.extra_args(pattern)?;
        self.options(pattern, source, tag.as_deref());
        self.keep(pattern, |field| field == "type" || fields.contains(&field));
        Ok(())
    }

    fn extra_args(&mut self, pattern: &mut Map<String, Value>) -> Result<()> {
        let RcloneArgs { safe, config_files, nameless_config_file } = match pattern
            .get("extra_args")
        {
            Some(Value::Array(args)) => analyze_rclone_args(args.iter().map(Value::as_str)),
            None => return Ok(()),
            Some(_) => {
                RcloneArgs { safe: false, config_files: Vec::new(), nameless_config_file: false }
            }
        };
        if nameless_config_file {
            return Err(refused("sandbox manifest rclone config argument has an invalid shape"));
        }
        if !safe {
            self.take(pattern, "extra_args", json!([]), is_truthy);
            for file in config_files {
                self.files.insert(absolute_path(self.root, &file));
            }
        }
        Ok(())
    }

    fn options(
        &mut self,
        pattern: &mut Map<String, Value>,
        source: &SourceRules,
        pattern_type: Option<&str>,
    ) {
        match pattern.get_mut("options") {
            None | Some(Value::Null) => {}
            Some(Value::Object(options)) => {
                self.take(options, "endpoint_url", Value::Null, value_holds_authority);
                let is_s3_files = source.mount_type == "s3_files_mount"
                    || matches!(pattern_type, None | Some("s3files"));
                if is_s3_files {
                    self.take(options, "extra_options", json!({}), is_truthy);
                }
                let fields = option_fields(pattern_type.unwrap_or_default());
                self.keep(options, |field| fields.contains(&field));
            }
            Some(options) => {
                *options = json!({});
                self.redacted = true;
            }
        }
    }

    /// Empties the files of credentials that the manifest holds, and refuses other ways to make
    /// them.
    fn credential_files(&mut self, entries: &mut Value, folder: &PosixPath) -> Result<()> {
        for (name, entry) in entries.as_object_mut().into_iter().flatten() {
            let Some(entry) = entry.as_object_mut() else { continue };
            let path = folder.join(&PosixPath::new(name));
            let absolute = absolute_path(self.root, path.as_str());
            let tag = entry.get("type").and_then(Value::as_str).unwrap_or_default();
            if !is_only_a_folder(tag, entry) {
                let (is_file, is_named) = (tag == "file", self.files.contains(&absolute));
                if self.names_something_in(&absolute) || is_named && !is_file {
                    return Err(refused(
                        "sandbox manifest credential-file source cannot be restored safely",
                    ));
                }
                if is_named {
                    entry.insert("content".to_owned(), json!(""));
                    self.redacted = true;
                }
            }
            if let Some(children) = self.children(entry) {
                self.credential_files(children, &path)?;
            }
        }
        Ok(())
    }

    /// Whether a credential file is named that lies in `folder`.
    fn names_something_in(&self, folder: &str) -> bool {
        let inside = format!("{}/", folder.trim_end_matches('/'));
        let after = (Bound::Excluded(inside.as_str()), Bound::Unbounded);
        self.files.range::<str, _>(after).next().is_some_and(|file| file.starts_with(&inside))
    }

    /// Replaces a field whose value is `wanted` by `instead`, and hands out what it was.
    fn take(
        &mut self,
        map: &mut Map<String, Value>,
        field: &str,
        instead: Value,
        wanted: impl FnOnce(&Value) -> bool,
    ) -> Option<Value> {
        let value = map.get_mut(field).filter(|value| wanted(value))?;
        self.redacted = true;
        Some(std::mem::replace(value, instead))
    }

    /// Removes every field that is not `known`.
    fn keep(&mut self, map: &mut Map<String, Value>, known: impl Fn(&str) -> bool) {
        let before = map.len();
        map.retain(|field, _| known(field));
        self.redacted |= map.len() != before;
    }

    fn note_file(&mut self, file: &Value, wrong: &str) -> Result<()> {
        let file = file.as_str().ok_or_else(|| refused(wrong))?;
        self.files.insert(absolute_path(self.root, file));
        Ok(())
    }
}

/// A path of the manifest as an absolute one, in its only spelling.
fn absolute_path(root: &str, path: &str) -> String {
    PosixPath::new(&absolute_manifest_path(root, path)).to_string()
}

fn value_holds_authority(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(url) => url_holds_authority(url),
        _ => true,
    }
}

/// What the reference's language takes for true.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

fn is_only_a_folder(tag: &str, entry: &Map<String, Value>) -> bool {
    match tag {
        "dir" => true,
        "local_dir" => entry.get("src").is_none_or(Value::is_null),
        _ => false,
    }
}
