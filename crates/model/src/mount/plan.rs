//! What has to be done in a sandbox so that storage appears at a path, and goes away again: as data,
//! for whoever can do it.

mod blobfuse;
mod mountpoint;
mod rclone;
mod s3_files;

use std::time::Duration;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::config::MountConfig;
use super::{Mount, MountPattern, MountStrategy, RcloneMode};
use crate::error::raise;
use crate::manifest::Manifest;
use crate::paths::{PathUse, WorkspacePathPolicy};
use crate::posix_path::PosixPath;
use crate::secret::{Secret, redact_secrets};
use crate::{Error, Result};

/// The session in which something is mounted.
#[derive(Debug, Clone, Copy)]
pub struct MountSite<'a> {
    /// Its manifest, with what the program lets the sandbox see.
    pub manifest: &'a Manifest,
    /// Its name.
    pub session_id: Uuid,
    /// The word of its backend.
    pub backend: &'a str,
    /// Whether the backend has volume drivers that mount before the session starts.
    pub has_volumes: bool,
}

/// Steps, in their order. What was done before a step that fails is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountPlan {
    /// The steps.
    pub steps: Vec<MountStep>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountStep {
    /// Go on only if the sandbox has a program.
    Require(RequiredTool),
    /// Make a folder, and those it is in.
    MakeFolder(PosixPath),
    /// Keep a path of the workspace out of snapshots.
    LeaveOutOfSnapshots(PosixPath),
    /// Write a file that only its owner can read or write: it holds credentials.
    WritePrivateFile {
        /// The file, from the workspace's root.
        path: PosixPath,
        /// What is in it.
        content: Secret,
    },
    /// Run a program that mounts, and fail with [`HelperRun::failed`] if it does.
    Run(HelperRun),
    /// Unmount what is at a path: with the first of these commands that succeeds. Afterwards nothing
    /// may be mounted there; whether that is so is for whoever runs this to check.
    Unmount(Vec<Vec<String>>),
    /// End the programs that serve a remote of this session.
    EndServers {
        /// The name of the remote.
        remote_name: String,
    },
}

/// A program that must be in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredTool {
    /// What errors call it.
    pub tool: &'static str,
    /// How to find out.
    pub check: ToolCheck,
    /// What it is wanted for.
    context: Map<String, Value>,
}

/// How to find out whether a sandbox has a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCheck {
    /// It is on the path, or one of these files.
    Found {
        /// Its name.
        program: &'static str,
        /// Where it also may be.
        or_at: &'static [&'static str],
    },
    /// This command succeeds.
    Succeeds(&'static [&'static str]),
}

impl RequiredTool {
    /// The error if it is not there.
    #[must_use]
    pub fn missing(&self) -> Error {
        raise::mount_tool_missing(self.tool).with_contexts(self.context.clone())
    }
}

/// A run of a program that mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperRun {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// What its environment has beside the session's.
    pub env: Vec<(&'static str, Secret)>,
    /// Whether it keeps running; otherwise it ends when the storage is mounted.
    pub in_background: bool,
    /// How often to try, with a second in between.
    pub attempts: u32,
    /// How long one try may take, where there is a limit of its own.
    pub timeout: Option<Duration>,
    /// What it is run for.
    context: Map<String, Value>,
    is_protected: bool,
}

impl HelperRun {
    fn new(argv: Vec<String>, context: Map<String, Value>) -> Self {
        Self {
            argv,
            env: Vec::new(),
            in_background: false,
            attempts: 1,
            timeout: None,
            context,
            is_protected: false,
        }
    }

    /// The error if it fails, with what it said. Credentials it was given are not in it.
    #[must_use]
    pub fn failed(&self, stderr: &[u8]) -> Error {
        let secrets = || self.env.iter().map(|(_, value)| &**value);
        let command = redact_secrets(&self.argv.join(" "), secrets());
        let stderr = redact_secrets(&String::from_utf8_lossy(stderr), secrets());
        let error =
            raise::mount_command(&command, Some(&stderr)).with_contexts(self.context.clone());
        if self.is_protected { error.with_protection() } else { error }
    }
}

/// A mount that may be mounted, whose plan may still lack a file of the sandbox.
#[derive(Debug)]
pub struct Mounting<'a> {
    mount: &'a Mount,
    site: MountSite<'a>,
    path: PosixPath,
    config: Option<MountConfig>,
    file_to_read: Option<PosixPath>,
}

impl Mount {
    /// Prepares to mount this at `path` (see [`resolve_path`](Self::resolve_path)), once it is sure
    /// that the sandbox may see what the program that mounts is told.
    ///
    /// ```
    /// use bastide_model::mount::{MountPattern, MountSite, MountStep, MountStrategy, S3};
    /// use bastide_model::{Manifest, Mount, PosixPath};
    /// use uuid::Uuid;
    ///
    /// let mountpoint = MountStrategy::in_container(MountPattern::Mountpoint(Default::default()));
    /// let mount = Mount::new(S3::new("data"), mountpoint);
    /// let (manifest, session_id) = (Manifest::default(), Uuid::nil());
    /// let site = MountSite { manifest: &manifest, session_id, backend: "docker", has_volumes: true };
    /// let plan = mount.mounting(site, PosixPath::new("/workspace/data"))?.plan(None)?;
    /// let Some(MountStep::Run(run)) = plan.steps.last() else { unreachable!("it is run last") };
    /// let argv = ["mount-s3", "--no-sign-request", "--read-only", "data", "/workspace/data"];
    /// assert_eq!(run.argv, argv);
    /// # Ok::<(), bastide_model::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`check_boundary`](Self::check_boundary) and
    /// [`in_container_config`](Self::in_container_config). Past the edge of a session errors must be
    /// [redacted](Error::redacted_if).
    pub fn mounting<'a>(&'a self, site: MountSite<'a>, path: PosixPath) -> Result<Mounting<'a>> {
        self.check_boundary(site.manifest, &path, Some(site.backend))?;
        self.check_volume_support(site)?;
        self.prepared(site, path)
    }

    /// Prepares to mount this again after [`detaching`](Self::detaching) it. What a volume driver
    /// mounts was never gone.
    ///
    /// # Errors
    ///
    /// As [`mounting`](Self::mounting).
    pub fn remounting<'a>(&'a self, site: MountSite<'a>, path: PosixPath) -> Result<Mounting<'a>> {
        if !matches!(self.strategy, MountStrategy::DockerVolume { .. }) {
            self.check_boundary(site.manifest, &path, Some(site.backend))?;
        }
        self.prepared(site, path)
    }

    fn prepared<'a>(&'a self, site: MountSite<'a>, path: PosixPath) -> Result<Mounting<'a>> {
        let config = self.in_container_config(site.session_id)?;
        let root = site.manifest.root_path();
        let file_to_read = config.as_ref().and_then(|config| config.file_to_read(&root));
        Ok(Mounting { mount: self, site, path, config, file_to_read })
    }

    /// What has to be done to unmount this from `path`. What the sandbox may see is not checked, so
    /// that what was mounted under other rules can be unmounted.
    ///
    /// # Errors
    ///
    /// As [`in_container_config`](Self::in_container_config); `MountConfigError` if the backend could
    /// not have mounted it.
    pub fn unmounting(&self, site: MountSite<'_>, path: &PosixPath) -> Result<MountPlan> {
        self.check_volume_support(site)?;
        self.detaching(site, path)
    }

    /// What has to be done to unmount this from `path` while a snapshot is taken. What a volume
    /// driver mounts stays; the snapshot leaves it out.
    ///
    /// # Errors
    ///
    /// As [`in_container_config`](Self::in_container_config).
    pub fn detaching(&self, site: MountSite<'_>, path: &PosixPath) -> Result<MountPlan> {
        let Some(config) = self.in_container_config(site.session_id)? else {
            return Ok(MountPlan::default());
        };
        let path = path.as_str();
        let by_kernel = command(["umount", path]);
        let with_fuse = || vec![command(["fusermount3", "-u", path]), by_kernel.clone()];
        let steps = match (self.strategy.pattern(), config) {
            (Some(MountPattern::Rclone(pattern)), MountConfig::Rclone(config)) => vec![
                MountStep::Unmount(match pattern.mode {
                    RcloneMode::Fuse => with_fuse(),
                    RcloneMode::Nfs => vec![by_kernel],
                }),
                MountStep::EndServers { remote_name: config.remote_name },
            ],
            (Some(MountPattern::Fuse(_) | MountPattern::Mountpoint(_)), _) => {
                vec![MountStep::Unmount(with_fuse())]
            }
            _ => vec![MountStep::Unmount(vec![by_kernel])],
        };
        Ok(MountPlan { steps })
    }

    /// Refuses a backend without volume drivers, if one is to mount this.
    fn check_volume_support(&self, site: MountSite<'_>) -> Result<()> {
        if site.has_volumes || !matches!(self.strategy, MountStrategy::DockerVolume { .. }) {
            return Ok(());
        }
        let message = "docker-volume mounts are not supported by this sandbox backend";
        // Programs know sessions by the names of their classes.
        let session_type = match site.backend {
            "unix_local" => "UnixLocalSandboxSession",
            "docker" => "DockerSandboxSession",
            other => other,
        };
        Err(raise::mount_config(message)
            .with_context("mount_type", self.type_name())
            .with_context("session_type", session_type))
    }
}

impl Mounting<'_> {
    /// The file of the sandbox whose content the plan needs.
    #[must_use]
    pub fn file_to_read(&self) -> Option<&PosixPath> {
        self.file_to_read.as_ref()
    }

    /// The error if that file is there and cannot be read.
    #[must_use]
    pub fn unreadable(&self) -> Error {
        let path = self.file_to_read.as_ref().map(PosixPath::as_str);
        raise::mount_config("failed to read rclone config file")
            .with_context("type", self.mount.type_name())
            .with_context("path", path)
    }

    /// The plan, with the content of [`file_to_read`](Self::file_to_read) where there is one.
    ///
    /// # Errors
    ///
    /// `MountConfigError` for a file that does not help, and for paths that are in each other's way;
    /// `InvalidManifestPathError` if the sandbox may not write where it is to be mounted.
    pub fn plan(&self, file: Option<&[u8]>) -> Result<MountPlan> {
        let Some(config) = &self.config else {
            return Ok(MountPlan::default());
        };
        let place = MountPaths::new(&self.site, &self.path)?;
        let steps = match (self.mount.strategy.pattern(), config) {
            (Some(MountPattern::Fuse(pattern)), MountConfig::Blobfuse(config)) => {
                blobfuse::steps(&place, pattern, config)?
            }
            (Some(MountPattern::Rclone(pattern)), MountConfig::Rclone(config)) => {
                let text = match (&self.file_to_read, file) {
                    (Some(path), Some(file)) => config.text_from_file(path, file)?,
                    (Some(path), None) => return Err(raise::workspace_read_not_found(path)),
                    (None, _) => config.text(),
                };
                rclone::steps(&place, pattern, config, text)?
            }
            (_, MountConfig::Mountpoint(config)) => mountpoint::steps(&place, config)?,
            (_, MountConfig::S3Files(config)) => s3_files::steps(&place, config),
            (_, MountConfig::Blobfuse(_) | MountConfig::Rclone(_)) => {
                let message = "mount pattern received incompatible runtime config";
                return Err(raise::mount_config(message));
            }
        };
        Ok(MountPlan { steps })
    }
}

/// Where something is mounted, and where files for that go.
struct MountPaths<'a> {
    manifest: &'a Manifest,
    policy: WorkspacePathPolicy,
    /// The session's name as part of other names.
    session: String,
    /// Where the storage is to appear, as it was written.
    path: &'a PosixPath,
    /// The same, normalized.
    target: PosixPath,
}

impl<'a> MountPaths<'a> {
    fn new(site: &MountSite<'a>, path: &'a PosixPath) -> Result<Self> {
        let manifest = site.manifest;
        let grants = manifest.extra_path_grants.clone();
        let policy = WorkspacePathPolicy::new(manifest.root.as_str(), grants)?;
        let target = policy.normalize_path(path, PathUse::Write)?;
        let session = site.session_id.simple().to_string();
        Ok(Self { manifest, policy, session, path, target })
    }

    fn make_target(&self) -> MountStep {
        MountStep::MakeFolder(self.target.clone())
    }

    /// The absolute path of something in the workspace.
    fn absolute(&self, path: &PosixPath) -> Result<PosixPath> {
        self.policy.normalize_path(path, PathUse::Read)
    }

    /// Makes a folder of the workspace that stays out of snapshots.
    fn make_scratch(&self, folder: &PosixPath) -> Result<[MountStep; 2]> {
        let left_out = self.manifest.snapshot_skip_path(folder.as_str())?;
        let folder = self.absolute(folder)?;
        Ok([MountStep::MakeFolder(folder), MountStep::LeaveOutOfSnapshots(left_out)])
    }
}

fn command<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn context<const N: usize>(pairs: [(&str, &str); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
}
