//! How rclone reaches the storage of each provider.

use super::rclone::join_remote_path;
use super::source::{AzureBlob, BoxFolder, BoxSubType, Gcs, MountSource, R2, S3};
use crate::secret::Secret;

/// Where Google Cloud Storage speaks like S3.
pub(super) const GCS_ENDPOINT: &str = "https://storage.googleapis.com";

/// A remote of rclone that has no name yet.
pub(super) struct Remote {
    /// What sort of remote it is; part of names that are made up.
    pub(super) kind: &'static str,
    /// The path in it.
    pub(super) path: String,
    settings: Settings,
}

impl Remote {
    /// The remote of this storage, where rclone knows its provider.
    pub(super) fn of(source: &MountSource) -> Option<Self> {
        match source {
            MountSource::AzureBlob(source) => Some(azure_blob(source)),
            MountSource::Box(source) => Some(box_folder(source)),
            MountSource::Gcs(source) => Some(gcs(source)),
            MountSource::R2(source) => Some(r2(source)),
            MountSource::S3(source) => Some(s3(source)),
            MountSource::S3Files(_) | MountSource::Custom(_) => None,
        }
    }

    /// The lines of its section, without the header.
    pub(super) fn settings(self) -> Secret {
        Secret::from(self.settings.0.join("\n"))
    }
}

/// The lines of a section; values are written as they are, because rclone knows no quotes.
struct Settings(Vec<String>);

impl Settings {
    fn new(remote_type: &str) -> Self {
        let mut settings = Self(Vec::new());
        settings.put("type", remote_type);
        settings
    }

    fn put(&mut self, key: &str, value: &str) {
        self.0.push(format!("{key} = {value}"));
    }

    fn put_some(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }
}

/// A value that is there and not empty.
pub(super) fn filled(value: Option<&str>) -> Option<&str> {
    value.filter(|value| !value.is_empty())
}

fn azure_blob(source: &AzureBlob) -> Remote {
    let mut settings = Settings::new("azureblob");
    settings.put("account", &source.account);
    settings.put_some("endpoint", filled(source.endpoint.as_deref()));
    let key = filled(source.account_key.as_deref());
    match (key, filled(source.identity_client_id.as_deref())) {
        (Some(key), _) => settings.put("key", key),
        (None, Some(identity)) => {
            settings.put("use_msi", "true");
            settings.put("msi_client_id", identity);
        }
        (None, None) => settings.put("use_msi", "false"),
    }
    Remote { kind: "azureblob", path: source.container.clone(), settings }
}

fn box_folder(source: &BoxFolder) -> Remote {
    let mut settings = Settings::new("box");
    settings.put_some("client_id", source.client_id.as_deref());
    settings.put_some("client_secret", source.client_secret.as_deref());
    settings.put_some("access_token", source.access_token.as_deref());
    settings.put_some("token", source.token.as_deref());
    settings.put_some("box_config_file", source.box_config_file.as_deref());
    settings.put_some("config_credentials", source.config_credentials.as_deref());
    if source.box_sub_type != BoxSubType::User {
        settings.put("box_sub_type", source.box_sub_type.as_str());
    }
    settings.put_some("root_folder_id", source.root_folder_id.as_deref());
    settings.put_some("impersonate", source.impersonate.as_deref());
    settings.put_some("owned_by", source.owned_by.as_deref());
    Remote { kind: "box", path: box_path(source), settings }
}

/// The folder as rclone and volume drivers want it.
pub(super) fn box_path(source: &BoxFolder) -> String {
    source.path.as_deref().unwrap_or_default().trim_start_matches('/').to_owned()
}

/// The HMAC key of a bucket, with which it is reached the way S3 is.
pub(super) fn gcs_hmac_key(source: &Gcs) -> Option<(&str, &str)> {
    source.access_id.as_deref().zip(source.secret_access_key.as_deref())
}

fn gcs(source: &Gcs) -> Remote {
    let path = join_remote_path(&source.bucket, source.prefix.as_deref());
    let Some((access_id, key)) = gcs_hmac_key(source) else {
        return Remote { kind: "gcs", path, settings: native_gcs(source) };
    };
    let mut settings = Settings::new("s3");
    settings.put("provider", "GCS");
    settings.put("env_auth", "false");
    settings.put("access_key_id", access_id);
    settings.put("secret_access_key", key);
    settings.put("endpoint", filled(source.endpoint_url.as_deref()).unwrap_or(GCS_ENDPOINT));
    settings.put_some("region", filled(source.region.as_deref()));
    Remote { kind: "gcs_s3", path, settings }
}

fn native_gcs(source: &Gcs) -> Settings {
    let credentials = [
        ("service_account_file", filled(source.service_account_file.as_deref())),
        ("service_account_credentials", filled(source.service_account_credentials.as_deref())),
        ("access_token", filled(source.access_token.as_deref())),
    ];
    let mut settings = Settings::new("google cloud storage");
    for (key, value) in credentials {
        settings.put_some(key, value);
    }
    if credentials.iter().all(|(_, value)| value.is_none()) {
        settings.put("anonymous", "true");
    }
    settings.put("env_auth", "false");
    settings
}

/// The address of an account's buckets.
pub(super) fn r2_endpoint(source: &R2) -> String {
    match filled(source.custom_domain.as_deref()) {
        Some(domain) => domain.to_owned(),
        None => format!("https://{}.r2.cloudflarestorage.com", source.account_id),
    }
}

fn r2(source: &R2) -> Remote {
    let mut settings = Settings::new("s3");
    settings.put("provider", "Cloudflare");
    settings.put("endpoint", &r2_endpoint(source));
    settings.put("acl", "private");
    put_s3_keys(
        &mut settings,
        source.access_key_id.as_deref(),
        source.secret_access_key.as_deref(),
        None,
    );
    Remote { kind: "r2", path: source.bucket.clone(), settings }
}

fn s3(source: &S3) -> Remote {
    let mut settings = Settings::new("s3");
    settings.put("provider", &source.s3_provider);
    settings.put_some("endpoint", source.endpoint_url.as_deref());
    settings.put_some("region", source.region.as_deref());
    put_s3_keys(
        &mut settings,
        source.access_key_id.as_deref(),
        source.secret_access_key.as_deref(),
        source.session_token.as_deref(),
    );
    let path = join_remote_path(&source.bucket, source.prefix.as_deref());
    Remote { kind: "s3", path, settings }
}

/// Without a whole key, requests are anonymous: what lies around in the sandbox is never used.
fn put_s3_keys(settings: &mut Settings, id: Option<&str>, key: Option<&str>, token: Option<&str>) {
    settings.put("env_auth", "false");
    if let (Some(id), Some(key)) = (filled(id), filled(key)) {
        settings.put("access_key_id", id);
        settings.put("secret_access_key", key);
        settings.put_some("session_token", filled(token));
    }
}
