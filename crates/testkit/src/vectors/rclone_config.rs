//! Area `rclone_config`: what mounting programs and volume drivers are configured with.

use bastide_model::docker;
use bastide_model::error::raise;
use bastide_model::lax::{self, Dump};
use bastide_model::manifest::DEFAULT_ROOT;
use bastide_model::mount::{
    MountConfig, RclonePattern, join_remote_path, supplement_rclone_config, url_authority_values,
    url_holds_authority,
};
use bastide_model::{Entry, Manifest, Mount, PosixPath, Result, redact_secrets};
use serde_json::{Value, json};
use uuid::Uuid;

use super::case::malformed;
use super::paths::Disk;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("build_mount_config", build_mount_config),
    ("docker_volume_driver_config", docker_volume_driver_config),
    ("docker_volume_name", docker_volume_name),
    ("docker_volume_mounts", docker_volume_mounts),
    ("docker_privileges", docker_privileges),
    ("docker_validate_path_grants", docker_validate_path_grants),
    ("supplement_rclone_config_text", supplement_rclone_config_text),
    ("resolve_remote_name", resolve_remote_name),
    ("join_remote_path", |case| {
        Ok(join_remote_path(case.text("root")?, case.optional_text("prefix")?).into())
    }),
    ("redact_sensitive_values", |case| {
        Ok(redact_secrets(case.text("text")?, case.texts("values")?).into())
    }),
    ("url_contains_inline_authority", url_contains_inline_authority),
    ("inline_url_authority_values", |case| {
        Ok(case.get("value").as_str().map(url_authority_values).unwrap_or_default().into())
    }),
];

/// The session of cases that do not name one.
pub(crate) const SESSION: Uuid = Uuid::from_u128(0x1234_5678_1234_5678_1234_5678_1234_5678);

/// The session of a case.
pub(crate) fn session(case: &Case<'_>) -> Result<Uuid> {
    let session = case.optional_text("session_id")?.map(Uuid::parse_str).transpose();
    let session = session.map_err(|_| malformed("session_id", "a UUID"))?;
    Ok(session.unwrap_or(SESSION))
}

/// Runs `then` with the mount of a case.
pub(crate) fn with_mount(
    case: &Case<'_>,
    then: impl FnOnce(&Mount) -> Result<Value>,
) -> Result<Value> {
    let entry: Entry = lax::read(case.get("mount"))?;
    then(entry.as_mount().ok_or_else(|| malformed("mount", "a mount"))?)
}

fn manifest(case: &Case<'_>) -> Result<Manifest> {
    lax::read(case.get("manifest"))
}

fn build_mount_config(case: &Case<'_>) -> Result<Value> {
    with_mount(case, |mount| {
        let config = mount.in_container_config(session(case)?)?;
        let config = config.ok_or_else(|| malformed("mount", "a mount inside the sandbox"))?;
        let text = match case.flag("include_config_text", true)? {
            true => config_text(case, &config)?,
            false => None,
        };
        show_config(&config, text)
    })
}

fn config_text(case: &Case<'_>, config: &MountConfig) -> Result<Option<String>> {
    let MountConfig::Rclone(rclone) = config else { return Ok(None) };
    let text = match config.file_to_read(&PosixPath::new(DEFAULT_ROOT)) {
        Some(path) => match case.get("files").get(path.as_str()).and_then(Value::as_str) {
            Some(content) => rclone.text_from_file(&path, content.as_bytes())?,
            None => return Err(raise::workspace_read_not_found(path)),
        },
        None => rclone.text(),
    };
    Ok(Some(text.to_string()))
}

fn show_config(config: &MountConfig, text: Option<String>) -> Result<Value> {
    let (class, config) = match config {
        MountConfig::Blobfuse(config) => (
            "FuseMountConfig",
            json!({
                "account": config.account,
                "container": config.container,
                "endpoint": config.endpoint,
                "identity_client_id": config.identity_client_id,
                "account_key": config.account_key.dump()?,
                "mount_type": config.mount_type,
                "read_only": config.read_only,
            }),
        ),
        MountConfig::Mountpoint(config) => (
            "MountpointMountConfig",
            json!({
                "bucket": config.bucket,
                "access_key_id": config.access_key_id,
                "secret_access_key": config.secret_access_key.dump()?,
                "session_token": config.session_token.dump()?,
                "prefix": config.prefix,
                "region": config.region,
                "endpoint_url": config.endpoint_url,
                "mount_type": config.mount_type,
                "read_only": config.read_only,
            }),
        ),
        MountConfig::Rclone(config) => (
            "RcloneMountConfig",
            json!({
                "remote_name": config.remote_name,
                "remote_path": config.remote_path,
                "remote_kind": config.remote_kind,
                "mount_type": config.mount_type,
                "config_text": text,
                "read_only": config.read_only,
            }),
        ),
        MountConfig::S3Files(config) => (
            "S3FilesMountConfig",
            json!({
                "file_system_id": config.file_system_id,
                "subpath": config.subpath,
                "mount_target_ip": config.mount_target_ip,
                "access_point": config.access_point,
                "region": config.region,
                "extra_options": config.extra_options.dump()?,
                "mount_type": config.mount_type,
                "read_only": config.read_only,
            }),
        ),
    };
    Ok(json!({ "class": class, "config": config }))
}

fn docker_volume_driver_config(case: &Case<'_>) -> Result<Value> {
    with_mount(case, |mount| match mount.volume_driver()? {
        Some(driver) => Ok(json!({
            "driver": driver.driver,
            "options": driver.options.dump()?,
            "read_only": driver.read_only,
        })),
        None => Ok(Value::Null),
    })
}

fn docker_volume_name(case: &Case<'_>) -> Result<Value> {
    let session = match case.get("session_id") {
        Value::Null => None,
        _ => Some(session(case)?),
    };
    Ok(docker::volume_name(session, &PosixPath::new(case.text("mount_path")?)).into())
}

fn docker_volume_mounts(case: &Case<'_>) -> Result<Value> {
    docker::container_mounts(&manifest(case)?, Some(session(case)?), &Disk)?.dump()
}

fn docker_privileges(case: &Case<'_>) -> Result<Value> {
    let manifest = manifest(case)?;
    let fuse = docker::requires_fuse(&manifest)?;
    Ok(json!({"fuse": fuse, "sys_admin": docker::requires_sys_admin(&manifest)?}))
}

fn docker_validate_path_grants(case: &Case<'_>) -> Result<Value> {
    docker::check_path_grants(&manifest(case)?, &Disk)?;
    Ok(Value::Null)
}

fn supplement_rclone_config_text(case: &Case<'_>) -> Result<Value> {
    let lines = case.texts("required_lines")?;
    let settings = lines.get(1..).unwrap_or_default().join("\n");
    let (text, name) = (case.text("config_text")?, case.text("remote_name")?);
    Ok(supplement_rclone_config(text, name, &settings, case.optional_text("mount_type")?)?.into())
}

fn resolve_remote_name(case: &Case<'_>) -> Result<Value> {
    let remote_name = case.optional_text("remote_name")?.map(str::to_owned);
    let pattern = RclonePattern { remote_name, ..RclonePattern::default() };
    let (session, kind) = (case.text("session_id")?, case.text("remote_kind")?);
    Ok(pattern.remote_name_for(session, kind, case.optional_text("mount_type")?)?.into())
}

fn url_contains_inline_authority(case: &Case<'_>) -> Result<Value> {
    Ok(match case.get("value") {
        Value::Null => false,
        Value::String(url) => url_holds_authority(url),
        _ => true,
    }
    .into())
}
