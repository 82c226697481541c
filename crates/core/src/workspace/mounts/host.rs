//! What the mount program on the host is configured with, and which of its errors may be shown.

use bastide_model::manifest::MountTarget;
use bastide_model::mount::{
    AzureBlob, Gcs, MountSource, MountStrategy, R2, S3, url_holds_authority,
};
use bastide_model::{Error, Secret, redact_secrets};
use serde_json::{Value, json};

use crate::backend::HostMount;
use crate::compat::raise;
use crate::{Condition, ErrorKind, Result};

/// The mount as the backend is asked for it.
pub(super) fn host_mount(target: &MountTarget<'_>) -> Result<HostMount> {
    let MountStrategy::Host { cache_size } = &target.mount.strategy else {
        return Err(raise::mount_config("the mount is not one of the host's").with_safe_message());
    };
    refuse_keys_in_urls(&target.mount.source)?;
    let (provider, source, prefix) = match &target.mount.source {
        MountSource::S3(source) => ("s3", s3(source), source.prefix.as_deref()),
        MountSource::R2(source) => ("r2", r2(source), None),
        MountSource::Gcs(source) => ("gcs", gcs(source), source.prefix.as_deref()),
        MountSource::AzureBlob(source) => ("azure_blob", azure_blob(source), None),
        MountSource::Box(_) | MountSource::S3Files(_) | MountSource::Custom(_) => {
            let message = "no program of the host mounts this mount type";
            return Err(raise::mount_config(message)
                .with_context("mount_type", target.mount.type_name())
                .with_safe_message());
        }
    };
    let store = json!({"source": source, "prefix": prefix.unwrap_or_default()});
    let mut mount = HostMount::new(target.path.normalized().as_str(), provider, store);
    if !target.mount.read_only {
        mount = mount.writable();
    }
    if let Some(size) = cache_size {
        let size = u64::try_from(*size).map_err(|_| {
            raise::mount_config("the cache_size of a mount is a number of bytes")
                .with_safe_message()
        })?;
        mount = mount.cache_size(size);
    }
    Ok(mount)
}

/// An address is told wherever something goes wrong with it, so no key may be in it.
fn refuse_keys_in_urls(source: &MountSource) -> Result<()> {
    let (field, url) = match source {
        MountSource::S3(source) => ("endpoint_url", source.endpoint_url.as_deref()),
        MountSource::R2(source) => ("custom_domain", source.custom_domain.as_deref()),
        MountSource::Gcs(source) => ("endpoint_url", source.endpoint_url.as_deref()),
        MountSource::AzureBlob(source) => ("endpoint", source.endpoint.as_deref()),
        MountSource::Box(_) | MountSource::S3Files(_) | MountSource::Custom(_) => return Ok(()),
    };
    if !url.is_some_and(url_holds_authority) {
        return Ok(());
    }
    let message = format!("{field} of a mount by the host has a user, a password or a query in it");
    Err(raise::mount_config(message).with_safe_message().with_hint("keys have fields of their own"))
}

fn keys(id: Option<&str>, key: Option<&Secret>, token: Option<&Secret>) -> Value {
    match (id, key) {
        (Some(id), Some(key)) => json!({
            "access_key_id": id,
            "secret_access_key": &**key,
            "session_token": token.map(|token| &**token),
        }),
        _ => Value::Null,
    }
}

fn s3(source: &S3) -> Value {
    let keys = keys(
        source.access_key_id.as_deref(),
        source.secret_access_key.as_ref(),
        source.session_token.as_ref(),
    );
    json!({
        "type": "s3", "bucket": source.bucket, "region": source.region,
        "endpoint": source.endpoint_url, "keys": keys,
    })
}

fn r2(source: &R2) -> Value {
    let keys = keys(source.access_key_id.as_deref(), source.secret_access_key.as_ref(), None);
    json!({
        "type": "r2", "bucket": source.bucket, "account_id": source.account_id,
        "custom_domain": source.custom_domain, "keys": keys,
    })
}

fn gcs(source: &Gcs) -> Value {
    let keys = keys(source.access_id.as_deref(), source.secret_access_key.as_ref(), None);
    let auth = match (keys, &source.service_account_credentials, &source.access_token) {
        (Value::Null, Some(key), _) => json!({"type": "service_account", "key": &**key}),
        (Value::Null, None, Some(token)) => json!({"type": "access_token", "token": &**token}),
        (Value::Null, None, None) => json!({"type": "anonymous"}),
        (keys, ..) => json!({"type": "hmac", "keys": keys}),
    };
    json!({
        "type": "gcs", "bucket": source.bucket, "endpoint": source.endpoint_url,
        "region": source.region, "auth": auth,
    })
}

fn azure_blob(source: &AzureBlob) -> Value {
    let auth = match (&source.account_key, &source.identity_client_id) {
        (Some(key), _) => json!({"type": "key", "key": &**key}),
        (None, Some(client)) => json!({"type": "managed_identity", "client_id": client}),
        (None, None) => json!({"type": "anonymous"}),
    };
    json!({
        "type": "azure_blob", "account": source.account, "container": source.container,
        "endpoint": source.endpoint, "auth": auth,
    })
}

/// Why a store cannot be mounted, in the backend's words, which are ours, without any key of this mount: it may be shown.
pub(super) fn mount_error(error: Error, target: &MountTarget<'_>) -> Error {
    told("cannot mount", error, target)
}

/// The same of unmounting. What is unmounted and not stored says what became of it.
pub(super) fn unmount_error(error: Error, target: &MountTarget<'_>) -> Error {
    let condition = error.condition().cloned();
    let doing = match &condition {
        Some(Condition::MountNotStored) => "not everything is stored of",
        _ => "cannot unmount",
    };
    let told = told(doing, error, target);
    match condition {
        Some(condition) => told.with_condition(condition),
        None => told,
    }
}

fn told(doing: &str, error: Error, target: &MountTarget<'_>) -> Error {
    let secrets = target.mount.authority_values();
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    let text = format!("{}{hint}", error.message());
    let text = redact_secrets(&text, secrets);
    let (kind, path) = (target.mount.type_name(), target.path.normalized());
    let message = format!("{doing} the {kind} at {path}: {text}");
    match error.kind() {
        ErrorKind::Unsupported | ErrorKind::InvalidInput => raise::mount_config(message),
        _ => raise::mount_command("host", None).with_message(message),
    }
    .with_safe_message()
}

#[cfg(test)]
mod tests {
    use bastide_model::{Entry, Manifest, Mount};

    use super::*;

    #[test]
    fn tells_the_program_what_the_manifest_says() {
        let source = S3 {
            access_key_id: Some("AKID".to_owned()),
            secret_access_key: Some(Secret::from("hidden")),
            prefix: Some("a/b".to_owned()),
            ..S3::new("data")
        };
        let mut manifest = Manifest::default();
        let mount = Mount::new(source, MountStrategy::Host { cache_size: Some(1024) });
        manifest.entries.insert("m".to_owned(), Entry::mount(mount).unwrap());
        let targets = manifest.mount_targets().unwrap();
        let asked = host_mount(&targets[0]).unwrap();
        assert_eq!((asked.path.as_str(), asked.provider.as_str()), ("/workspace/m", "s3"));
        assert_eq!((asked.cache_size, asked.read_only), (1024, true));
        assert_eq!(asked.store["prefix"], "a/b");
        assert_eq!(asked.store["source"]["keys"]["secret_access_key"], "hidden");
        let error =
            mount_error(Error::new(ErrorKind::Io, "no hidden word"), &targets[0]).redacted();
        assert!(error.message().ends_with("no REDACTED word"), "{error}");
        let unstored =
            Error::new(ErrorKind::Io, "in /kept").with_condition(Condition::MountNotStored);
        let error = unmount_error(unstored, &targets[0]);
        assert_eq!(error.condition(), Some(&Condition::MountNotStored));
        assert!(error.message().starts_with("not everything is stored of"), "{error}");
        let error = unmount_error(Error::new(ErrorKind::Io, "busy"), &targets[0]);
        assert!(error.message().starts_with("cannot unmount"), "{error}");
    }

    #[test]
    fn refuses_keys_in_addresses_without_telling_them() {
        let endpoint_url = Some("http://user:hidden@127.0.0.1:9".to_owned());
        let source = MountSource::S3(S3 { endpoint_url, ..S3::new("data") });
        let error = refuse_keys_in_urls(&source).unwrap_err();
        assert!(error.message().contains("endpoint_url"), "{error}");
        assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        assert!(refuse_keys_in_urls(&MountSource::S3(S3::new("data"))).is_ok());
    }
}
