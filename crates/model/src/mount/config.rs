//! The configuration of the program that mounts, made from the storage and the program's own settings.

use indexmap::IndexMap;
use uuid::Uuid;

use super::pattern::{MountPattern, MountpointOptions, RclonePattern, S3FilesOptions};
use super::rclone::RcloneConfig;
use super::remote::{GCS_ENDPOINT, Remote, filled};
use super::source::{AzureBlob, Gcs, MountSource, R2, S3, S3Files};
use super::{Mount, MountStrategy};
use crate::error::raise;
use crate::posix_path::PosixPath;
use crate::secret::Secret;
use crate::{Error, Result};

/// What the program that mounts is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountConfig {
    /// For blobfuse2.
    Blobfuse(BlobfuseConfig),
    /// For Mountpoint for Amazon S3.
    Mountpoint(MountpointConfig),
    /// For rclone.
    Rclone(RcloneConfig),
    /// For the mount helper of Amazon S3 Files.
    S3Files(S3FilesConfig),
}

/// What blobfuse2 is told, beside its own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobfuseConfig {
    /// The storage account.
    pub account: String,
    /// The container.
    pub container: String,
    /// The address of the service, where it is not the account's usual one.
    pub endpoint: Option<String>,
    /// The managed identity to use.
    pub identity_client_id: Option<String>,
    /// The key of the account.
    pub account_key: Option<Secret>,
    /// The word of the mount, for errors.
    pub mount_type: String,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// What Mountpoint for Amazon S3 is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountpointConfig {
    /// The bucket.
    pub bucket: String,
    /// The id of an access key.
    pub access_key_id: Option<String>,
    /// The access key.
    pub secret_access_key: Option<Secret>,
    /// The token of temporary credentials.
    pub session_token: Option<Secret>,
    /// Only what is below this prefix.
    pub prefix: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The address of the service.
    pub endpoint_url: Option<String>,
    /// The word of the mount.
    pub mount_type: String,
    /// Whether it can only be read.
    pub read_only: bool,
}

/// What the mount helper of Amazon S3 Files is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3FilesConfig {
    /// The file system.
    pub file_system_id: String,
    /// Only what is below this folder.
    pub subpath: Option<String>,
    /// The address of the mount target.
    pub mount_target_ip: Option<String>,
    /// The access point.
    pub access_point: Option<String>,
    /// The region of the file system.
    pub region: Option<String>,
    /// More mount options; one without a value is a flag.
    pub extra_options: IndexMap<String, Option<String>>,
    /// The word of the mount, for errors.
    pub mount_type: String,
    /// Whether it can only be read.
    pub read_only: bool,
}

impl Mount {
    /// What the program that mounts this inside the sandbox of `session` is told, or `None` if that
    /// is not how it is mounted.
    ///
    /// ```
    /// use bastide_model::Mount;
    /// use bastide_model::mount::{MountConfig, MountPattern, MountStrategy, RclonePattern, S3};
    /// use uuid::Uuid;
    ///
    /// let rclone = MountStrategy::in_container(MountPattern::Rclone(RclonePattern::default()));
    /// let mount = Mount::new(S3::new("data"), rclone);
    /// let Some(MountConfig::Rclone(config)) = mount.in_container_config(Uuid::nil())? else {
    ///     unreachable!("that is how it is mounted");
    /// };
    /// assert_eq!(config.remote_name, "sandbox_s3_00000000000000000000000000000000");
    /// assert_eq!(config.settings.lines().last(), Some("env_auth = false"));
    /// # Ok::<(), bastide_model::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `MountConfigError` if the program cannot mount this storage, or credentials are incomplete.
    pub fn in_container_config(&self, session: Uuid) -> Result<Option<MountConfig>> {
        let MountStrategy::InContainer { pattern } = &self.strategy else {
            return Ok(None);
        };
        if let MountSource::R2(source) = &self.source {
            source.check_key()?;
        }
        let config = match (pattern, &self.source) {
            (MountPattern::Rclone(pattern), source) => match Remote::of(source) {
                Some(remote) => MountConfig::Rclone(self.rclone(pattern, remote, session)?),
                None => return Err(self.cannot_be_mounted_so()),
            },
            (MountPattern::Fuse(_), MountSource::AzureBlob(source)) => {
                MountConfig::Blobfuse(self.blobfuse(source))
            }
            (MountPattern::Mountpoint(options), MountSource::S3(source)) => {
                MountConfig::Mountpoint(self.mountpoint_of_s3(source, options))
            }
            (MountPattern::Mountpoint(options), MountSource::Gcs(source)) => {
                MountConfig::Mountpoint(self.mountpoint_of_gcs(source, options))
            }
            (MountPattern::S3Files(options), MountSource::S3Files(source)) => {
                MountConfig::S3Files(self.s3_files(source, options))
            }
            _ => return Err(self.cannot_be_mounted_so()),
        };
        Ok(Some(config))
    }

    fn cannot_be_mounted_so(&self) -> Error {
        raise::mount_config("invalid mount_pattern type").with_context("type", self.type_name())
    }

    fn rclone(
        &self,
        pattern: &RclonePattern,
        remote: Remote,
        session: Uuid,
    ) -> Result<RcloneConfig> {
        let session = session.simple().to_string();
        let mount_type = self.type_name();
        Ok(RcloneConfig {
            remote_name: pattern.remote_name_for(&session, remote.kind, Some(mount_type))?,
            remote_path: remote.path.clone(),
            remote_kind: remote.kind,
            mount_type: mount_type.to_owned(),
            settings: remote.settings(),
            read_only: self.read_only,
            config_file: pattern.config_file_path.clone(),
        })
    }

    fn blobfuse(&self, source: &AzureBlob) -> BlobfuseConfig {
        BlobfuseConfig {
            account: source.account.clone(),
            container: source.container.clone(),
            endpoint: source.endpoint.clone(),
            identity_client_id: source.identity_client_id.clone(),
            account_key: source.account_key.clone(),
            mount_type: self.type_name().to_owned(),
            read_only: self.read_only,
        }
    }

    fn mountpoint_of_s3(&self, source: &S3, options: &MountpointOptions) -> MountpointConfig {
        MountpointConfig {
            bucket: source.bucket.clone(),
            access_key_id: source.access_key_id.clone(),
            secret_access_key: source.secret_access_key.clone(),
            session_token: source.session_token.clone(),
            prefix: first_filled([&source.prefix, &options.prefix]),
            region: first_filled([&source.region, &options.region]),
            endpoint_url: first_filled([&source.endpoint_url, &options.endpoint_url]),
            mount_type: self.type_name().to_owned(),
            read_only: self.read_only,
        }
    }

    fn mountpoint_of_gcs(&self, source: &Gcs, options: &MountpointOptions) -> MountpointConfig {
        let endpoint = filled(source.endpoint_url.as_deref())
            .or(filled(options.endpoint_url.as_deref()))
            .unwrap_or(GCS_ENDPOINT);
        MountpointConfig {
            bucket: source.bucket.clone(),
            access_key_id: source.access_id.clone(),
            secret_access_key: source.secret_access_key.clone(),
            session_token: None,
            prefix: first_filled([&source.prefix, &options.prefix]),
            region: first_filled([&source.region, &options.region]),
            endpoint_url: Some(endpoint.to_owned()),
            mount_type: self.type_name().to_owned(),
            read_only: self.read_only,
        }
    }

    fn s3_files(&self, source: &S3Files, options: &S3FilesOptions) -> S3FilesConfig {
        let mut extra_options = options.extra_options.clone();
        extra_options.extend(source.extra_options.clone());
        S3FilesConfig {
            file_system_id: source.file_system_id.clone(),
            subpath: source.subpath.clone(),
            mount_target_ip: first_filled([&source.mount_target_ip, &options.mount_target_ip]),
            access_point: first_filled([&source.access_point, &options.access_point]),
            region: first_filled([&source.region, &options.region]),
            extra_options,
            mount_type: self.type_name().to_owned(),
            read_only: self.read_only,
        }
    }
}

impl MountConfig {
    /// The file of the sandbox that must be read before the configuration is whole; a relative path
    /// is below the workspace's `root`.
    #[must_use]
    pub fn file_to_read(&self, root: &PosixPath) -> Option<PosixPath> {
        match self {
            Self::Rclone(config) => config.config_file.as_ref().map(|file| root.join(file)),
            Self::Blobfuse(_) | Self::Mountpoint(_) | Self::S3Files(_) => None,
        }
    }
}

/// The first value if it is not empty, else the second whatever it is.
fn first_filled([own, usual]: [&Option<String>; 2]) -> Option<String> {
    own.clone().filter(|value| !value.is_empty()).or_else(|| usual.clone())
}

impl R2 {
    pub(super) fn check_key(&self) -> Result<()> {
        if self.access_key_id.is_some() == self.secret_access_key.is_some() {
            return Ok(());
        }
        let message = "r2 credentials must include both access_key_id and secret_access_key";
        Err(raise::mount_config(message).with_context("type", "r2_mount"))
    }
}
