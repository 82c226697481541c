//! The storage of each provider.

use indexmap::IndexMap;

use super::pattern::PatternKind;
use crate::Result;
use crate::custom::Custom;
use crate::lax::Object;
use crate::secret::Secret;

/// What is mounted.
#[derive(Debug, Clone, PartialEq)]
pub enum MountSource {
    /// A container of Azure Blob Storage.
    AzureBlob(AzureBlob),
    /// A folder of Box.
    Box(BoxFolder),
    /// A bucket of Google Cloud Storage.
    Gcs(Gcs),
    /// A bucket of Cloudflare R2.
    R2(R2),
    /// A bucket of Amazon S3, or of something that speaks like it.
    S3(S3),
    /// A file system of Amazon S3 Files.
    S3Files(S3Files),
    /// Storage of the program's own.
    Custom(CustomMount),
}

/// Storage of a program's own, and how it can be mounted.
#[derive(Debug, Clone, PartialEq)]
pub struct CustomMount {
    /// The program's value.
    pub value: Custom,
    /// The programs that can mount it inside the sandbox.
    pub patterns: Vec<PatternKind>,
    /// The volume drivers that can mount it.
    pub drivers: Vec<&'static str>,
}

impl MountSource {
    /// The word under `type`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match self {
            Self::AzureBlob(_) => "azure_blob_mount",
            Self::Box(_) => "box_mount",
            Self::Gcs(_) => "gcs_mount",
            Self::R2(_) => "r2_mount",
            Self::S3(_) => "s3_mount",
            Self::S3Files(_) => "s3_files_mount",
            Self::Custom(custom) => custom.value.type_name(),
        }
    }

    /// The programs that can mount it inside the sandbox.
    #[must_use]
    pub fn patterns(&self) -> &[PatternKind] {
        match self {
            Self::AzureBlob(_) => &[PatternKind::Rclone, PatternKind::Fuse],
            Self::Box(_) | Self::R2(_) => &[PatternKind::Rclone],
            Self::Gcs(_) | Self::S3(_) => &[PatternKind::Rclone, PatternKind::Mountpoint],
            Self::S3Files(_) => &[PatternKind::S3Files],
            Self::Custom(custom) => &custom.patterns,
        }
    }

    /// The volume drivers that can mount it.
    #[must_use]
    pub fn drivers(&self) -> &[&'static str] {
        match self {
            Self::AzureBlob(_) | Self::Box(_) | Self::R2(_) => &["rclone"],
            Self::Gcs(_) | Self::S3(_) => &["mountpoint", "rclone"],
            Self::S3Files(_) => &[],
            Self::Custom(custom) => &custom.drivers,
        }
    }

    /// Whether a program of the host can mount it.
    #[must_use]
    pub fn has_host_strategy(&self) -> bool {
        matches!(self, Self::AzureBlob(_) | Self::Gcs(_) | Self::R2(_) | Self::S3(_))
    }

    /// The text under the name of a field; nothing of storage of the program's own.
    pub(super) fn text(&self, field: &str) -> Option<&str> {
        match self {
            Self::AzureBlob(source) => source.text(field),
            Self::Box(source) => source.text(field),
            Self::Gcs(source) => source.text(field),
            Self::R2(source) => source.text(field),
            Self::S3(source) => source.text(field),
            Self::S3Files(_) | Self::Custom(_) => None,
        }
    }

    pub(super) fn put_fields(&self, out: &mut Object) -> Result<()> {
        match self {
            Self::AzureBlob(source) => source.put_fields(out),
            Self::Box(source) => source.put_fields(out),
            Self::Gcs(source) => source.put_fields(out),
            Self::R2(source) => source.put_fields(out),
            Self::S3(source) => source.put_fields(out),
            Self::S3Files(source) => source.put_fields(out),
            Self::Custom(custom) => {
                out.extend(custom.value.tagged_fields()?.into_map());
                Ok(())
            }
        }
    }
}

/// A container of Azure Blob Storage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AzureBlob {
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
}

impl AzureBlob {
    fn text(&self, field: &str) -> Option<&str> {
        match field {
            "account" => Some(&self.account),
            "container" => Some(&self.container),
            "endpoint" => self.endpoint.as_deref(),
            "identity_client_id" => self.identity_client_id.as_deref(),
            "account_key" => self.account_key.as_deref(),
            _ => None,
        }
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("account", &self.account)?;
        out.put("container", &self.container)?;
        out.put("endpoint", &self.endpoint)?;
        out.put("identity_client_id", &self.identity_client_id)?;
        out.put("account_key", &self.account_key)
    }
}

/// A folder of Box.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoxFolder {
    /// The folder; nothing is all of them.
    pub path: Option<String>,
    /// The application's id.
    pub client_id: Option<String>,
    /// The application's secret.
    pub client_secret: Option<Secret>,
    /// A token that was minted elsewhere.
    pub access_token: Option<Secret>,
    /// A token that rclone can renew.
    pub token: Option<Secret>,
    /// A file with the application's configuration.
    pub box_config_file: Option<String>,
    /// The application's configuration itself.
    pub config_credentials: Option<Secret>,
    /// Who the application acts as.
    pub box_sub_type: BoxSubType,
    /// The folder that counts as the root.
    pub root_folder_id: Option<String>,
    /// The user to act as.
    pub impersonate: Option<String>,
    /// Only what this user owns.
    pub owned_by: Option<String>,
}

/// Who a Box application acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BoxSubType {
    /// One user.
    #[default]
    User,
    /// The enterprise.
    Enterprise,
}

impl BoxSubType {
    pub(super) const WORDS: [(&'static str, Self); 2] =
        [("user", Self::User), ("enterprise", Self::Enterprise)];

    /// The word under `box_sub_type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Enterprise => "enterprise",
        }
    }
}

impl BoxFolder {
    fn text(&self, field: &str) -> Option<&str> {
        match field {
            "path" => self.path.as_deref(),
            "client_id" => self.client_id.as_deref(),
            "client_secret" => self.client_secret.as_deref(),
            "access_token" => self.access_token.as_deref(),
            "token" => self.token.as_deref(),
            "box_config_file" => self.box_config_file.as_deref(),
            "config_credentials" => self.config_credentials.as_deref(),
            "root_folder_id" => self.root_folder_id.as_deref(),
            "impersonate" => self.impersonate.as_deref(),
            "owned_by" => self.owned_by.as_deref(),
            _ => None,
        }
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("path", &self.path)?;
        out.put("client_id", &self.client_id)?;
        out.put("client_secret", &self.client_secret)?;
        out.put("access_token", &self.access_token)?;
        out.put("token", &self.token)?;
        out.put("box_config_file", &self.box_config_file)?;
        out.put("config_credentials", &self.config_credentials)?;
        out.put("box_sub_type", self.box_sub_type.as_str())?;
        out.put("root_folder_id", &self.root_folder_id)?;
        out.put("impersonate", &self.impersonate)?;
        out.put("owned_by", &self.owned_by)
    }
}

/// A bucket of Google Cloud Storage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Gcs {
    /// The bucket.
    pub bucket: String,
    /// The id of an HMAC key.
    pub access_id: Option<String>,
    /// The HMAC key.
    pub secret_access_key: Option<Secret>,
    /// Only what is below this prefix.
    pub prefix: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The address of the service.
    pub endpoint_url: Option<String>,
    /// A file in the sandbox with a service account's credentials.
    pub service_account_file: Option<String>,
    /// A service account's credentials.
    pub service_account_credentials: Option<Secret>,
    /// A token that was minted elsewhere.
    pub access_token: Option<Secret>,
}

impl Gcs {
    fn text(&self, field: &str) -> Option<&str> {
        match field {
            "bucket" => Some(&self.bucket),
            "access_id" => self.access_id.as_deref(),
            "secret_access_key" => self.secret_access_key.as_deref(),
            "prefix" => self.prefix.as_deref(),
            "region" => self.region.as_deref(),
            "endpoint_url" => self.endpoint_url.as_deref(),
            "service_account_file" => self.service_account_file.as_deref(),
            "service_account_credentials" => self.service_account_credentials.as_deref(),
            "access_token" => self.access_token.as_deref(),
            _ => None,
        }
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("bucket", &self.bucket)?;
        out.put("access_id", &self.access_id)?;
        out.put("secret_access_key", &self.secret_access_key)?;
        out.put("prefix", &self.prefix)?;
        out.put("region", &self.region)?;
        out.put("endpoint_url", &self.endpoint_url)?;
        out.put("service_account_file", &self.service_account_file)?;
        out.put("service_account_credentials", &self.service_account_credentials)?;
        out.put("access_token", &self.access_token)
    }
}

/// A bucket of Cloudflare R2.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct R2 {
    /// The bucket.
    pub bucket: String,
    /// The account, which is part of the service's address.
    pub account_id: String,
    /// The id of an access key.
    pub access_key_id: Option<String>,
    /// The access key.
    pub secret_access_key: Option<Secret>,
    /// The address of the service, where it is not the account's usual one.
    pub custom_domain: Option<String>,
}

impl R2 {
    fn text(&self, field: &str) -> Option<&str> {
        match field {
            "bucket" => Some(&self.bucket),
            "account_id" => Some(&self.account_id),
            "access_key_id" => self.access_key_id.as_deref(),
            "secret_access_key" => self.secret_access_key.as_deref(),
            "custom_domain" => self.custom_domain.as_deref(),
            _ => None,
        }
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("bucket", &self.bucket)?;
        out.put("account_id", &self.account_id)?;
        out.put("access_key_id", &self.access_key_id)?;
        out.put("secret_access_key", &self.secret_access_key)?;
        out.put("custom_domain", &self.custom_domain)
    }
}

/// A bucket of Amazon S3, or of something that speaks like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3 {
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
    /// rclone's word for who provides the service.
    pub s3_provider: String,
}

impl S3 {
    pub(super) const USUAL_PROVIDER: &'static str = "AWS";

    /// A bucket of Amazon S3, without credentials.
    #[must_use]
    pub fn new(bucket: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            prefix: None,
            region: None,
            endpoint_url: None,
            s3_provider: Self::USUAL_PROVIDER.to_owned(),
        }
    }

    fn text(&self, field: &str) -> Option<&str> {
        match field {
            "bucket" => Some(&self.bucket),
            "access_key_id" => self.access_key_id.as_deref(),
            "secret_access_key" => self.secret_access_key.as_deref(),
            "session_token" => self.session_token.as_deref(),
            "prefix" => self.prefix.as_deref(),
            "region" => self.region.as_deref(),
            "endpoint_url" => self.endpoint_url.as_deref(),
            "s3_provider" => Some(&self.s3_provider),
            _ => None,
        }
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("bucket", &self.bucket)?;
        out.put("access_key_id", &self.access_key_id)?;
        out.put("secret_access_key", &self.secret_access_key)?;
        out.put("session_token", &self.session_token)?;
        out.put("prefix", &self.prefix)?;
        out.put("region", &self.region)?;
        out.put("endpoint_url", &self.endpoint_url)?;
        out.put("s3_provider", &self.s3_provider)
    }
}

/// A file system of Amazon S3 Files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct S3Files {
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
}

impl S3Files {
    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("file_system_id", &self.file_system_id)?;
        out.put("subpath", &self.subpath)?;
        out.put("mount_target_ip", &self.mount_target_ip)?;
        out.put("access_point", &self.access_point)?;
        out.put("region", &self.region)?;
        out.put("extra_options", &self.extra_options)
    }
}

impl From<AzureBlob> for MountSource {
    fn from(source: AzureBlob) -> Self {
        Self::AzureBlob(source)
    }
}

impl From<BoxFolder> for MountSource {
    fn from(source: BoxFolder) -> Self {
        Self::Box(source)
    }
}

impl From<Gcs> for MountSource {
    fn from(source: Gcs) -> Self {
        Self::Gcs(source)
    }
}

impl From<R2> for MountSource {
    fn from(source: R2) -> Self {
        Self::R2(source)
    }
}

impl From<S3> for MountSource {
    fn from(source: S3) -> Self {
        Self::S3(source)
    }
}

impl From<S3Files> for MountSource {
    fn from(source: S3Files) -> Self {
        Self::S3Files(source)
    }
}
