//! A manifest, with the keys of its mounts and what a sandbox may see of them.

use std::io::Read;
use std::path::Path;

use bastide::model::document::{Document, Format};
use bastide::model::mount::Exposure;
use bastide::model::{Manifest, Registry};
use bastide::secrets::{MountKey, ReferenceAuthor, SecretReference, resolve_mount_keys};
use bastide::{Error, ErrorKind, Result};

use crate::config;
use crate::ui::Ui;

/// What is said about the mounts of a manifest
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Mounts")]
pub(crate) struct MountArgs {
    /// Accept that commands can see the credentials of the mount at PATH (can be repeated)
    #[arg(long, value_name = "PATH")]
    acknowledge_exposure: Vec<String>,

    /// Key of a mount: its path, the field, and `env:NAME`, `file:PATH` or `cmd:COMMAND` (can be repeated)
    #[arg(long, value_name = "PATH:FIELD=REFERENCE", value_parser = parse_key)]
    mount_key: Vec<MountKey>,
}

fn parse_key(text: &str) -> std::result::Result<MountKey, String> {
    let wrong = || "expected PATH:FIELD=REFERENCE, such as data:access_key_id=env:NAME".to_owned();
    let (place, reference) = text.split_once('=').ok_or_else(wrong)?;
    let (path, field) = place.rsplit_once(':').ok_or_else(wrong)?;
    let reference = SecretReference::parse(reference, ReferenceAuthor::Caller);
    let reference = reference.map_err(|error| error.message().to_owned())?;
    Ok(MountKey { path: path.to_owned(), field: field.to_owned(), reference })
}

/// The name of standard input.
pub(crate) const STDIN: &str = "-";

/// The largest manifest that is read from standard input.
const MAX_BYTES: u64 = 64 << 20;

fn from_file(path: &Path) -> Result<(String, String, Format)> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the manifest {name}: {error}"))
    })?;
    let Some(format) = Format::of_file(&name) else {
        let message = format!("cannot tell what format the manifest {name} has");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("give it the extension .json, .yaml or .toml"));
    };
    Ok((name, text, format))
}

/// A stream has no extension: JSON begins with a brace, and what does not is YAML.
fn from_stdin() -> Result<(String, String, Format)> {
    let failed = |why: &str| {
        let message = format!("cannot read the manifest from standard input: {why}");
        Error::new(ErrorKind::InvalidInput, message)
    };
    let mut text = String::new();
    let read = std::io::stdin().lock().take(MAX_BYTES).read_to_string(&mut text);
    let count = read.map_err(|error| failed(&error.to_string()))?;
    if u64::try_from(count).unwrap_or(u64::MAX) >= MAX_BYTES {
        return Err(failed("it is larger than 64 MiB"));
    }
    let is_json = text.trim_start().starts_with('{');
    let format = if is_json { Format::Json } else { Format::Yaml };
    Ok(("standard input".to_owned(), text, format))
}

impl MountArgs {
    /// The manifest in a file, or in standard input, with its keys.
    pub(crate) async fn load(&self, ui: &Ui, path: &Path) -> Result<Manifest> {
        let (name, text, format) = match path == Path::new(STDIN) {
            true => from_stdin()?,
            false => from_file(path)?,
        };
        let mut document = Document::parse(&name, &text, format)?;
        let mut value = document.value().clone();
        resolve_mount_keys(&mut value, &self.mount_key, &config::variable).await?;
        document.edit(|own| {
            *own = value;
            Ok(())
        })?;
        let parsed = Manifest::of_document(&document, Registry::builtin())?;
        for warning in &parsed.warnings {
            ui.note(&format!("{name}: {}", warning.message));
        }
        Ok(parsed.value)
    }

    /// The manifest with what was accepted. What nobody accepted is refused in the words of the command
    /// line.
    pub(crate) fn acknowledged(&self, manifest: Manifest) -> Result<Manifest> {
        let paths: Vec<&str> = self.acknowledge_exposure.iter().map(String::as_str).collect();
        let manifest = manifest.with_exposure_acknowledged_at(&paths)?;
        for target in manifest.mount_targets()? {
            let path = target.path.as_str();
            for exposure in target.mount.exposures() {
                if manifest.acknowledges_mount_exposure(path, exposure)? {
                    continue;
                }
                let reach = match exposure {
                    Exposure::MountScoped => "the credentials of the mount",
                    Exposure::Broad => "credentials that are good for more than the mount",
                };
                let message = format!("commands could see {reach} at {path}");
                let hint = format!(
                    "accept that with `--acknowledge-exposure {path}`, or keep the keys outside: \
                     `mount_strategy: {{type: host}}`"
                );
                return Err(Error::new(ErrorKind::InvalidInput, message).with_hint(hint));
            }
        }
        Ok(manifest)
    }
}
