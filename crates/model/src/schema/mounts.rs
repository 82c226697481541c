//! Mounts, their strategies and their patterns.

use serde_json::{Value, json};

use super::build::{Fields, flag, integer, list, map, nothing_or, reference, text, word, words};
use super::{entry, one_of_types};

pub(super) fn definitions() -> Vec<(&'static str, Value)> {
    vec![
        ("key_reference", key_reference()),
        ("mount_strategy", one_of_types(&["in_container", "docker_volume", "host"])),
        ("in_container", in_container()),
        ("docker_volume", docker_volume()),
        ("host", host()),
        ("mount_pattern", one_of_types(&["fuse", "mountpoint", "rclone", "s3files"])),
        ("fuse", fuse()),
        ("mountpoint", mountpoint()),
        ("rclone", rclone()),
        ("s3files", s3files()),
        ("azure_blob_mount", azure_blob_mount()),
        ("box_mount", box_mount()),
        ("gcs_mount", gcs_mount()),
        ("r2_mount", r2_mount()),
        ("s3_mount", s3_mount()),
        ("s3_files_mount", s3_files_mount()),
    ]
}

fn key_reference() -> Value {
    let from = json!({"type": "string", "pattern": "^(env|file):."});
    Fields::new("Where a key is, so that it need not stand in the manifest.")
        .required("from", from, "`env:NAME` of whoever runs it, or `file:PATH`.")
        .build()
}

fn in_container() -> Value {
    Fields::new("Mounted by a program inside the sandbox.")
        .required("type", word("in_container"), "The sort of strategy.")
        .required("pattern", reference("mount_pattern"), "The program and its settings.")
        .build()
}

fn docker_volume() -> Value {
    Fields::new("Mounted by a volume driver of the container engine.")
        .required("type", word("docker_volume"), "The sort of strategy.")
        .required("driver", text(), "The driver, such as `rclone`.")
        .optional(
            "driver_options",
            map(text()),
            json!({}),
            "Options for the driver, which win over the ones made from the storage.",
        )
        .build()
}

fn host() -> Value {
    Fields::new("Mounted by a program of the host, which alone knows the keys.")
        .required("type", word("host"), "The sort of strategy.")
        .maybe_integer(
            "cache_size",
            "How many bytes of disk the cache of the home may take; nothing is 4 GiB.",
        )
        .build()
}

fn fuse() -> Value {
    Fields::new("blobfuse2.")
        .required("type", word("fuse"), "The program.")
        .optional("allow_other", flag(), true, "Whether other users may enter.")
        .optional("log_type", text(), "syslog", "Where it logs.")
        .optional("log_level", text(), "log_debug", "How much it logs.")
        .optional(
            "cache_type",
            words(&["block_cache", "file_cache"]),
            "block_cache",
            "Whether blocks or whole files are cached.",
        )
        .maybe_text("cache_path", "Where it caches, relative to the workspace's root.")
        .maybe_integer("cache_size_mb", "How much it caches; nothing or 0 is the usual size.")
        .optional("block_cache_block_size_mb", integer(), 16, "The size of a block.")
        .optional("block_cache_disk_timeout_sec", integer(), 3600, "How long blocks stay on disk.")
        .optional("file_cache_timeout_sec", integer(), 120, "How long files stay.")
        .maybe_integer(
            "file_cache_max_size_mb",
            "How much a file cache holds; nothing or 0 is `cache_size_mb`.",
        )
        .maybe_integer("attr_cache_timeout_sec", "How long attributes are believed.")
        .maybe_integer("entry_cache_timeout_sec", "How long names are believed.")
        .maybe_integer(
            "negative_entry_cache_timeout_sec",
            "How long the absence of names is believed.",
        )
        .build()
}

fn mountpoint() -> Value {
    let options = Fields::new("Used where the storage does not say.")
        .maybe_text("prefix", "Only what is below this prefix.")
        .maybe_text("region", "The region of the bucket.")
        .maybe_text("endpoint_url", "The address of the service.")
        .build();
    let usual = json!({"prefix": null, "region": null, "endpoint_url": null});
    Fields::new("Mountpoint for Amazon S3.")
        .required("type", word("mountpoint"), "The program.")
        .optional("options", options, usual, "Its settings.")
        .build()
}

fn rclone() -> Value {
    Fields::new("rclone.")
        .required("type", word("rclone"), "The program.")
        .optional("mode", words(&["fuse", "nfs"]), "fuse", "How the storage is attached.")
        .maybe_text("remote_name", "The remote's name in rclone's configuration.")
        .optional("extra_args", list(text()), json!([]), "More arguments.")
        .maybe_text("nfs_addr", "Where an NFS server listens.")
        .optional(
            "nfs_mount_options",
            nothing_or(list(text())),
            Value::Null,
            "Options of the NFS mount.",
        )
        .maybe_text("config_file_path", "A configuration file in the sandbox.")
        .build()
}

fn extra_options() -> Value {
    map(nothing_or(text()))
}

fn s3files() -> Value {
    let options = Fields::new("Used where the storage does not say.")
        .maybe_text("mount_target_ip", "The address of the mount target.")
        .maybe_text("access_point", "The access point.")
        .maybe_text("region", "The region of the file system.")
        .optional("extra_options", extra_options(), json!({}), "More mount options.")
        .build();
    let usual = json!({
        "mount_target_ip": null,
        "access_point": null,
        "region": null,
        "extra_options": {},
    });
    Fields::new("The mount helper of Amazon S3 Files.")
        .required("type", word("s3files"), "The program.")
        .optional("options", options, usual, "Its settings.")
        .build()
}

/// The fields of every mount.
fn mount(kind: &str, about: &str) -> Fields {
    entry(kind, about, true, true)
        .maybe_text("mount_path", "Where it appears, if not at its own path.")
        .optional("read_only", flag(), true, "Whether it can only be read.")
        .required("mount_strategy", reference("mount_strategy"), "By which means it is mounted.")
}

fn azure_blob_mount() -> Value {
    mount("azure_blob_mount", "A container of Azure Blob Storage.")
        .required("account", text(), "The storage account.")
        .required("container", text(), "The container.")
        .maybe_text("endpoint", "The address of the service, if not the usual one.")
        .maybe_key("identity_client_id", "The managed identity to use.")
        .maybe_key("account_key", "The key of the account.")
        .build()
}

fn box_mount() -> Value {
    mount("box_mount", "A folder of Box.")
        .maybe_text("path", "The folder; nothing is all of them.")
        .maybe_text("client_id", "The application's id.")
        .maybe_key("client_secret", "The application's secret.")
        .maybe_key("access_token", "A token that was minted elsewhere.")
        .maybe_key("token", "A token that rclone can renew.")
        .maybe_key("box_config_file", "A file with the application's configuration.")
        .maybe_key("config_credentials", "The application's configuration itself.")
        .optional(
            "box_sub_type",
            words(&["user", "enterprise"]),
            "user",
            "Who the application acts as.",
        )
        .maybe_text("root_folder_id", "The folder that counts as the root.")
        .maybe_text("impersonate", "The user to act as.")
        .maybe_text("owned_by", "Only what this user owns.")
        .build()
}

fn gcs_mount() -> Value {
    mount("gcs_mount", "A bucket of Google Cloud Storage.")
        .required("bucket", text(), "The bucket.")
        .maybe_key("access_id", "The id of an HMAC key.")
        .maybe_key("secret_access_key", "The HMAC key.")
        .maybe_text("prefix", "Only what is below this prefix.")
        .maybe_text("region", "The region of the bucket.")
        .maybe_text("endpoint_url", "The address of the service.")
        .maybe_key("service_account_file", "A file with a service account's credentials.")
        .maybe_key("service_account_credentials", "A service account's credentials.")
        .maybe_key("access_token", "A token that was minted elsewhere.")
        .build()
}

fn r2_mount() -> Value {
    mount("r2_mount", "A bucket of Cloudflare R2.")
        .required("bucket", text(), "The bucket.")
        .required("account_id", text(), "The account.")
        .maybe_key("access_key_id", "The id of an access key.")
        .maybe_key("secret_access_key", "The access key.")
        .maybe_text("custom_domain", "The address of the service, if not the usual one.")
        .build()
}

fn s3_mount() -> Value {
    mount("s3_mount", "A bucket of Amazon S3, or of something that speaks like it.")
        .required("bucket", text(), "The bucket.")
        .maybe_key("access_key_id", "The id of an access key.")
        .maybe_key("secret_access_key", "The access key.")
        .maybe_key("session_token", "The token of temporary credentials.")
        .maybe_text("prefix", "Only what is below this prefix.")
        .maybe_text("region", "The region of the bucket.")
        .maybe_text("endpoint_url", "The address of the service.")
        .optional("s3_provider", text(), "AWS", "rclone's word for who provides the service.")
        .build()
}

fn s3_files_mount() -> Value {
    mount("s3_files_mount", "A file system of Amazon S3 Files.")
        .required("file_system_id", text(), "The file system.")
        .maybe_text("subpath", "Only what is below this folder.")
        .maybe_text("mount_target_ip", "The address of the mount target.")
        .maybe_text("access_point", "The access point.")
        .maybe_text("region", "The region of the file system.")
        .optional("extra_options", extra_options(), json!({}), "More mount options.")
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::key_fields;

    #[test]
    fn lets_keys_and_nothing_else_be_references() {
        let all = definitions();
        let mounts = all.iter().filter(|(name, _)| name.ends_with("_mount"));
        let mut found = 0;
        for (name, schema) in mounts {
            for (field, about) in schema["properties"].as_object().unwrap() {
                let refers = about["anyOf"][1]["$ref"] == "#/$defs/key_reference";
                assert_eq!(refers, key_fields(name).contains(&field.as_str()), "{name}.{field}");
                found += usize::from(refers);
            }
        }
        assert!(found > 10, "{found}");
    }
}
