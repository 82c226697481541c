//! Storage of a cloud provider inside the workspace, as data: what to mount ([`MountSource`]), by
//! which means ([`MountStrategy`], [`MountPattern`]), and where.

mod authority;
mod boundary;
mod config;
mod exposure;
mod inline_url;
mod materialized;
mod pattern;
mod plan;
mod rclone;
mod rclone_args;
pub(crate) mod read;
mod rebind;
mod remote;
mod rules;
mod sanitize;
mod sanitize_state;
mod source;
mod strategy;
mod volume;

pub use config::{BlobfuseConfig, MountConfig, MountpointConfig, S3FilesConfig};
pub use exposure::Exposure;
pub use inline_url::{url_authority_values, url_holds_authority};
pub use materialized::absolute_manifest_path;
pub use pattern::{
    BlobfuseCache, FusePattern, MountPattern, MountpointOptions, PatternKind, RcloneMode,
    RclonePattern, S3FilesOptions,
};
pub use plan::{HelperRun, MountPlan, MountSite, MountStep, Mounting, RequiredTool, ToolCheck};
pub use rclone::{RcloneConfig, join_remote_path, supplement_rclone_config};
pub use rclone_args::{RcloneArgs, analyze_rclone_args, is_safe_remote_name};
pub use read::mount as read_mount;
pub use rules::key_fields;
pub(crate) use sanitize::cannot_be_written;
pub use sanitize::{Sanitized, sanitize_manifest};
pub use sanitize_state::{REDACTED_MOUNT_AUTHORITY, sanitize_run_state, sanitize_session_state};
pub use source::{
    AzureBlob, BoxFolder, BoxSubType, CustomMount, Gcs, MountSource, R2, S3, S3Files,
};
pub(crate) use strategy::BUILTIN as BUILTIN_STRATEGIES;
pub use strategy::{CustomStrategy, MountStrategy};
pub use volume::VolumeDriver;

use crate::Result;
use crate::error::raise;
use crate::lax::Object;
use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;

/// Storage to mount.
#[derive(Debug, Clone, PartialEq)]
pub struct Mount {
    /// Where it appears, if not at the entry's own path; a relative path is below the workspace's
    /// root.
    pub mount_path: Option<PosixPath>,
    /// Whether it can only be read.
    pub read_only: bool,
    /// By which means it is mounted.
    pub strategy: MountStrategy,
    /// What is mounted.
    pub source: MountSource,
}

impl Mount {
    /// A read-only mount at the entry's own path.
    #[must_use]
    pub fn new(source: impl Into<MountSource>, strategy: MountStrategy) -> Self {
        Self { mount_path: None, read_only: true, strategy, source: source.into() }
    }

    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        self.source.type_name()
    }

    /// Checks that the storage can be mounted by the strategy.
    ///
    /// # Errors
    ///
    /// `MountConfigError` that says what does not fit.
    pub fn check(&self) -> Result<()> {
        let mount_type = self.type_name();
        if self.source.patterns().is_empty() && self.source.drivers().is_empty() {
            return Err(raise::mount_config("mount type must support at least one mount strategy")
                .with_context("mount_type", mount_type));
        }
        match &self.strategy {
            MountStrategy::InContainer { .. } if self.source.patterns().is_empty() => {
                let message = "in-container mounts are not supported for this mount type";
                Err(raise::mount_config(message).with_context("mount_type", mount_type))
            }
            MountStrategy::InContainer { pattern }
                if !self.source.patterns().contains(&pattern.kind()) =>
            {
                Err(raise::mount_config("invalid mount_pattern type")
                    .with_context("type", mount_type))
            }
            MountStrategy::DockerVolume { driver, .. }
                if !self.source.drivers().contains(&driver.as_str()) =>
            {
                Err(raise::mount_config("invalid Docker volume driver")
                    .with_context("type", mount_type)
                    .with_context("driver", driver.as_str()))
            }
            MountStrategy::Host { .. } if !self.source.has_host_strategy() => {
                let message = "no program of the host mounts this mount type";
                Err(raise::mount_config(message).with_context("mount_type", mount_type))
            }
            MountStrategy::InContainer { .. }
            | MountStrategy::DockerVolume { .. }
            | MountStrategy::Host { .. } => Ok(()),
            MountStrategy::Custom(custom) => custom.check(self),
        }
    }

    /// Where the storage appears, for an entry that lies at `dest`.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` if the mount names a path that is absolute on Windows.
    pub fn resolve_path(&self, root: &PosixPath, dest: &PosixPath) -> Result<PosixPath> {
        let Some(path) = &self.mount_path else {
            return Ok(root.join(dest));
        };
        if let Some(windows) = WindowsPath::absolute(&path.to_string()) {
            return Err(raise::invalid_manifest_path(windows.to_posix(), "absolute"));
        }
        Ok(root.join(path))
    }

    pub(crate) fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("mount_path", &self.mount_path)?;
        out.put("read_only", &self.read_only)?;
        out.put("mount_strategy", &self.strategy)?;
        self.source.put_fields(out)
    }
}
