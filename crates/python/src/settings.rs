//! What a new session is to be, as Python says it: one JSON object.

use std::num::NonZero;
use std::path::PathBuf;

use bastide::compat::raise;
use bastide::egress::{ShorthandError, with_shorthand};
use bastide::model::document::Format;
use bastide::model::error::CLASSES;
use bastide::model::policy::Policy;
use bastide::model::{Manifest, Registry, lax};
use bastide::{
    CreateOptions, GitFetch, GitOptions, Isolation, JournalOptions, LeaseOptions, NetworkAccess,
    Result, SessionId,
};
use pyo3::prelude::*;
use serde_json::Value;

use crate::command::seconds;

/// A session that is not made yet.
pub(crate) struct Settings {
    pub(crate) manifest: Manifest,
    pub(crate) options: CreateOptions,
    /// Whether its workspace is laid out at once.
    pub(crate) starts: bool,
}

impl Settings {
    /// Reads what Python says.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| raise::value_error(format!("settings of a session: {error}")))?;
        let manifest = match (&value["manifest_text"], value["manifest_name"].as_str()) {
            (Value::String(text), Some(name)) => manifest_of(name, text)?,
            _ => lax::read(&value["manifest"])?,
        };
        let mut options = CreateOptions::default();
        options.network = word(&value, "network")?.unwrap_or(NetworkAccess::None);
        options.policy = policy(&value)?;
        options.isolation = word(&value, "isolation")?.unwrap_or(Isolation::Auto);
        options.nested_sandbox = word(&value, "nested_sandbox")?.unwrap_or(false);
        options.limits.memory = limit(&value, "memory")?;
        options.limits.pids = limit(&value, "pids")?;
        options.limits.cpu_millis = limit(&value, "cpu_millis")?;
        options.limits.disk = limit(&value, "disk")?;
        options.env = pairs(&value, "env")?;
        options.tied_to_owner = word(&value, "tied")?.unwrap_or(true);
        options.id = value["id"].as_str().map(str::parse::<SessionId>).transpose()?;
        let ports: Option<Vec<NonZero<u16>>> = word(&value, "exposed_ports")?;
        options.exposed_ports = ports.into_iter().flatten().map(NonZero::get).collect();
        options.base_dir = value["base_dir"].as_str().map(PathBuf::from);
        options.git = git(&value);
        options.unix_local = word(&value, "unix_local")?.unwrap_or(false);
        let journal: bool = word(&value, "journal")?.unwrap_or(false);
        options.journal = journal.then(|| JournalOptions::default().commands());
        options.lease = lease(&value)?;
        Ok(Self { manifest, options, starts: word(&value, "starts")?.unwrap_or(false) })
    }
}

/// A manifest as JSON.
pub(crate) fn manifest(text: &str) -> Result<Manifest> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| raise::value_error(format!("manifest of a session: {error}")))?;
    lax::read(&value)
}

fn manifest_of(name: &str, text: &str) -> Result<Manifest> {
    let Some(format) = Format::of_file(name) else {
        let message = format!("cannot tell what format the manifest {name} has");
        return Err(
            raise::value_error(message).with_hint("give it the extension .json, .yaml or .toml")
        );
    };
    Ok(Manifest::load(name, text, format, Registry::builtin())?.value)
}

/// The policy of its network: a document or an object, and what is added to it in a few words.
fn policy(value: &Value) -> Result<Option<Policy>> {
    let allow: Vec<String> = word(value, "allow")?.unwrap_or_default();
    let secrets = pairs(value, "secrets")?;
    let policy = match (&value["policy_text"], value["policy_name"].as_str(), &value["policy"]) {
        (Value::String(text), Some(name), _) => {
            Policy::parse(name, text, Format::of_file(name).unwrap_or(Format::Yaml))?
        }
        (_, _, Value::Null) if allow.is_empty() && secrets.is_empty() => return Ok(None),
        (_, _, Value::Null) => Policy::default(),
        (_, _, said) => Policy::from_value(said)?,
    };
    let refused = |error: ShorthandError| match error {
        ShorthandError::Allow { text, why } => raise::value_error(format!("allow {text:?}: {why}")),
        ShorthandError::Secret { name, why } => raise::value_error(format!(
            "secrets {name:?}: {why}"
        ))
        .with_hint("write SOURCE@HOST, with env:VARIABLE, file:PATH or cmd:COMMAND for SOURCE"),
        ShorthandError::Policy(error) => error,
        other => raise::value_error(format!("policy: {other:?}")),
    };
    let secrets: Vec<_> =
        secrets.iter().map(|(name, source)| (name.as_str(), source.as_str())).collect();
    with_shorthand(policy, &allow, &secrets).map(Some).map_err(refused)
}

/// When the session ends by itself: after so many seconds, or so many in which nothing happens.
fn lease(value: &Value) -> Result<Option<LeaseOptions>> {
    let (ttl, idle) = (word::<f64>(value, "ttl")?, word::<f64>(value, "idle")?);
    if ttl.is_none() && idle.is_none() {
        return Ok(None);
    }
    let mut lease = LeaseOptions::default().then(word(value, "then")?.unwrap_or_default());
    lease.ttl = ttl.map(seconds);
    lease.idle = idle.map(seconds);
    Ok(Some(lease))
}

fn git(value: &Value) -> GitOptions {
    let fetch = match value["git_fetch"].as_str() {
        Some("inside") => GitFetch::Inside,
        Some("host") => GitFetch::Host,
        _ => GitFetch::Auto,
    };
    let options = GitOptions::fetched(fetch);
    match value["git_ca_file"].as_str() {
        Some(path) => options.ca_file(path),
        None => options,
    }
}

fn word<T: serde::de::DeserializeOwned>(value: &Value, key: &str) -> Result<Option<T>> {
    match &value[key] {
        Value::Null => Ok(None),
        said => serde_json::from_value(said.clone())
            .map(Some)
            .map_err(|_| raise::value_error(format!("{key} cannot be {said}"))),
    }
}

/// A limit: nothing that is no limit passes for none.
fn limit(value: &Value, key: &str) -> Result<Option<u64>> {
    Ok(word::<NonZero<u64>>(value, key)?.map(NonZero::get))
}

/// Text by name.
fn pairs(value: &Value, key: &str) -> Result<Vec<(String, String)>> {
    let all = value[key].as_object().into_iter().flatten();
    all.map(|(name, value)| match value.as_str() {
        Some(value) => Ok((name.clone(), value.to_owned())),
        // What it is may be a secret.
        None => Err(raise::value_error(format!("{key}: the value of {name} has to be text"))),
    })
    .collect()
}

/// A row of the table of error classes: name, next wider class, code, operation, retryability.
type ClassRow =
    (&'static str, Option<&'static str>, Option<&'static str>, Option<&'static str>, Option<bool>);

/// The reference's classes of errors as the core knows them.
#[pyfunction]
pub(crate) fn error_classes() -> Vec<ClassRow> {
    let row = |row: &bastide::model::error::ErrorClassRow| {
        (row.name, row.base.map(|base| base.name()), row.code, row.op, row.retryable)
    };
    CLASSES.iter().map(row).collect()
}

/// Has the programs this library does not have in it read from the one that `find` leads to: it gives the paths to look
/// at, and is asked when one has to be unpacked.
#[pyfunction]
pub(crate) fn set_carrier(find: Py<PyAny>) {
    bastide_guest_bin::set_carrier(move || {
        // An interpreter that ends tells nothing any more.
        Python::try_attach(|py| find.call0(py).ok()?.extract::<Vec<PathBuf>>(py).ok())
            .flatten()
            .unwrap_or_default()
    });
}

/// A keyed BLAKE3, in hexadecimal digits.
#[pyfunction]
pub(crate) fn keyed_hash(key: [u8; 32], data: &[u8]) -> String {
    blake3::keyed_hash(&key, data).to_hex().to_string()
}
