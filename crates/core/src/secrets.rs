//! Secrets by reference: `env:NAME`, `file:PATH`, or `cmd:COMMAND`. No key has to stand in a manifest.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bastide_model::Secret;
use bastide_model::mount::key_fields;
use serde_json::{Map, Value};

use crate::{Error, ErrorKind, Result};

/// The longest secret; the key file of a service account has a few thousand bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// How long a command that prints a secret may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Who wrote a reference down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceAuthor {
    /// The caller, who could run any command as well.
    Caller,
    /// A manifest, which may be anybody's: it cannot have commands run.
    Manifest,
}

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretReference {
    /// In an environment variable of the caller's.
    Env(String),
    /// In a file of the host.
    File(PathBuf),
    /// In what a command of the host prints.
    Command(String),
}

impl SecretReference {
    /// Reads a reference such as `env:NAME`.
    ///
    /// ```
    /// use bastide::secrets::{ReferenceAuthor, SecretReference};
    ///
    /// let key = SecretReference::parse("env:AWS_KEY", ReferenceAuthor::Manifest)?;
    /// assert_eq!(key, SecretReference::Env("AWS_KEY".to_owned()));
    /// assert!(SecretReference::parse("cmd:pass show s3", ReferenceAuthor::Manifest).is_err());
    /// # Ok::<(), bastide::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for anything else, and for a command that a manifest names.
    pub fn parse(text: &str, author: ReferenceAuthor) -> Result<Self> {
        let wrong = |why: &str| {
            let error = Error::new(ErrorKind::InvalidInput, why.to_owned());
            Err(error.with_hint(
                "write `env:NAME` or `file:PATH`; on the command line also `cmd:COMMAND`",
            ))
        };
        match text.split_once(':') {
            Some((_, "")) => wrong("the reference to a secret names nothing"),
            Some(("env", name)) => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) => Ok(Self::File(PathBuf::from(path))),
            Some(("cmd", command)) if author == ReferenceAuthor::Caller => {
                Ok(Self::Command(command.to_owned()))
            }
            Some(("cmd", _)) => wrong("a manifest cannot have a command print a secret"),
            _ => wrong("that is no reference to a secret"),
        }
    }

    /// Gets the secret. The environment is the caller's to look into.
    ///
    /// # Errors
    ///
    /// Says what is missing, and nothing of what is there.
    pub async fn read(&self, env: &(dyn Fn(&str) -> Option<String> + Sync)) -> Result<Secret> {
        let text = match self {
            Self::Env(name) => env(name).ok_or_else(|| {
                let message =
                    format!("the environment variable {name}, which holds a secret, is not set");
                Error::new(ErrorKind::NotFound, message)
            })?,
            Self::File(path) => {
                let read = File::open(path).and_then(|file| {
                    let mut text = String::new();
                    file.take(MAX_BYTES + 1).read_to_string(&mut text).map(|_| text)
                });
                read.map_err(|error| {
                    let message = format!("cannot read the secret in {}: {error}", path.display());
                    Error::new(ErrorKind::NotFound, message)
                })?
            }
            Self::Command(command) => printed(command).await?,
        };
        // Files and commands end their last line.
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let longest = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
        if text.is_empty() || text.len() > longest {
            let what = if text.is_empty() { "is empty" } else { "is longer than any secret" };
            let message = format!("what {} refers to {what}", self.name());
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        Ok(Secret::from(text))
    }

    fn name(&self) -> String {
        match self {
            Self::Env(name) => format!("env:{name}"),
            Self::File(path) => format!("file:{}", path.display()),
            // Its words may hold a password.
            Self::Command(_) => "cmd:…".to_owned(),
        }
    }
}

async fn printed(command: &str) -> Result<String> {
    let failed = |why: String| {
        let message = format!("the command that was to print a secret {why}");
        Error::new(ErrorKind::Io, message)
    };
    let mut shell = tokio::process::Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stderr(Stdio::inherit()).kill_on_drop(true);
    let ended = tokio::time::timeout(TIMEOUT, shell.output()).await;
    let output = ended
        .map_err(|_| failed(format!("did not end within {} s", TIMEOUT.as_secs())))?
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!("failed: {}", output.status)));
    }
    String::from_utf8(output.stdout).map_err(|_| failed("printed what is no text".to_owned()))
}

/// A secret for one field of the mount at a path of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountKey {
    /// The path of the mount's entry in the manifest.
    pub path: String,
    /// The field.
    pub field: String,
    /// Where its value is.
    pub reference: SecretReference,
}

/// Puts secrets into the mounts of a manifest that was not read yet: `given` by the caller, and wherever a
/// field is an object such as `{"from": "env:NAME"}`.
///
/// # Errors
///
/// Names the mount and the field of the first secret that is missing, and never a value.
pub async fn resolve_mount_keys(
    manifest: &mut Value,
    given: &[MountKey],
    env: &(dyn Fn(&str) -> Option<String> + Sync),
) -> Result<()> {
    for key in given {
        let entries = manifest.get_mut("entries").and_then(Value::as_object_mut);
        let mount = entries.and_then(|entries| find(entries, &key.path)).ok_or_else(|| {
            let message =
                format!("there is no mount {} in the manifest to give a key to", key.path);
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        let value =
            key.reference.read(env).await.map_err(|error| about(error, &key.path, &key.field))?;
        if !keys_of(mount).contains(&key.field.as_str()) {
            return Err(about(no_key(), &key.path, &key.field));
        }
        mount.insert(key.field.clone(), Value::String(value.to_string()));
    }
    let mut waiting = Vec::new();
    if let Some(entries) = manifest.get_mut("entries").and_then(Value::as_object_mut) {
        waiting.extend(entries.iter_mut().map(|(name, entry)| (name.clone(), entry)));
    }
    while let Some((path, entry)) = waiting.pop() {
        let Some(entry) = entry.as_object_mut() else { continue };
        if entry.contains_key("mount_strategy") {
            resolve_one(&path, entry, env).await?;
        } else if let Some(children) = entry.get_mut("children").and_then(Value::as_object_mut) {
            waiting
                .extend(children.iter_mut().map(|(name, entry)| (format!("{path}/{name}"), entry)));
        }
    }
    Ok(())
}

async fn resolve_one(
    path: &str,
    mount: &mut Map<String, Value>,
    env: &(dyn Fn(&str) -> Option<String> + Sync),
) -> Result<()> {
    let keys = keys_of(mount);
    for (field, value) in mount.iter_mut() {
        let Some(reference) = value.as_object() else { continue };
        let (1, Some(from)) = (reference.len(), reference.get("from").and_then(Value::as_str))
        else {
            continue;
        };
        if !keys.contains(&field.as_str()) {
            return Err(about(no_key(), path, field));
        }
        let reference = SecretReference::parse(from, ReferenceAuthor::Manifest);
        let secret = match reference {
            Ok(reference) => reference.read(env).await,
            Err(error) => Err(error),
        };
        *value = Value::String(secret.map_err(|error| about(error, path, field))?.to_string());
    }
    Ok(())
}

/// The fields of a mount that are kept out of states, records and errors; what another field says is written down.
fn keys_of(mount: &Map<String, Value>) -> &'static [&'static str] {
    mount.get("type").and_then(Value::as_str).map_or(&[], key_fields)
}

fn no_key() -> Error {
    Error::new(ErrorKind::InvalidInput, "it is no key, and would be written down")
        .with_hint("write its value, or refer to a secret in a field that is a key")
}

/// The mount at a path, which may be one key or the keys of nested folders.
fn find<'a>(entries: &'a mut Map<String, Value>, path: &str) -> Option<&'a mut Map<String, Value>> {
    for (name, entry) in entries {
        let entry = entry.as_object_mut()?;
        if name == path && entry.contains_key("mount_strategy") {
            return Some(entry);
        }
        let below = path.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('/'));
        if let (Some(below), Some(children)) =
            (below, entry.get_mut("children").and_then(Value::as_object_mut))
        {
            return find(children, below);
        }
    }
    None
}

fn about(error: Error, path: &str, field: &str) -> Error {
    let message = format!("{field} of the mount {path}: {}", error.message());
    let failure = Error::new(error.kind(), message);
    match error.hint() {
        Some(hint) => failure.with_hint(hint.to_owned()),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Value {
        json!({"entries": {"d": {"type": "dir", "children": {"m": {
            "type": "s3_mount", "bucket": "b", "access_key_id": {"from": "env:ID"},
            "mount_strategy": {"type": "host"},
        }}}}})
    }

    fn env(name: &str) -> Option<String> {
        (name == "ID").then(|| "AKID".to_owned())
    }

    #[tokio::test]
    async fn puts_secrets_where_references_were() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from a file\n").unwrap();
        let mut manifest = manifest();
        let key = |field: &str, reference: &str| MountKey {
            path: "d/m".to_owned(),
            field: field.to_owned(),
            reference: SecretReference::parse(reference, ReferenceAuthor::Caller).unwrap(),
        };
        let file = format!("file:{}", file.path().display());
        let given = [key("secret_access_key", "cmd:printf hidden"), key("session_token", &file)];
        resolve_mount_keys(&mut manifest, &given, &env).await.unwrap();
        let mount = &manifest["entries"]["d"]["children"]["m"];
        assert_eq!(mount["access_key_id"], "AKID");
        assert_eq!(mount["secret_access_key"], "hidden");
        assert_eq!(mount["session_token"], "from a file");
    }

    #[tokio::test]
    async fn lets_no_manifest_run_a_command() {
        let mut hostile = manifest();
        let mark = std::env::temp_dir().join(format!("bastide-secret-{}", std::process::id()));
        hostile["entries"]["d"]["children"]["m"]["access_key_id"] =
            json!({"from": format!("cmd:touch {}", mark.display())});
        let error = resolve_mount_keys(&mut hostile, &[], &env).await.unwrap_err();
        assert!(error.message().contains("access_key_id of the mount d/m"), "{error}");
        assert!(!mark.exists());
    }

    #[tokio::test]
    async fn says_what_is_missing_and_never_what_is_there() {
        for (reference, why) in [
            ("env:NOBODY", "NOBODY"),
            ("file:/nowhere/at/all", "/nowhere/at/all"),
            ("env:", "names nothing"),
            ("hidden", "no reference"),
        ] {
            let mut manifest = manifest();
            manifest["entries"]["d"]["children"]["m"]["access_key_id"] = json!({"from": reference});
            let error = resolve_mount_keys(&mut manifest, &[], &env).await.unwrap_err();
            assert!(error.message().contains(why), "{error}");
        }
        let failing = SecretReference::Command("echo hidden; exit 3".to_owned());
        let error = failing.read(&env).await.unwrap_err();
        assert!(!error.to_string().contains("hidden"), "{error}");
    }

    #[tokio::test]
    async fn puts_no_secret_where_it_would_be_written_down() {
        let mut hostile = manifest();
        hostile["entries"]["d"]["children"]["m"]["prefix"] = json!({"from": "env:ID"});
        let error = resolve_mount_keys(&mut hostile, &[], &env).await.unwrap_err();
        assert!(error.message().contains("prefix of the mount d/m"), "{error}");
        assert!(hostile["entries"]["d"]["children"]["m"]["prefix"].is_object());
    }
}
