//! The credential boundary: what a program inside a sandbox may know.
//!
//! Whatever such a program knows, the sandbox knows. So credentials stay outside unless the program
//! that owns them says, mount by mount, that the sandbox may see them
//! ([`Manifest::with_mount_exposure_acknowledged`]), and even then only by means that are known.

use std::cell::OnceCell;

use super::exposure::Exposure;
use super::materialized::OccupiedPaths;
use super::rules::{BoundaryKind, CONFIG_FILE, Capability, KeyRule, strategy_rules};
use super::{Mount, MountPattern, MountSource, MountStrategy};
use crate::error::raise;
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
        let targets = self.mount_targets()?;
        // Looked at once for all mounts: a manifest may have many of both.
        let taken = OnceCell::new();
        let materializes = |path: &str| {
            let taken = taken.get_or_init(|| OccupiedPaths::of(self).unwrap_or_default());
            Ok(taken.is_at_or_above(path))
        };
        for target in targets {
            target.mount.check_known_boundary(self, &target.path, backend, &materializes)?;
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
        let materializes = |path: &str| manifest.materializes_path(path);
        self.check_known_boundary(manifest, path, backend, &materializes)
    }

    /// What somebody has to accept before this is mounted.
    #[must_use]
    pub fn exposures(&self) -> Vec<Exposure> {
        let Some(capability) = self.capability() else { return Vec::new() };
        let fields = self.authority_fields();
        let any = |known: &[&str]| fields.iter().any(|field| known.contains(field));
        let mount_scoped = any(capability.mount_scoped).then_some(Exposure::MountScoped);
        let broad = (any(capability.broad) || capability.discovers).then_some(Exposure::Broad);
        mount_scoped.into_iter().chain(broad).collect()
    }

    /// The fields whose values the sandbox can see once this is mounted.
    #[must_use]
    pub fn exposed_fields(&self) -> Vec<&'static str> {
        match self.strategy {
            MountStrategy::InContainer { .. } => self.authority_fields(),
            _ => Vec::new(),
        }
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
        materializes: &dyn Fn(&str) -> Result<bool>,
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
                .with_context("strategy_type", strategy_type)
                .with_context("sandbox_backend", backend));
        }
        self.check_credential_files(materializes)?;
        if matches!(self.strategy, MountStrategy::Host { .. }) {
            // Our own program would be told half a key, and the store be asked as nobody.
            return self.check_host_values();
        }
        if strategy.boundary == BoundaryKind::External {
            return Ok(());
        }
        self.check_values()?;
        self.check_exposure(manifest, path)
    }

    fn refused(&self, message: &str) -> Error {
        refused(message).with_context("mount_type", self.type_name())
    }

    /// Refuses credential files that the manifest itself would make.
    fn check_credential_files(&self, materializes: &dyn Fn(&str) -> Result<bool>) -> Result<()> {
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
            if materializes(file)? {
                let message = "credential files stored in the manifest are not supported for \
                               cloud mounts; configure credentials outside the sandbox manifest";
                return Err(self.refused(message).with_context("credential_field", field));
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
                return Err(self.refused(message).with_context("configuration_fields", fields));
            }
        }
        let Some(rules) = self.source_rules() else { return Ok(()) };
        let incomplete = rules.key.as_ref().map(|key| self.missing_parts(key)).unwrap_or_default();
        if !incomplete.is_empty() {
            let message =
                "in-container access credentials require a complete non-empty credential set";
            return Err(self.refused(message).with_context("credential_fields", incomplete));
        }
        let is_blank = |field: &&&str| self.source.text(field).is_some_and(is_blank);
        let mut blank: Vec<&str> = rules.authority.iter().filter(is_blank).copied().collect();
        if !blank.is_empty() {
            blank.sort_unstable();
            let message =
                "in-container mount authentication values must not be empty or whitespace-only";
            return Err(self.refused(message).with_context("credential_fields", blank));
        }
        Ok(())
    }

    /// Refuses values that the program of the host could not use.
    fn check_host_values(&self) -> Result<()> {
        self.check_values()?;
        let files = self.source_rules().map_or([].as_slice(), |rules| rules.files);
        if files.iter().any(|field| self.source.text(field).is_some()) {
            let message = "a mount by the host reads no credential file by itself; give its content \
                           by reference instead: `service_account_credentials: {from: \"file:PATH\"}`";
            return Err(self.refused(message));
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
        let acknowledged = Acknowledged {
            mount_scoped: manifest
                .acknowledges_mount_exposure(path.as_str(), Exposure::MountScoped)?,
            broad: manifest.acknowledges_mount_exposure(path.as_str(), Exposure::Broad)?,
        };
        let capability = self.capability();
        self.check_can_log_in(capability)?;
        let discovers = capability.is_some_and(|capability| capability.discovers);
        if fields.is_empty() && !acknowledged.mount_scoped && !acknowledged.broad && !discovers {
            return Ok(());
        }
        let Some(capability) = capability else {
            let pattern = self.strategy.pattern().map(|pattern| pattern.kind().as_str());
            let message = "credential-bearing in-container mounts require an SDK-supported \
                           strategy, mount type, and pattern combination before exposure can be \
                           acknowledged; use a credentialless helper or an external/provider-native \
                           mount strategy";
            return Err(self
                .refused(message)
                .with_context("strategy_type", self.strategy.type_name())
                .with_context("pattern_type", pattern)
                .with_context("credential_fields", sorted(fields)));
        };
        self.check_capability(capability, &fields, &acknowledged)?;
        self.check_acknowledged(capability, &fields, &acknowledged)
    }

    /// Refuses a program that would ask questions, because nobody could answer.
    fn check_can_log_in(&self, capability: Option<&Capability>) -> Result<()> {
        let needs_one_of = capability.map_or([].as_slice(), |capability| capability.needs_one_of);
        let is_given = |field: &&str| self.source.text(field).is_some_and(|value| !is_blank(value));
        if needs_one_of.is_empty() || needs_one_of.iter().any(is_given) {
            return Ok(());
        }
        Err(self.refused(
            "in-container Box mounts require a non-interactive authentication source; configure a \
             token, access token, or JWT credentials before activation",
        ))
    }

    /// Refuses fields that these means never let the sandbox see, and words given for nothing.
    fn check_capability(
        &self,
        capability: &Capability,
        fields: &[&'static str],
        acknowledged: &Acknowledged,
    ) -> Result<()> {
        let strategy_type = self.strategy.type_name();
        let Capability { mount_scoped, broad, discovers, .. } = capability;
        let is_unsupported =
            |field: &&&str| !mount_scoped.contains(field) && !broad.contains(field);
        let unsupported: Vec<&str> = fields.iter().filter(is_unsupported).copied().collect();
        if !unsupported.is_empty() {
            let message = "the selected in-container mount capability does not support exposing \
                           the configured credential fields; use supported credentials, a \
                           credentialless helper, or an external/provider-native mount strategy";
            return Err(self
                .refused(message)
                .with_context("strategy_type", strategy_type)
                .with_context("credential_fields", sorted(unsupported)));
        }
        let what = if acknowledged.mount_scoped && mount_scoped.is_empty() {
            "mount-scoped credentials"
        } else if acknowledged.broad && broad.is_empty() && !discovers {
            "broad credential authority"
        } else {
            return Ok(());
        };
        let message = format!("the selected in-container mount capability does not support {what}");
        Err(self.refused(&message).with_context("strategy_type", strategy_type))
    }

    /// Refuses fields that the sandbox would see without somebody's word.
    fn check_acknowledged(
        &self,
        capability: &Capability,
        fields: &[&'static str],
        acknowledged: &Acknowledged,
    ) -> Result<()> {
        let among = |known: &[&str]| -> Vec<&str> {
            fields.iter().filter(|field| known.contains(field)).copied().collect()
        };
        let (mount_scoped, broad) = (among(capability.mount_scoped), among(capability.broad));
        if !mount_scoped.is_empty() && !acknowledged.mount_scoped {
            let message = "mount-scoped credentials cannot be exposed to a helper inside a \
                           model-controlled sandbox by default; use a credentialless or \
                           external/provider-native strategy, or explicitly acknowledge exposure \
                           for this exact path with \
                           Manifest.with_in_container_mount_credential_exposure_acknowledged()";
            return Err(self
                .refused(message)
                .with_context("credential_fields", sorted(mount_scoped)));
        }
        if (!broad.is_empty() || capability.discovers) && !acknowledged.broad {
            let message = "broad credential authority cannot be exposed to a helper inside a \
                           model-controlled sandbox by default; use a credentialless or \
                           external/provider-native strategy, or explicitly acknowledge broad \
                           exposure for this exact path with Manifest.\
                           with_in_container_mount_broad_credential_exposure_acknowledged()";
            return Err(self.refused(message).with_context("credential_fields", sorted(broad)));
        }
        Ok(())
    }
}

/// What a program accepts that the sandbox sees of a mount.
struct Acknowledged {
    mount_scoped: bool,
    broad: bool,
}

/// An error whose words are ours, about a mount whose data are not.
fn refused(message: &str) -> Error {
    raise::mount_config(message).with_safe_message().with_protection()
}

fn sorted(mut fields: Vec<&str>) -> Vec<&str> {
    fields.sort_unstable();
    fields
}

fn is_blank(value: &str) -> bool {
    trim(value).is_empty()
}
