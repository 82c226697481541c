//! Saying that a sandbox may see the credentials of a mount.

use std::collections::BTreeSet;

use super::materialized::folded_names;
use crate::Result;
use crate::error::ErrorClass;
use crate::error::raise;
use crate::manifest::{Manifest, MountExposure, normalize_within_root};
use crate::posix_path::PosixPath;

/// How far credentials reach that a sandbox may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Exposure {
    /// They are good for the mount only.
    MountScoped,
    /// They are good for more, such as a managed identity or a file of credentials.
    Broad,
}

impl Manifest {
    /// The same manifest, for a program that accepts that the sandbox can see the credentials of the
    /// mounts at exactly these `paths`. This holds while the program runs and is never written down.
    ///
    /// ```
    /// use bastide_model::Manifest;
    /// use bastide_model::mount::Exposure;
    ///
    /// let manifest = Manifest::default();
    /// let manifest = manifest.with_mount_exposure_acknowledged(Exposure::MountScoped, &["data"])?;
    /// assert!(manifest.acknowledges_mount_exposure("/workspace/data", Exposure::MountScoped)?);
    /// assert!(!manifest.acknowledges_mount_exposure("/workspace/data/a", Exposure::MountScoped)?);
    /// # Ok::<(), bastide_model::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `TypeError` without paths; `ValueError` for the root, patterns, `..` and backslashes;
    /// `MountConfigError` for mounts of the program's own types.
    pub fn with_mount_exposure_acknowledged(
        &self,
        exposure: Exposure,
        paths: &[&str],
    ) -> Result<Self> {
        self.acknowledged(exposure, paths).map_err(|error| {
            let holds_authority = self.holds_mount_authority();
            if holds_authority && error.class() == Some(ErrorClass::ValueError) {
                return raise::value_error("sandbox mount validation failed");
            }
            error.redacted_if(holds_authority)
        })
    }

    fn acknowledged(&self, exposure: Exposure, paths: &[&str]) -> Result<Self> {
        if paths.is_empty() {
            return Err(raise::type_error("At least one in-container mount path is required."));
        }
        let mut keys = BTreeSet::new();
        for path in paths {
            keys.insert(self.exact_exposure_key(path)?);
        }
        self.check_mount_types()?;
        let mut manifest = self.clone();
        manifest.mount_exposure.of_mut(exposure).append(&mut keys);
        Ok(manifest)
    }

    /// As [`with_mount_exposure_acknowledged`](Self::with_mount_exposure_acknowledged), for whatever each
    /// mount at these `paths` exposes: a person names mounts, not kinds of exposure.
    ///
    /// # Errors
    ///
    /// As there; and `ValueError` for a path at which there is no mount, or one that exposes nothing.
    pub fn with_exposure_acknowledged_at(&self, paths: &[&str]) -> Result<Self> {
        let mut manifest = self.clone();
        for path in paths {
            let key = self.exact_exposure_key(path)?;
            let mut found = None;
            for target in self.mount_targets()? {
                let own = self.exposure_key(target.path.as_str())?.map(|key| key.text());
                let given = PosixPath::new(path);
                let place = absolute(&self.root_path()).join(&given).normalized();
                if own.as_ref() == Some(&key) || target.path.normalized() == place {
                    found = Some(target.mount.exposures());
                }
            }
            let exposures = found.ok_or_else(|| {
                raise::value_error(format!(
                    "there is no mount at {path} to acknowledge anything of"
                ))
            })?;
            if exposures.is_empty() {
                let message = format!("the mount at {path} exposes nothing to the sandbox");
                return Err(raise::value_error(message));
            }
            for exposure in exposures {
                manifest = manifest.with_mount_exposure_acknowledged(exposure, &[path])?;
            }
        }
        Ok(manifest)
    }

    /// Whether the program accepts that the sandbox can see credentials of the mount at `path`.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` or `ValueError` if `path` is no path of the sandbox.
    pub fn acknowledges_mount_exposure(&self, path: &str, exposure: Exposure) -> Result<bool> {
        let Some(key) = self.exposure_key(path)? else {
            return Ok(false);
        };
        let root = absolute(&self.root_path());
        let other_spelling = match &key {
            Key::Absolute(path) => {
                path.below(&root).filter(|path| !path.is_empty()).map(Key::Relative)
            }
            Key::Relative(path) => Some(Key::Absolute(root.join(path))),
        };
        let keys = self.mount_exposure.of(exposure);
        Ok(keys.contains(&key.text())
            || other_spelling.is_some_and(|key| keys.contains(&key.text())))
    }

    /// The key of a path that must name one place below the root and nothing else.
    fn exact_exposure_key(&self, path: &str) -> Result<String> {
        let is_root =
            || raise::value_error("Mount credential exposure path must identify a non-root path.");
        if path.is_empty() {
            return Err(is_root());
        }
        refuse_backslashes(path)?;
        if path.contains(['*', '?', '[', ']']) {
            let message = "Mount credential exposure paths must not contain wildcard syntax.";
            return Err(raise::value_error(message));
        }
        if PosixPath::new(path).climbs() {
            let message = "Mount credential exposure paths must not contain parent segments.";
            return Err(raise::value_error(message));
        }
        self.exposure_key(path)?.map(|key| key.text()).ok_or_else(is_root)
    }

    /// The key of a path, or `None` if it is the root.
    fn exposure_key(&self, path: &str) -> Result<Option<Key>> {
        refuse_backslashes(path)?;
        let path = PosixPath::new(path);
        if !path.is_absolute() {
            let path = normalize_within_root(&path, &path)?;
            return Ok((!path.is_empty()).then_some(Key::Relative(path)));
        }
        let path = rebuilt(&folded_names(&path));
        let is_root = path.as_str() == "/" || path == absolute(&self.root_path());
        Ok((!is_root).then_some(Key::Absolute(path)))
    }
}

fn refuse_backslashes(path: &str) -> Result<()> {
    if path.contains('\\') {
        let message = "Mount credential exposure paths must use '/' separators.";
        return Err(raise::value_error(message));
    }
    Ok(())
}

/// A path as the exposures know it.
enum Key {
    Relative(PosixPath),
    Absolute(PosixPath),
}

impl Key {
    fn text(&self) -> String {
        match self {
            Self::Relative(path) => format!("relative:{path}"),
            Self::Absolute(path) => format!("absolute:{path}"),
        }
    }
}

/// A root that is taken for absolute even where it is not.
fn absolute(root: &PosixPath) -> PosixPath {
    PosixPath::new("/").join(root)
}

/// The absolute path of names that [`folded_names`] made.
fn rebuilt(names: &[&str]) -> PosixPath {
    match names {
        ["//", names @ ..] => PosixPath::new(&format!("//{}", names.join("/"))),
        names => PosixPath::new(&format!("/{}", names.join("/"))),
    }
}

impl MountExposure {
    fn of(&self, exposure: Exposure) -> &BTreeSet<String> {
        match exposure {
            Exposure::MountScoped => &self.mount_scoped,
            Exposure::Broad => &self.broad,
        }
    }

    fn of_mut(&mut self, exposure: Exposure) -> &mut BTreeSet<String> {
        match exposure {
            Exposure::MountScoped => &mut self.mount_scoped,
            Exposure::Broad => &mut self.broad,
        }
    }
}
