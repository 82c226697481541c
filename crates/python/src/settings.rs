//! What a new session is to be, as Python says it: one JSON object.

use std::path::PathBuf;

use bastide::compat::raise;
use bastide::model::document::Format;
use bastide::model::error::CLASSES;
use bastide::model::{Manifest, Registry, lax};
use bastide::{CreateOptions, GitFetch, GitOptions, Isolation, NetworkAccess, Result, SessionId};
use pyo3::prelude::*;
use serde_json::Value;

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
        options.isolation = word(&value, "isolation")?.unwrap_or(Isolation::Auto);
        options.nested_sandbox = value["nested_sandbox"].as_bool().unwrap_or(false);
        options.limits.memory = value["memory"].as_u64();
        options.limits.pids = value["pids"].as_u64();
        options.limits.cpu_millis = value["cpu_millis"].as_u64();
        options.limits.disk = value["disk"].as_u64();
        options.env = pairs(&value["env"]);
        options.tied_to_owner = value["tied"].as_bool().unwrap_or(true);
        options.id = value["id"].as_str().map(str::parse::<SessionId>).transpose()?;
        let ports = value["exposed_ports"].as_array().into_iter().flatten();
        let ports = ports.filter_map(Value::as_u64).filter_map(|port| u16::try_from(port).ok());
        options.exposed_ports = ports.collect();
        options.base_dir = value["base_dir"].as_str().map(PathBuf::from);
        options.git = git(&value);
        options.unix_local = value["unix_local"].as_bool().unwrap_or(false);
        Ok(Self { manifest, options, starts: value["starts"].as_bool().unwrap_or(false) })
    }
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

/// Text by name.
pub(crate) fn pairs(value: &Value) -> Vec<(String, String)> {
    let all = value.as_object().into_iter().flatten();
    all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
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

/// A keyed BLAKE3, in hexadecimal digits.
#[pyfunction]
pub(crate) fn keyed_hash(key: [u8; 32], data: &[u8]) -> String {
    blake3::keyed_hash(&key, data).to_hex().to_string()
}
