//! The programs that can mount storage inside a sandbox, and their settings.

use indexmap::IndexMap;
use serde_json::Value;

use crate::Result;
use crate::error::raise;
use crate::lax::{Checked, Choice, Dump, FromInput, Input, Object};
use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;

/// A program that mounts inside the sandbox, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum MountPattern {
    /// blobfuse2.
    Fuse(Box<FusePattern>),
    /// Mountpoint for Amazon S3.
    Mountpoint(MountpointOptions),
    /// rclone.
    Rclone(RclonePattern),
    /// The mount helper of Amazon S3 Files.
    S3Files(S3FilesOptions),
}

/// Which program, without its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the same as in MountPattern")]
pub enum PatternKind {
    Fuse,
    Mountpoint,
    Rclone,
    S3Files,
}

impl PatternKind {
    /// The word under `type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Mountpoint => "mountpoint",
            Self::Rclone => "rclone",
            Self::S3Files => "s3files",
        }
    }
}

impl MountPattern {
    /// Folders of the workspace that its program keeps for itself.
    pub(crate) fn scratch_folders(&self) -> Vec<PosixPath> {
        match self {
            Self::Fuse(pattern) => {
                let usual = || PosixPath::new(".sandbox-blobfuse-cache");
                vec![pattern.cache_path.clone().unwrap_or_else(usual)]
            }
            Self::Rclone(_) | Self::Mountpoint(_) | Self::S3Files(_) => Vec::new(),
        }
    }

    /// Which program.
    #[must_use]
    pub fn kind(&self) -> PatternKind {
        match self {
            Self::Fuse(_) => PatternKind::Fuse,
            Self::Mountpoint(_) => PatternKind::Mountpoint,
            Self::Rclone(_) => PatternKind::Rclone,
            Self::S3Files(_) => PatternKind::S3Files,
        }
    }
}

impl FromInput for MountPattern {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        const PATTERNS: &[Choice<MountPattern>] = &[
            ("fuse", |input| {
                FusePattern::from_input(input).map(|pattern| MountPattern::Fuse(Box::new(pattern)))
            }),
            ("mountpoint", |input| {
                let mut fields = input.fields("MountpointMountPattern")?;
                fields.accept("type");
                let options = fields.or_default("options");
                fields.build(|| Some(MountPattern::Mountpoint(options?)))
            }),
            ("rclone", |input| RclonePattern::from_input(input).map(MountPattern::Rclone)),
            ("s3files", |input| {
                let mut fields = input.fields("S3FilesMountPattern")?;
                fields.accept("type");
                let options = fields.or_default("options");
                fields.build(|| Some(MountPattern::S3Files(options?)))
            }),
        ];
        input.tagged("type", PATTERNS)
    }
}

impl Dump for MountPattern {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("type", self.kind().as_str())?;
        match self {
            Self::Fuse(pattern) => pattern.put_fields(&mut out)?,
            Self::Mountpoint(options) => out.put("options", options)?,
            Self::Rclone(pattern) => pattern.put_fields(&mut out)?,
            Self::S3Files(options) => out.put("options", options)?,
        }
        Ok(out.into())
    }
}

/// Settings of blobfuse2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusePattern {
    /// Whether users other than the one who mounts may enter.
    pub allow_other: bool,
    /// Where it logs.
    pub log_type: String,
    /// How much it logs.
    pub log_level: String,
    /// How it caches.
    pub cache_type: BlobfuseCache,
    /// Where it caches, relative to the workspace's root.
    pub cache_path: Option<PosixPath>,
    /// How much it caches; nothing or 0 is the usual size of the kind of cache.
    pub cache_size_mb: Option<i128>,
    /// The size of a block, of a block cache.
    pub block_cache_block_size_mb: i128,
    /// How long blocks stay on disk, of a block cache.
    pub block_cache_disk_timeout_sec: i128,
    /// How long files stay, of a file cache.
    pub file_cache_timeout_sec: i128,
    /// How much a file cache holds; nothing or 0 is `cache_size_mb`.
    pub file_cache_max_size_mb: Option<i128>,
    /// How long attributes are believed.
    pub attr_cache_timeout_sec: Option<i128>,
    /// How long names are believed.
    pub entry_cache_timeout_sec: Option<i128>,
    /// How long the absence of names is believed.
    pub negative_entry_cache_timeout_sec: Option<i128>,
}

/// How blobfuse2 caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlobfuseCache {
    /// Blocks of files.
    Block,
    /// Whole files.
    File,
}

impl BlobfuseCache {
    const WORDS: [(&'static str, Self); 2] =
        [("block_cache", Self::Block), ("file_cache", Self::File)];

    /// The word under `cache_type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block_cache",
            Self::File => "file_cache",
        }
    }
}

impl Default for FusePattern {
    fn default() -> Self {
        Self {
            allow_other: true,
            log_type: "syslog".to_owned(),
            log_level: "log_debug".to_owned(),
            cache_type: BlobfuseCache::Block,
            cache_path: None,
            cache_size_mb: None,
            block_cache_block_size_mb: 16,
            block_cache_disk_timeout_sec: 3600,
            file_cache_timeout_sec: 120,
            file_cache_max_size_mb: None,
            attr_cache_timeout_sec: None,
            entry_cache_timeout_sec: None,
            negative_entry_cache_timeout_sec: None,
        }
    }
}

impl FusePattern {
    /// Checks that the cache stays inside the workspace.
    ///
    /// # Errors
    ///
    /// `MountConfigError` if it is absolute or climbs.
    pub fn check(&self) -> Result<()> {
        let Some(path) = &self.cache_path else {
            return Ok(());
        };
        let windows = WindowsPath::absolute(&path.to_string());
        if windows.is_none() && !path.is_absolute() && !path.climbs() {
            return Ok(());
        }
        let shown = windows.map_or_else(|| path.to_string(), |windows| windows.to_posix());
        Err(raise::mount_config("blobfuse cache_path must be relative to the workspace root")
            .with_context("cache_path", shown))
    }

    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("allow_other", &self.allow_other)?;
        out.put("log_type", &self.log_type)?;
        out.put("log_level", &self.log_level)?;
        out.put("cache_type", self.cache_type.as_str())?;
        out.put("cache_path", &self.cache_path)?;
        out.put("cache_size_mb", &self.cache_size_mb)?;
        out.put("block_cache_block_size_mb", &self.block_cache_block_size_mb)?;
        out.put("block_cache_disk_timeout_sec", &self.block_cache_disk_timeout_sec)?;
        out.put("file_cache_timeout_sec", &self.file_cache_timeout_sec)?;
        out.put("file_cache_max_size_mb", &self.file_cache_max_size_mb)?;
        out.put("attr_cache_timeout_sec", &self.attr_cache_timeout_sec)?;
        out.put("entry_cache_timeout_sec", &self.entry_cache_timeout_sec)?;
        out.put("negative_entry_cache_timeout_sec", &self.negative_entry_cache_timeout_sec)
    }
}

impl FromInput for FusePattern {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let usual = Self::default();
        let mut fields = input.fields("FuseMountPattern")?;
        fields.accept("type");
        let allow_other = fields.or("allow_other", usual.allow_other);
        let log_type = fields.or("log_type", usual.log_type);
        let log_level = fields.or("log_level", usual.log_level);
        let cache_type = fields
            .or_with("cache_type", usual.cache_type, |input| input.one_of(&BlobfuseCache::WORDS));
        let cache_path = fields.or_default("cache_path");
        let cache_size_mb = fields.or_default("cache_size_mb");
        let block_size = fields.or("block_cache_block_size_mb", usual.block_cache_block_size_mb);
        let disk_timeout =
            fields.or("block_cache_disk_timeout_sec", usual.block_cache_disk_timeout_sec);
        let file_timeout = fields.or("file_cache_timeout_sec", usual.file_cache_timeout_sec);
        let file_max_size = fields.or_default("file_cache_max_size_mb");
        let attr_timeout = fields.or_default("attr_cache_timeout_sec");
        let entry_timeout = fields.or_default("entry_cache_timeout_sec");
        let negative_timeout = fields.or_default("negative_entry_cache_timeout_sec");
        let pattern = fields.build(|| {
            Some(Self {
                allow_other: allow_other?,
                log_type: log_type?,
                log_level: log_level?,
                cache_type: cache_type?,
                cache_path: cache_path?,
                cache_size_mb: cache_size_mb?,
                block_cache_block_size_mb: block_size?,
                block_cache_disk_timeout_sec: disk_timeout?,
                file_cache_timeout_sec: file_timeout?,
                file_cache_max_size_mb: file_max_size?,
                attr_cache_timeout_sec: attr_timeout?,
                entry_cache_timeout_sec: entry_timeout?,
                negative_entry_cache_timeout_sec: negative_timeout?,
            })
        })?;
        pattern.check().map_err(|error| input.raise(error))?;
        Ok(pattern)
    }
}

/// Settings of Mountpoint for Amazon S3, used where the storage does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountpointOptions {
    /// Only what is below this prefix.
    pub prefix: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The address of the service.
    pub endpoint_url: Option<String>,
}

impl FromInput for MountpointOptions {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.data_fields("MountpointOptions")?;
        let prefix = fields.or_default("prefix");
        let region = fields.or_default("region");
        let endpoint_url = fields.or_default("endpoint_url");
        fields
            .build(|| Some(Self { prefix: prefix?, region: region?, endpoint_url: endpoint_url? }))
    }
}

impl Dump for MountpointOptions {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("prefix", &self.prefix)?;
        out.put("region", &self.region)?;
        out.put("endpoint_url", &self.endpoint_url)?;
        Ok(out.into())
    }
}

/// Settings of rclone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RclonePattern {
    /// How the storage is attached.
    pub mode: RcloneMode,
    /// The remote's name in rclone's configuration; made up where it is not given.
    pub remote_name: Option<String>,
    /// More arguments.
    pub extra_args: Vec<String>,
    /// Where an NFS server listens.
    pub nfs_addr: Option<String>,
    /// Options of the NFS mount.
    pub nfs_mount_options: Option<Vec<String>>,
    /// A configuration file in the sandbox.
    pub config_file_path: Option<PosixPath>,
}

/// How rclone attaches storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RcloneMode {
    /// As a FUSE file system.
    #[default]
    Fuse,
    /// Through an NFS server.
    Nfs,
}

impl RcloneMode {
    const WORDS: [(&'static str, Self); 2] = [("fuse", Self::Fuse), ("nfs", Self::Nfs)];

    /// The word under `mode`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Nfs => "nfs",
        }
    }
}

impl RclonePattern {
    fn put_fields(&self, out: &mut Object) -> Result<()> {
        out.put("mode", self.mode.as_str())?;
        out.put("remote_name", &self.remote_name)?;
        out.put("extra_args", &self.extra_args)?;
        out.put("nfs_addr", &self.nfs_addr)?;
        out.put("nfs_mount_options", &self.nfs_mount_options)?;
        out.put("config_file_path", &self.config_file_path)
    }
}

impl FromInput for RclonePattern {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("RcloneMountPattern")?;
        fields.accept("type");
        let mode =
            fields.or_with("mode", RcloneMode::Fuse, |input| input.one_of(&RcloneMode::WORDS));
        let remote_name = fields.or_default("remote_name");
        let extra_args = fields.or_default("extra_args");
        let nfs_addr = fields.or_default("nfs_addr");
        let nfs_mount_options = fields.or_default("nfs_mount_options");
        let config_file_path = fields.or_default("config_file_path");
        fields.build(|| {
            Some(Self {
                mode: mode?,
                remote_name: remote_name?,
                extra_args: extra_args?,
                nfs_addr: nfs_addr?,
                nfs_mount_options: nfs_mount_options?,
                config_file_path: config_file_path?,
            })
        })
    }
}

/// Settings of the mount helper of Amazon S3 Files, used where the storage does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct S3FilesOptions {
    /// The address of the mount target.
    pub mount_target_ip: Option<String>,
    /// The access point.
    pub access_point: Option<String>,
    /// The region of the file system.
    pub region: Option<String>,
    /// More mount options; one without a value is a flag.
    pub extra_options: IndexMap<String, Option<String>>,
}

impl FromInput for S3FilesOptions {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.data_fields("S3FilesOptions")?;
        let mount_target_ip = fields.or_default("mount_target_ip");
        let access_point = fields.or_default("access_point");
        let region = fields.or_default("region");
        let extra_options = fields.or_default("extra_options");
        fields.build(|| {
            Some(Self {
                mount_target_ip: mount_target_ip?,
                access_point: access_point?,
                region: region?,
                extra_options: extra_options?,
            })
        })
    }
}

impl Dump for S3FilesOptions {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("mount_target_ip", &self.mount_target_ip)?;
        out.put("access_point", &self.access_point)?;
        out.put("region", &self.region)?;
        out.put("extra_options", &self.extra_options)?;
        Ok(out.into())
    }
}
