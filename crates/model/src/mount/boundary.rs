//! The credential boundary: what a program inside a sandbox may be told.
//!
//! Whatever such a program knows, the sandbox knows. So credentials stay outside unless the program
//! that owns them says, mount by mount, that the sandbox may see them
//! ([`Manifest::with_mount_exposure_acknowledged`]), and even then only by means that are known.

use super::exposure::Exposure;
use super::rules::{Boundary, CONFIG_FILE, Capability, KeyRule, strategy_rules};
use super::{Mount, MountPattern, MountSource, MountStrategy};
use crate::entry::{Entry, EntryKind};
use crate::manifest::Manifest;
use crate::posix_path::PosixPath;
use crate::text::trim;
use crate::{Error, Result};

impl Manifest {
    /// Checks every mount before anything happens: that its means are those of the `backend`, and
    /// that no credential gets into the sandbox unnoticed.
    ///
    /// # Errors
    ///
    /// `MountConfigError` for the first mount that is refused; `InvalidManifestPathError` for a wrong
    /// path.
    pub fn check_mount_boundaries(&self, backend: Option<&str>) -> Result<()> {
        self.check_mount_types()?;
        for target in self.mount_targets()? {
            target.mount.check_known_boundary(self, &target.path, backend)?;
        }
        Ok(())
    }

    /// Refuses mounts with a part of the program's own type: nobody knows what they would do with
    /// credentials.
    pub(crate) fn check_mount_types(&self) -> Result<()> {
        for step in self.walk()? {
            let (_, entry) = step?;
            if let Some(mount) = entry.as_mount() {
                mount.check_types()?;
            }
        }
        Ok(())
    }

    /// Whether an entry puts something at `path`, or may put something below it where `path` is. A
    /// folder alone does not.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path on the way.
    pub fn materializes_path(&self, path: &str) -> Result<bool> {
        let target = PosixPath::new(&absolute_manifest_path(&self.root, path));
        for step in self.walk()? {
            let (path, entry) = step?;
            let path = PosixPath::new(&absolute_manifest_path(&self.root, path.as_str()));
            if target.is_below(&path) && !is_only_a_folder(entry) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_only_a_folder(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Dir { .. } | EntryKind::LocalDir { src: None })
}

/// A path below `root` as an absolute one with every `..` taken back as text.
///
/// ```
/// use bastide_model::mount::absolute_manifest_path;
///
/// assert_eq!(absolute_manifest_path("/workspace", "a/../../b"), "/b");
/// ```
#[must_use]
pub fn absolute_manifest_path(root: &str, path: &str) -> String {
    let path = PosixPath::new(root).join(&PosixPath::new(path));
    format!("/{}", folded_names(&path).join("/"))
}

/// The names of a path with every `..` taken back as text. Two slashes at the start are a name like
/// any other here, because the reference takes them for one.
pub(super) fn folded_names(path: &PosixPath) -> Vec<&str> {
    let mut names = Vec::new();
    if path.as_str().starts_with("//") {
        names.push("//");
    }
    for name in path.names() {
        if name == ".." {
            names.pop();
        } else {
            names.push(name);
        }
    }
    names
}

impl Mount {
    /// Checks this mount as [`Manifest::check_mount_boundaries`] does all of them, for the `path` at
    /// which it is about to be mounted.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn check_boundary(
        &self,
        manifest: &Manifest,
        path: &PosixPath,
        backend: Option<&str>,
    ) -> Result<()> {
        self.check_types()?;
        self.check_known_boundary(manifest, path, backend)
    }

    fn check_types(&self) -> Result<()> {
        let what = match (&self.source, &self.strategy) {
            (MountSource::Custom(_), _) => "implementations",
            (_, MountStrategy::Custom(_)) => "strategies",
            _ => return Ok(()),
        };
        Err(refused(&format!(
            "custom mount {what} are not supported at the sandbox credential boundary"
        )))
    }

    fn check_known_boundary(
        &self,
        manifest: &Manifest,
        path: &PosixPath,
        backend: Option<&str>,
    ) -> Result<()> {
        let strategy_type = self.strategy.type_name();
        let Some(strategy) = strategy_rules(strategy_type) else {
            return self.check_types();
        };
        if let (Some(own), Some(backend)) = (strategy.backend, backend)
            && own != backend
        {
            let message = match self.strategy {
                MountStrategy::DockerVolume { .. } => {
                    "docker-volume mounts are not supported by this sandbox backend"
                }
                _ => "mount strategy is not supported by this sandbox backend",
            };
            return Err(self
                .refused(message)
                .with("strategy_type", strategy_type)
                .with("sandbox_backend", backend));
        }
        self.check_credential_files(manifest)?;
        if strategy.boundary == Boundary::External {
            return Ok(());
        }
        self.check_values()?;
        self.check_exposure(manifest, path)
    }

    fn refused(&self, message: &str) -> Error {
        refused(message).with("mount_type", self.type_name())
    }

    /// Refuses credential files that the manifest itself would make.
    fn check_credential_files(&self, manifest: &Manifest) -> Result<()> {
        let mut files = Vec::new();
        for field in self.source_rules().map_or([].as_slice(), |rules| rules.files) {
            files.extend(self.source.text(field).map(|file| (*field, file)));
        }
        files.retain(|(_, file)| !file.is_empty());
        if let Some(MountPattern::Rclone(rclone)) = self.strategy.pattern() {
            let file = rclone.config_file_path.as_ref();
            files.extend(file.map(|file| (CONFIG_FILE, file.as_str())));
        }
        for (field, file) in files {
            if manifest.materializes_path(file)? {
                let message = "credential files stored in the manifest are not supported for \
                               cloud mounts; configure credentials outside the sandbox manifest";
                return Err(self.refused(message).with("credential_field", field));
            }
        }
        Ok(())
    }

    /// Refuses values that a program inside the sandbox could not use, or would take for something
    /// else.
    fn check_values(&self) -> Result<()> {
        if matches!(self.strategy.pattern(), Some(MountPattern::Rclone(_))) {
            let fields = self.fields_with_line_breaks();
            if !fields.is_empty() {
                let message = "cloud mount configuration values must not contain line breaks";
                return Err(self.refused(message).with("configuration_fields", fields));
            }
        }
        let Some(rules) = self.source_rules() else { return Ok(()) };
        let incomplete = rules.key.as_ref().map(|key| self.missing_parts(key)).unwrap_or_default();
        if !incomplete.is_empty() {
            let message =
                "in-container access credentials require a complete non-empty credential set";
            return Err(self.refused(message).with("credential_fields", incomplete));
        }
        let is_blank = |field: &&&str| self.source.text(field).is_some_and(is_blank);
        let mut blank: Vec<&str> = rules.authority.iter().filter(is_blank).copied().collect();
        if !blank.is_empty() {
            blank.sort_unstable();
            let message =
                "in-container mount authentication values must not be empty or whitespace-only";
            return Err(self.refused(message).with("credential_fields", blank));
        }
        Ok(())
    }

    /// The parts that keep a key from being whole, if any part of it is given.
    fn missing_parts(&self, key: &KeyRule) -> Vec<&'static str> {
        if key.parts.iter().all(|part| self.source.text(part).is_none()) {
            return Vec::new();
        }
        let is_missing = |part: &&&str| match self.source.text(part) {
            Some(value) => is_blank(value),
            None => key.required.contains(part),
        };
        let mut missing: Vec<&str> = key.parts.iter().filter(is_missing).copied().collect();
        missing.sort_unstable();
        missing
    }

    /// Refuses what the sandbox may not see, or may not see without somebody's word.
    fn check_exposure(&self, manifest: &Manifest, path: &PosixPath) -> Result<()> {
        let fields = self.authority_fields();
        let mount_scoped_is_fine =
            manifest.acknowledges_mount_exposure(path.as_str(), Exposure::MountScoped)?;
        let broad_is_fine = manifest.acknowledges_mount_exposure(path.as_str(), Exposure::Broad)?;
        let capability = self.capability();
        let discovers = capability.is_some_and(|capability| capability.discovers);
        if let Some(Capability { needs_one_of, .. }) = capability
            && !needs_one_of.is_empty()
            && !needs_one_of
                .iter()
                .any(|field| self.source.text(field).is_some_and(|value| !is_blank(value)))
        {
            return Err(self.refused(
                "in-container Box mounts require a non-interactive authentication source; \
                 configure a token, access token, or JWT credentials before activation",
            ));
        }
        if fields.is_empty() && !mount_scoped_is_fine && !broad_is_fine && !discovers {
            return Ok(());
        }
        let strategy_type = self.strategy.type_name();
        let Some(capability) = capability else {
            let pattern = self.strategy.pattern().map(|pattern| pattern.kind().as_str());
            let message = "credential-bearing in-container mounts require an SDK-supported \
                           strategy, mount type, and pattern combination before exposure can be \
                           acknowledged; use a credentialless helper or an external/provider-native \
                           mount strategy";
            return Err(self
                .refused(message)
                .with("strategy_type", strategy_type)
                .with("pattern_type", pattern)
                .with("credential_fields", sorted(fields)));
        };
        let of = |kind: &[&str]| -> Vec<&str> {
            fields.iter().filter(|field| kind.contains(field)).copied().collect()
        };
        let (mount_scoped, broad) = (of(capability.mount_scoped), of(capability.broad));
        let neither = |field: &&&str| !mount_scoped.contains(field) && !broad.contains(field);
        let unsupported: Vec<&str> = fields.iter().filter(neither).copied().collect();
        if !unsupported.is_empty() {
            let message = "the selected in-container mount capability does not support exposing \
                           the configured credential fields; use supported credentials, a \
                           credentialless helper, or an external/provider-native mount strategy";
            return Err(self
                .refused(message)
                .with("strategy_type", strategy_type)
                .with("credential_fields", sorted(unsupported)));
        }
        let pointless = [
            (
                mount_scoped_is_fine && capability.mount_scoped.is_empty(),
                "mount-scoped credentials",
            ),
            (
                broad_is_fine && capability.broad.is_empty() && !discovers,
                "broad credential authority",
            ),
        ];
        for (is_pointless, what) in pointless {
            if is_pointless {
                let message =
                    format!("the selected in-container mount capability does not support {what}");
                return Err(self.refused(&message).with("strategy_type", strategy_type));
            }
        }
        if !mount_scoped.is_empty() && !mount_scoped_is_fine {
            let message = "mount-scoped credentials cannot be exposed to a helper inside a \
                           model-controlled sandbox by default; use a credentialless or \
                           external/provider-native strategy, or explicitly acknowledge exposure \
                           for this exact path with \
                           Manifest.with_in_container_mount_credential_exposure_acknowledged()";
            return Err(self.refused(message).with("credential_fields", sorted(mount_scoped)));
        }
        if (!broad.is_empty() || discovers) && !broad_is_fine {
            let message = "broad credential authority cannot be exposed to a helper inside a \
                           model-controlled sandbox by default; use a credentialless or \
                           external/provider-native strategy, or explicitly acknowledge broad \
                           exposure for this exact path with Manifest.\
                           with_in_container_mount_broad_credential_exposure_acknowledged()";
            return Err(self.refused(message).with("credential_fields", sorted(broad)));
        }
        Ok(())
    }
}

/// An error whose words are ours, about a mount whose data are not.
fn refused(message: &str) -> Error {
    Error::mount_config(message).with_safe_message().protected()
}

fn sorted(mut fields: Vec<&str>) -> Vec<&str> {
    fields.sort_unstable();
    fields
}

fn is_blank(value: &str) -> bool {
    trim(value).is_empty()
}
