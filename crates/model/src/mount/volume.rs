//! The options of a volume driver of a container engine.

use indexmap::IndexMap;

use super::rclone::join_remote_path;
use super::remote::{GCS_ENDPOINT, box_path, filled, gcs_hmac_key, r2_endpoint};
use super::source::{AzureBlob, BoxFolder, BoxSubType, Gcs, MountSource, R2, S3};
use super::{Mount, MountStrategy};
use crate::Result;
use crate::error::raise;
use crate::secret::Secret;

/// A volume driver and its options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDriver {
    /// The driver.
    pub driver: String,
    /// Its options; any of them may be a credential.
    pub options: IndexMap<String, Secret>,
    /// Whether the volume can only be read.
    pub read_only: bool,
}

impl Mount {
    /// What the volume driver that mounts this is told, or `None` if that is not how it is mounted.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if no driver can mount this storage, or credentials are incomplete.
    pub fn volume_driver(&self) -> Result<Option<VolumeDriver>> {
        let MountStrategy::DockerVolume { driver, driver_options } = &self.strategy else {
            return Ok(None);
        };
        let is_rclone = driver == "rclone";
        let Options(mut options) = match &self.source {
            MountSource::AzureBlob(source) => azure_blob(source),
            MountSource::Box(source) => box_folder(source),
            MountSource::Gcs(source) if is_rclone => gcs_by_rclone(source),
            MountSource::Gcs(source) => gcs_by_mountpoint(source),
            MountSource::R2(source) => r2(source)?,
            MountSource::S3(source) if is_rclone => s3_by_rclone(source),
            MountSource::S3(source) => s3_by_mountpoint(source),
            MountSource::S3Files(_) | MountSource::Custom(_) => {
                let message = "docker-volume mounts are not supported for this mount type";
                return Err(
                    raise::mount_config(message).with_context("mount_type", self.type_name())
                );
            }
        };
        options.extend(driver_options.clone());
        Ok(Some(VolumeDriver { driver: driver.clone(), options, read_only: self.read_only }))
    }
}

/// Options in the order they are given.
struct Options(IndexMap<String, Secret>);

impl Options {
    fn new<const N: usize>(options: [(&str, &str); N]) -> Self {
        let options = options.into_iter();
        Self(options.map(|(key, value)| (key.to_owned(), Secret::from(value))).collect())
    }

    /// Adds an option that has a value, even an empty one.
    fn some(mut self, key: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.0.insert(key.to_owned(), Secret::from(value));
        }
        self
    }
}

fn azure_blob(source: &AzureBlob) -> Options {
    Options::new([
        ("type", "azureblob"),
        ("path", &source.container),
        ("azureblob-account", &source.account),
    ])
    .some("azureblob-endpoint", source.endpoint.as_deref())
    .some("azureblob-msi-client-id", source.identity_client_id.as_deref())
    .some("azureblob-key", source.account_key.as_deref())
}

fn box_folder(source: &BoxFolder) -> Options {
    let sub_type = source.box_sub_type;
    Options::new([("type", "box"), ("path", &box_path(source))])
        .some("box-client-id", source.client_id.as_deref())
        .some("box-client-secret", source.client_secret.as_deref())
        .some("box-access-token", source.access_token.as_deref())
        .some("box-token", source.token.as_deref())
        .some("box-box-config-file", source.box_config_file.as_deref())
        .some("box-config-credentials", source.config_credentials.as_deref())
        .some("box-box-sub-type", (sub_type != BoxSubType::User).then(|| sub_type.as_str()))
        .some("box-root-folder-id", source.root_folder_id.as_deref())
        .some("box-impersonate", source.impersonate.as_deref())
        .some("box-owned-by", source.owned_by.as_deref())
}

fn gcs_endpoint(source: &Gcs) -> &str {
    filled(source.endpoint_url.as_deref()).unwrap_or(GCS_ENDPOINT)
}

fn gcs_by_rclone(source: &Gcs) -> Options {
    let path = join_remote_path(&source.bucket, source.prefix.as_deref());
    if let Some((access_id, key)) = gcs_hmac_key(source) {
        return Options::new([
            ("type", "s3"),
            ("path", &path),
            ("s3-provider", "GCS"),
            ("s3-access-key-id", access_id),
            ("s3-secret-access-key", key),
            ("s3-endpoint", gcs_endpoint(source)),
        ])
        .some("s3-region", source.region.as_deref());
    }
    // rclone's plugin takes options by the type's short name alone: with the long one it refuses them.
    Options::new([("type", "gcs"), ("path", &path)])
        .some("gcs-service-account-file", source.service_account_file.as_deref())
        .some("gcs-service-account-credentials", source.service_account_credentials.as_deref())
        .some("gcs-access-token", source.access_token.as_deref())
}

fn gcs_by_mountpoint(source: &Gcs) -> Options {
    Options::new([("bucket", source.bucket.as_str()), ("endpoint_url", gcs_endpoint(source))])
        .some("access_key_id", source.access_id.as_deref())
        .some("secret_access_key", source.secret_access_key.as_deref())
        .some("region", source.region.as_deref())
        .some("prefix", source.prefix.as_deref())
}

fn r2(source: &R2) -> Result<Options> {
    source.check_key()?;
    Ok(Options::new([
        ("type", "s3"),
        ("path", &source.bucket),
        ("s3-provider", "Cloudflare"),
        ("s3-endpoint", &r2_endpoint(source)),
    ])
    .some("s3-access-key-id", source.access_key_id.as_deref())
    .some("s3-secret-access-key", source.secret_access_key.as_deref()))
}

fn s3_by_rclone(source: &S3) -> Options {
    let path = join_remote_path(&source.bucket, source.prefix.as_deref());
    Options::new([("type", "s3"), ("s3-provider", &source.s3_provider), ("path", &path)])
        .some("s3-access-key-id", source.access_key_id.as_deref())
        .some("s3-secret-access-key", source.secret_access_key.as_deref())
        .some("s3-session-token", source.session_token.as_deref())
        .some("s3-endpoint", source.endpoint_url.as_deref())
        .some("s3-region", source.region.as_deref())
}

fn s3_by_mountpoint(source: &S3) -> Options {
    Options::new([("bucket", &source.bucket)])
        .some("access_key_id", source.access_key_id.as_deref())
        .some("secret_access_key", source.secret_access_key.as_deref())
        .some("session_token", source.session_token.as_deref())
        .some("endpoint_url", source.endpoint_url.as_deref())
        .some("region", source.region.as_deref())
        .some("prefix", source.prefix.as_deref())
}
