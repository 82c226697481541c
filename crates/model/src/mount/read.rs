//! Mounts out of JSON.

use super::Mount;
use super::source::{AzureBlob, BoxFolder, BoxSubType, Gcs, MountSource, R2, S3, S3Files};
use crate::entry::{Entry, EntryFields, EntryKind, EntryShape};
use crate::lax::{Checked, Fields, Input};
use crate::permissions::Permissions;

/// Reads a mount whose storage `source` reads: what the reader of a sort of mount calls.
///
/// # Errors
///
/// Field errors, or `MountConfigError` if the storage cannot be mounted by its strategy.
pub fn mount<S: Into<MountSource>>(
    input: Input<'_>,
    model: &str,
    source: impl FnOnce(&mut Fields<'_>) -> Option<S>,
) -> Checked<Entry> {
    let mut fields = input.fields(model)?;
    let common = EntryFields::read_with(&mut fields, EntryShape::Folder, true);
    let mount_path = fields.or_default("mount_path");
    let read_only = fields.or("read_only", true);
    let strategy = fields.required("mount_strategy");
    let source = source(&mut fields);
    let mut entry = fields.build(|| {
        let mount = Mount {
            mount_path: mount_path?,
            read_only: read_only?,
            strategy: strategy?,
            source: source?.into(),
        };
        Some(common?.entry(EntryKind::Mount(Box::new(mount))))
    })?;
    settle_permissions(input, &mut entry.permissions);
    if let Some(mount) = entry.as_mount() {
        mount.check().map_err(|error| input.raise(error))?;
    }
    Ok(entry)
}

/// Nobody can enforce permissions on storage elsewhere; the ones a manifest asks for are reset.
fn settle_permissions(input: Input<'_>, permissions: &mut Permissions) {
    let usual = Permissions { directory: true, ..Permissions::of_entries() };
    let digits =
        |permissions: &Permissions| [permissions.owner, permissions.group, permissions.other];
    if digits(permissions) != digits(&usual) {
        input.warn(
            "the permissions of a mount are not enforced and were reset; grant access at the \
             storage's provider instead",
        );
    }
    *permissions = usual;
}

pub(crate) fn azure_blob(input: Input<'_>) -> Checked<Entry> {
    mount(input, "AzureBlobMount", |fields| {
        let account = fields.required("account");
        let container = fields.required("container");
        let endpoint = fields.or_default("endpoint");
        let identity_client_id = fields.or_default("identity_client_id");
        let account_key = fields.or_default("account_key");
        Some(AzureBlob {
            account: account?,
            container: container?,
            endpoint: endpoint?,
            identity_client_id: identity_client_id?,
            account_key: account_key?,
        })
    })
}

pub(crate) fn box_folder(input: Input<'_>) -> Checked<Entry> {
    mount(input, "BoxMount", |fields| {
        let path = fields.or_default("path");
        let client_id = fields.or_default("client_id");
        let client_secret = fields.or_default("client_secret");
        let access_token = fields.or_default("access_token");
        let token = fields.or_default("token");
        let box_config_file = fields.or_default("box_config_file");
        let config_credentials = fields.or_default("config_credentials");
        let box_sub_type = fields
            .or_with("box_sub_type", BoxSubType::User, |input| input.one_of(&BoxSubType::WORDS));
        let root_folder_id = fields.or_default("root_folder_id");
        let impersonate = fields.or_default("impersonate");
        let owned_by = fields.or_default("owned_by");
        Some(BoxFolder {
            path: path?,
            client_id: client_id?,
            client_secret: client_secret?,
            access_token: access_token?,
            token: token?,
            box_config_file: box_config_file?,
            config_credentials: config_credentials?,
            box_sub_type: box_sub_type?,
            root_folder_id: root_folder_id?,
            impersonate: impersonate?,
            owned_by: owned_by?,
        })
    })
}

pub(crate) fn gcs(input: Input<'_>) -> Checked<Entry> {
    mount(input, "GCSMount", |fields| {
        let bucket = fields.required("bucket");
        let access_id = fields.or_default("access_id");
        let secret_access_key = fields.or_default("secret_access_key");
        let prefix = fields.or_default("prefix");
        let region = fields.or_default("region");
        let endpoint_url = fields.or_default("endpoint_url");
        let service_account_file = fields.or_default("service_account_file");
        let service_account_credentials = fields.or_default("service_account_credentials");
        let access_token = fields.or_default("access_token");
        Some(Gcs {
            bucket: bucket?,
            access_id: access_id?,
            secret_access_key: secret_access_key?,
            prefix: prefix?,
            region: region?,
            endpoint_url: endpoint_url?,
            service_account_file: service_account_file?,
            service_account_credentials: service_account_credentials?,
            access_token: access_token?,
        })
    })
}

pub(crate) fn r2(input: Input<'_>) -> Checked<Entry> {
    mount(input, "R2Mount", |fields| {
        let bucket = fields.required("bucket");
        let account_id = fields.required("account_id");
        let access_key_id = fields.or_default("access_key_id");
        let secret_access_key = fields.or_default("secret_access_key");
        let custom_domain = fields.or_default("custom_domain");
        Some(R2 {
            bucket: bucket?,
            account_id: account_id?,
            access_key_id: access_key_id?,
            secret_access_key: secret_access_key?,
            custom_domain: custom_domain?,
        })
    })
}

pub(crate) fn s3(input: Input<'_>) -> Checked<Entry> {
    mount(input, "S3Mount", |fields| {
        let bucket = fields.required("bucket");
        let access_key_id = fields.or_default("access_key_id");
        let secret_access_key = fields.or_default("secret_access_key");
        let session_token = fields.or_default("session_token");
        let prefix = fields.or_default("prefix");
        let region = fields.or_default("region");
        let endpoint_url = fields.or_default("endpoint_url");
        let s3_provider = fields.or("s3_provider", S3::USUAL_PROVIDER.to_owned());
        Some(S3 {
            bucket: bucket?,
            access_key_id: access_key_id?,
            secret_access_key: secret_access_key?,
            session_token: session_token?,
            prefix: prefix?,
            region: region?,
            endpoint_url: endpoint_url?,
            s3_provider: s3_provider?,
        })
    })
}

pub(crate) fn s3_files(input: Input<'_>) -> Checked<Entry> {
    mount(input, "S3FilesMount", |fields| {
        let file_system_id = fields.required("file_system_id");
        let subpath = fields.or_default("subpath");
        let mount_target_ip = fields.or_default("mount_target_ip");
        let access_point = fields.or_default("access_point");
        let region = fields.or_default("region");
        let extra_options = fields.or_default("extra_options");
        Some(S3Files {
            file_system_id: file_system_id?,
            subpath: subpath?,
            mount_target_ip: mount_target_ip?,
            access_point: access_point?,
            region: region?,
            extra_options: extra_options?,
        })
    })
}
