//! What is known of the fields of mounts: which ones grant access, which ones may reach a sandbox,
//! and by which means.
//!
//! Whatever is not in these tables is unknown, and unknown is never trusted.

/// What is known of the storage of one provider.
#[derive(Debug)]
pub(super) struct SourceRules {
    /// The word under `type`.
    pub(super) mount_type: &'static str,
    /// Its own fields; every mount has [`COMMON_FIELDS`], too.
    pub(super) fields: &'static [&'static str],
    /// Fields that grant access; some are names rather than secrets.
    pub(super) authority: &'static [&'static str],
    /// Those of them that name a file.
    pub(super) files: &'static [&'static str],
    /// Fields that hold an address.
    pub(super) urls: &'static [&'static str],
    /// Fields that become lines of rclone's configuration, in its order.
    pub(super) rclone_lines: &'static [&'static str],
    /// Fields that become options of s3fs.
    pub(super) s3fs_options: &'static [&'static str],
    /// A key of several fields.
    pub(super) key: Option<KeyRule>,
}

/// A key of several fields: where one of `parts` is given, all of `required` must be.
#[derive(Debug)]
pub(super) struct KeyRule {
    pub(super) parts: &'static [&'static str],
    pub(super) required: &'static [&'static str],
}

/// The fields of every mount.
pub(super) const COMMON_FIELDS: &[&str] = &[
    "type",
    "description",
    "ephemeral",
    "group",
    "is_dir",
    "permissions",
    "mount_path",
    "read_only",
    "mount_strategy",
];

const NOTHING: SourceRules = SourceRules {
    mount_type: "",
    fields: &[],
    authority: &[],
    files: &[],
    urls: &[],
    rclone_lines: &[],
    s3fs_options: &[],
    key: None,
};

const SOURCES: &[SourceRules] = &[
    SourceRules {
        mount_type: "azure_blob_mount",
        fields: &["account", "container", "endpoint", "identity_client_id", "account_key"],
        authority: &["identity_client_id", "account_key"],
        urls: &["endpoint"],
        rclone_lines: &["account", "endpoint", "identity_client_id", "account_key"],
        ..NOTHING
    },
    SourceRules {
        mount_type: "box_mount",
        fields: &[
            "path",
            "client_id",
            "client_secret",
            "access_token",
            "token",
            "box_config_file",
            "config_credentials",
            "box_sub_type",
            "root_folder_id",
            "impersonate",
            "owned_by",
        ],
        authority: &[
            "client_secret",
            "access_token",
            "token",
            "box_config_file",
            "config_credentials",
        ],
        files: &["box_config_file"],
        rclone_lines: &[
            "client_id",
            "client_secret",
            "access_token",
            "token",
            "box_config_file",
            "config_credentials",
            "root_folder_id",
            "impersonate",
            "owned_by",
        ],
        ..NOTHING
    },
    SourceRules {
        mount_type: "gcs_mount",
        fields: &[
            "bucket",
            "access_id",
            "secret_access_key",
            "prefix",
            "region",
            "endpoint_url",
            "service_account_file",
            "service_account_credentials",
            "access_token",
        ],
        authority: &[
            "access_id",
            "secret_access_key",
            "service_account_file",
            "service_account_credentials",
            "access_token",
        ],
        files: &["service_account_file"],
        urls: &["endpoint_url"],
        rclone_lines: &[
            "access_id",
            "secret_access_key",
            "region",
            "endpoint_url",
            "service_account_file",
            "service_account_credentials",
            "access_token",
        ],
        key: Some(KeyRule {
            parts: &["access_id", "secret_access_key"],
            required: &["access_id", "secret_access_key"],
        }),
        ..NOTHING
    },
    SourceRules {
        mount_type: "r2_mount",
        fields: &["bucket", "account_id", "access_key_id", "secret_access_key", "custom_domain"],
        authority: &["access_key_id", "secret_access_key"],
        urls: &["custom_domain"],
        rclone_lines: &["account_id", "access_key_id", "secret_access_key", "custom_domain"],
        s3fs_options: &["custom_domain", "account_id"],
        key: Some(KeyRule {
            parts: &["access_key_id", "secret_access_key"],
            required: &["access_key_id", "secret_access_key"],
        }),
        ..NOTHING
    },
    SourceRules {
        mount_type: "s3_mount",
        fields: &[
            "bucket",
            "access_key_id",
            "secret_access_key",
            "session_token",
            "prefix",
            "region",
            "endpoint_url",
            "s3_provider",
        ],
        authority: &["access_key_id", "secret_access_key", "session_token"],
        urls: &["endpoint_url"],
        rclone_lines: &[
            "s3_provider",
            "endpoint_url",
            "region",
            "access_key_id",
            "secret_access_key",
            "session_token",
        ],
        s3fs_options: &["endpoint_url", "region"],
        key: Some(KeyRule {
            parts: &["access_key_id", "secret_access_key", "session_token"],
            required: &["access_key_id", "secret_access_key"],
        }),
        ..NOTHING
    },
    SourceRules {
        mount_type: "s3_files_mount",
        fields: &[
            "file_system_id",
            "subpath",
            "mount_target_ip",
            "access_point",
            "region",
            "extra_options",
        ],
        ..NOTHING
    },
    // Storage of a hosted backend that states may mention although nobody here can mount it.
    SourceRules {
        mount_type: "blaxel_drive_mount",
        fields: &["drive_name", "drive_mount_path", "drive_path", "drive_read_only"],
        ..NOTHING
    },
];

/// What is known of a mount with that word.
pub(super) fn source_rules(mount_type: &str) -> Option<&'static SourceRules> {
    SOURCES.iter().find(|rules| rules.mount_type == mount_type)
}

/// The fields of a mount of that type that are keys: what is in them is kept out of everything that is written down.
///
/// ```
/// use bastide_model::mount::key_fields;
///
/// assert!(key_fields("s3_mount").contains(&"secret_access_key"));
/// assert!(!key_fields("s3_mount").contains(&"bucket"));
/// assert!(key_fields("file").is_empty());
/// ```
#[must_use]
pub fn key_fields(mount_type: &str) -> &'static [&'static str] {
    source_rules(mount_type).map_or(&[], |rules| rules.authority)
}

/// Where the program that mounts runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoundaryKind {
    /// Inside the sandbox: what it is told, the sandbox can see.
    InContainer,
    /// Outside: the sandbox sees files and nothing else.
    External,
}

/// What is known of one means of mounting.
#[derive(Debug)]
pub(super) struct StrategyRules {
    /// The word under `type`.
    pub(super) strategy_type: &'static str,
    pub(super) boundary: BoundaryKind,
    /// The only backend that has it.
    pub(super) backend: Option<&'static str>,
    /// Its fields, without `type`.
    pub(super) fields: &'static [&'static str],
    /// Fields whose meaning is somebody else's: the whole of each may grant access.
    pub(super) opaque: &'static [&'static str],
}

const fn hosted(
    strategy_type: &'static str,
    boundary: BoundaryKind,
    backend: &'static str,
    fields: &'static [&'static str],
) -> StrategyRules {
    StrategyRules { strategy_type, boundary, backend: Some(backend), fields, opaque: &[] }
}

const STRATEGIES: &[StrategyRules] = &[
    StrategyRules {
        strategy_type: "in_container",
        boundary: BoundaryKind::InContainer,
        backend: None,
        fields: &["pattern"],
        opaque: &[],
    },
    StrategyRules {
        strategy_type: "docker_volume",
        boundary: BoundaryKind::External,
        backend: Some("docker"),
        fields: &["driver", "driver_options"],
        opaque: &["driver_options"],
    },
    StrategyRules {
        strategy_type: "host",
        boundary: BoundaryKind::External,
        backend: None,
        fields: &["cache_size"],
        opaque: &[],
    },
    hosted("blaxel_cloud_bucket", BoundaryKind::InContainer, "blaxel", &[]),
    hosted("blaxel_drive", BoundaryKind::External, "blaxel", &[]),
    hosted("cloudflare_bucket_mount", BoundaryKind::External, "cloudflare", &[]),
    hosted("daytona_cloud_bucket", BoundaryKind::InContainer, "daytona", &["pattern"]),
    hosted("e2b_cloud_bucket", BoundaryKind::InContainer, "e2b", &["pattern"]),
    StrategyRules {
        strategy_type: "modal_cloud_bucket",
        boundary: BoundaryKind::External,
        backend: Some("modal"),
        fields: &["secret_name", "secret_environment_name"],
        opaque: &["secret_name", "secret_environment_name"],
    },
    hosted("runloop_cloud_bucket", BoundaryKind::InContainer, "runloop", &["pattern"]),
    hosted("vercel_cloud_bucket", BoundaryKind::InContainer, "vercel", &[]),
];

/// What is known of a means of mounting with that word.
pub(super) fn strategy_rules(strategy_type: &str) -> Option<&'static StrategyRules> {
    STRATEGIES.iter().find(|rules| rules.strategy_type == strategy_type)
}

/// The fields of the program with that word, without `type`.
pub(super) fn pattern_fields(pattern_type: &str) -> Option<&'static [&'static str]> {
    Some(match pattern_type {
        "fuse" => &[
            "allow_other",
            "log_type",
            "log_level",
            "cache_type",
            "cache_path",
            "cache_size_mb",
            "block_cache_block_size_mb",
            "block_cache_disk_timeout_sec",
            "file_cache_timeout_sec",
            "file_cache_max_size_mb",
            "attr_cache_timeout_sec",
            "entry_cache_timeout_sec",
            "negative_entry_cache_timeout_sec",
        ],
        "mountpoint" | "s3files" => &["options"],
        "rclone" => &[
            "mode",
            "remote_name",
            "extra_args",
            "nfs_addr",
            "nfs_mount_options",
            "config_file_path",
        ],
        _ => return None,
    })
}

/// The fields of the `options` of the program with that word.
pub(super) fn option_fields(pattern_type: &str) -> &'static [&'static str] {
    match pattern_type {
        "mountpoint" => &["prefix", "region", "endpoint_url"],
        "s3files" => &["mount_target_ip", "access_point", "region", "extra_options"],
        _ => &[],
    }
}

/// What a combination of storage, means and program may let the sandbox see.
#[derive(Debug)]
pub(super) struct Capability {
    strategies: &'static [&'static str],
    mount_type: &'static str,
    pattern_type: Option<&'static str>,
    /// Fields that are good for the mount only.
    pub(super) mount_scoped: &'static [&'static str],
    /// Fields that are good for more.
    pub(super) broad: &'static [&'static str],
    /// Whether the program finds credentials by itself, without being told any.
    pub(super) discovers: bool,
    /// One of these is needed, because nobody could answer the program's questions.
    pub(super) needs_one_of: &'static [&'static str],
}

pub(super) const REMOTE_NAME: &str = "mount_strategy.pattern.remote_name";
pub(super) const CONFIG_FILE: &str = "mount_strategy.pattern.config_file_path";
pub(super) const EXTRA_ARGS: &str = "mount_strategy.pattern.extra_args";
pub(super) const OPTIONS_ENDPOINT: &str = "mount_strategy.pattern.options.endpoint_url";
pub(super) const OPTIONS_EXTRA: &str = "mount_strategy.pattern.options.extra_options";

const BY_RCLONE: &[&str] =
    &["in_container", "daytona_cloud_bucket", "e2b_cloud_bucket", "runloop_cloud_bucket"];
const IN_CONTAINER: &[&str] = &["in_container"];
const S3_KEY: &[&str] = &["access_key_id", "secret_access_key", "session_token"];

const fn capability(
    strategies: &'static [&'static str],
    mount_type: &'static str,
    pattern_type: Option<&'static str>,
    mount_scoped: &'static [&'static str],
    broad: &'static [&'static str],
) -> Capability {
    let (discovers, needs_one_of) = (false, [].as_slice());
    Capability {
        strategies,
        mount_type,
        pattern_type,
        mount_scoped,
        broad,
        discovers,
        needs_one_of,
    }
}

const CAPABILITIES: &[Capability] = &[
    capability(BY_RCLONE, "s3_mount", Some("rclone"), S3_KEY, &[CONFIG_FILE]),
    capability(
        BY_RCLONE,
        "r2_mount",
        Some("rclone"),
        &["access_key_id", "secret_access_key"],
        &[CONFIG_FILE],
    ),
    capability(
        BY_RCLONE,
        "gcs_mount",
        Some("rclone"),
        &["access_id", "secret_access_key", "service_account_credentials", "access_token"],
        &["service_account_file", CONFIG_FILE],
    ),
    capability(
        BY_RCLONE,
        "azure_blob_mount",
        Some("rclone"),
        &["account_key"],
        &["identity_client_id", CONFIG_FILE],
    ),
    Capability {
        needs_one_of: &["access_token", "token", "config_credentials", "box_config_file"],
        ..capability(
            BY_RCLONE,
            "box_mount",
            Some("rclone"),
            &["client_secret", "access_token", "token", "config_credentials"],
            &["box_config_file", CONFIG_FILE],
        )
    },
    capability(IN_CONTAINER, "s3_mount", Some("mountpoint"), S3_KEY, &[]),
    capability(
        IN_CONTAINER,
        "gcs_mount",
        Some("mountpoint"),
        &["access_id", "secret_access_key"],
        &[],
    ),
    Capability {
        discovers: true,
        ..capability(
            IN_CONTAINER,
            "azure_blob_mount",
            Some("fuse"),
            &["account_key"],
            &["identity_client_id"],
        )
    },
    Capability {
        discovers: true,
        ..capability(
            IN_CONTAINER,
            "s3_files_mount",
            Some("s3files"),
            &[],
            &["extra_options", OPTIONS_EXTRA],
        )
    },
    capability(&["vercel_cloud_bucket", "blaxel_cloud_bucket"], "s3_mount", None, S3_KEY, &[]),
    capability(
        &["blaxel_cloud_bucket"],
        "r2_mount",
        None,
        &["access_key_id", "secret_access_key"],
        &[],
    ),
    capability(
        &["blaxel_cloud_bucket"],
        "gcs_mount",
        None,
        &["access_id", "secret_access_key", "service_account_credentials"],
        &[],
    ),
];

/// What this combination may let the sandbox see, if anything is known of it.
pub(super) fn capability_of(
    mount_type: &str,
    strategy_type: &str,
    pattern_type: Option<&str>,
) -> Option<&'static Capability> {
    CAPABILITIES.iter().find(|capability| {
        capability.strategies.contains(&strategy_type)
            && capability.mount_type == mount_type
            && capability.pattern_type == pattern_type
    })
}
