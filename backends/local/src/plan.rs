//! What one rung of the ladder makes of a session: where its files are, who its commands are, and what
//! they see.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bastide::host::is_same_file;
use bastide::model::Manifest;
use bastide::model::mount::MountStrategy;
use bastide::{
    Condition, Error, ErrorKind, GuestPath, MachineSpec, NetworkAccess, Result, Rung, SessionId,
    SideSocket,
};
use bastide_proto::boot::{
    BaseSpec, BootSpec, EgressBoot, HostIds, HostWalls, Ids, InodeId, MountPoint, Resolver,
    Rung as BootRung, UserAndGroup,
};

use crate::backend::GUESTS;
use crate::egress::{self, TrustedFile};
use bastide_proto::hello::Token;

use crate::host::{self, HostFile};
use crate::image::WorkspaceImage;
use crate::layout;
use crate::toolchains::Toolchains;
use crate::user::{ID_LOCKS, Identity, only_owner};

/// The oldest version of Landlock that keeps file contents apart: before it, anybody can cut a file
/// short.
const LEAST_ABI: u32 = 3;

/// The oldest version that also keeps signals apart. Less is taken only by name.
const LEAST_ABI_BY_ITSELF: u32 = 6;

/// Where folders are made that another user than root can reach.
const TEMPORARY: &str = "/tmp";

/// Everything about a session that depends on its rung.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rung: Rung,
    /// Where the workspace is, to everybody.
    pub(crate) root: GuestPath,
    pub(crate) who: Identity,
    /// What the session works in, its workspace first.
    pub(crate) files: Vec<HostFile>,
    /// Folders of the session's own that are not mounted anywhere.
    own_folders: Vec<PathBuf>,
    /// What commands are told.
    pub(crate) environment: Vec<(String, String)>,
    /// Whose certificates package managers inside trust.
    trusted: Vec<TrustedFile>,
    /// The file system of the workspace.
    pub(crate) image: WorkspaceImage,
}

/// What every plan starts from.
#[derive(Debug)]
pub(crate) struct PlanInput<'a> {
    pub(crate) home: &'a Path,
    /// The session's folder.
    pub(crate) dir: &'a Path,
    /// The session's own storage in it.
    pub(crate) storage: &'a Path,
    /// Whether the session was started before.
    pub(crate) was_there: bool,
    /// Whether its storage is from then.
    pub(crate) has_storage: bool,
    pub(crate) id: &'a SessionId,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) toolchains: &'a Toolchains,
    /// What proves to the guest that somebody is the session's maker.
    pub(crate) token: &'a Token,
    /// Whether nobody asked for a rung by name.
    pub(crate) by_itself: bool,
}

/// What is said of a folder that is to be at another path than its own.
fn moved(host: &Path, path: &GuestPath, rung: Rung) -> Error {
    let message = format!(
        "{} cannot be granted at {path}: the rung `{}` has the host's own paths",
        host.display(),
        rung.as_str()
    );
    Error::new(ErrorKind::Unsupported, message).with_condition(Condition::GrantMoved)
}

/// Whether two paths lead to one folder, by links or not.
fn is_same_folder(one: &Path, other: &Path) -> bool {
    let found = (one.metadata(), other.metadata());
    one == other || matches!(found, (Ok(one), Ok(other)) if is_same_file(&one, &other))
}

impl Plan {
    pub(crate) fn new(input: &PlanInput<'_>, rung: Rung) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot start session {}: {error}", input.id))
        };
        match rung {
            Rung::Namespaces => Self::namespaces(input, Identity::of_caller().map_err(failed)?),
            Rung::Landlock | Rung::Unconfined => Self::on_host(input, rung),
            _ => Err(Error::new(ErrorKind::Unsupported, "this backend has no such rung")),
        }
    }

    fn namespaces(input: &PlanInput<'_>, who: Identity) -> Result<Self> {
        let mut files = host::files(input.spec, input.home)?;
        host::refuse_overlaps(&files, Rung::Namespaces)?;
        let who = match files.iter().find(|file| file.writable) {
            Some(file) => who.over_host_folder(&file.source),
            None => who,
        };
        if input.spec.host_workspace.is_none() {
            files.insert(0, own_storage(input.storage, &input.spec.root)?);
        }
        let trusted = egress::trusted_files(input.spec);
        Ok(Self {
            rung: Rung::Namespaces,
            root: input.spec.root.clone(),
            image: WorkspaceImage::of(input, &who.ids)?,
            who,
            files,
            own_folders: Vec::new(),
            environment: [
                input.toolchains.variables.clone(),
                egress::variables(input.spec, &trusted),
            ]
            .concat(),
            trusted,
        })
    }

    fn on_host(input: &PlanInput<'_>, rung: Rung) -> Result<Self> {
        if input.spec.network == NetworkAccess::Policy {
            return Err(egress::needs_namespaces(rung));
        }
        if input.spec.nested_sandbox && rung == Rung::Landlock {
            let message = "sandboxes inside the sandbox need the rung `namespaces`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut files = host::files(input.spec, input.home)?;
        for grant in &input.spec.grants {
            if Path::new(grant.path.as_str()) != grant.host {
                return Err(moved(&grant.host, &grant.path, rung));
            }
        }
        // Its name may have a backslash, which is a slash inside.
        if let Some(folder) = &input.spec.host_workspace
            && !is_same_folder(Path::new(input.spec.root.as_str()), folder)
        {
            return Err(moved(folder, &input.spec.root, rung));
        }
        host::refuse_overlaps(&files, rung)?;
        let who = match rung {
            Rung::Unconfined => Identity::caller_itself(),
            _ => Identity::on_host(&files)?,
        };
        // Root's own folders are closed to everybody else, and nobody else is root here.
        let base = match &who.ids {
            Ids::Host(HostIds::Claimed { .. } | HostIds::Given(_)) => {
                Path::new(TEMPORARY).join(format!("bastide-{}", input.id))
            }
            _ => input.dir.to_owned(),
        };
        let mut own_folders = vec![base.join("tmp")];
        let root = match input.spec.host_workspace {
            Some(_) => input.spec.root.clone(),
            None => {
                let work = base.join("work");
                let root = guest_path(&work)?;
                let owner = who.inside;
                files.insert(0, HostFile { owner, ..own_file(&work, &root) });
                own_folders.insert(0, work);
                root
            }
        };
        let mut environment = input.toolchains.variables.clone();
        if let Some(scratch) = base.join("tmp").to_str() {
            environment.push(("TMPDIR".to_owned(), scratch.to_owned()));
        }
        let image = WorkspaceImage::on_host(input.spec.limits.disk);
        let trusted = Vec::new();
        Ok(Self { rung, root, who, files, own_folders, environment, trusted, image })
    }

    /// The same for a machine that does not give the ids it promises.
    pub(crate) fn without_range(self, why: &str) -> Self {
        Self { who: self.who.without_range(why), ..self }
    }

    /// Whether the files of the session's own are where they were, looked at before anything is made. A folder of the host
    /// is not the session's own.
    pub(crate) fn has_files(&self, input: &PlanInput<'_>) -> bool {
        if input.spec.host_workspace.is_some() {
            return true;
        }
        match self.rung {
            // Reboots clear the folder of temporary files, where root's sessions have theirs.
            Rung::Landlock | Rung::Unconfined => {
                self.own_folders.first().is_some_and(|work| work.is_dir())
            }
            _ => self.image.has_files(input.has_storage),
        }
    }

    /// Whether commands can write to folders of the host.
    pub(crate) fn writes_to_host(&self) -> bool {
        self.files.iter().any(|file| file.writable && !file.is_own)
    }

    /// The devices of its files; `workspace` is that of the file system of its own, if it has one. Where
    /// one of them cannot be passed, none is: the guest does not know which.
    pub(crate) fn devices(&self, workspace: Option<u64>) -> Vec<u64> {
        let folders = self.files.iter().skip(usize::from(workspace.is_some()));
        let devices = folders.map(|file| SideSocket::device_of(&file.source));
        workspace.map(Some).into_iter().chain(devices).collect::<Option<_>>().unwrap_or_default()
    }

    /// What a warden is told first: the base of the sandbox, whichever session it is for.
    pub(crate) fn base_spec(&self, input: &PlanInput<'_>) -> BaseSpec {
        let spec = input.spec;
        let (rung, steps, is_common) = match self.rung {
            Rung::Landlock => (BootRung::Landlock(self.host_walls(input)), Vec::new(), false),
            Rung::Unconfined => (BootRung::Unconfined, Vec::new(), false),
            _ => {
                let inside = layout::RootSpec {
                    root: self.root.as_str(),
                    who: &self.who,
                    network: spec.network,
                    scratch: spec.limits.disk,
                };
                let steps = layout::base_steps(&inside, input.toolchains);
                // The workspace, and nothing else of the caller's.
                let is_common = self.files.len() == 1 && inside.has_plain_root();
                (BootRung::Namespaces, steps, is_common)
            }
        };
        BaseSpec {
            own_network: rung == BootRung::Namespaces && spec.network != NetworkAccess::Host,
            has_egress: rung == BootRung::Namespaces && spec.egress.is_some(),
            rung,
            // Nothing in it is ever shown to a session.
            mount_dir: input.home.join(GUESTS),
            ids: self.who.ids.clone(),
            steps,
            is_common,
        }
    }

    /// What has to be in folders of the host: for others of them, and for storage that is mounted from outside.
    fn mount_points(&self, spec: &MachineSpec) -> Vec<MountPoint> {
        let targets = spec.storage.as_deref().map(Manifest::mount_targets);
        // What is wrong with a manifest was said before.
        let targets = targets.and_then(Result::ok).unwrap_or_default();
        let from_outside = targets
            .iter()
            .filter(|target| matches!(target.mount.strategy, MountStrategy::Host { .. }))
            .filter_map(|target| {
                host::mount_point(&self.files, target.path.normalized().as_str(), true)
            });
        host::mount_points(&self.files).into_iter().chain(from_outside).collect()
    }

    /// What it is told of the session.
    pub(crate) fn boot_spec(&self, input: &PlanInput<'_>, resolver: Resolver) -> BootSpec {
        let targets = |writable: bool| {
            let kept = self.files.iter().filter(move |file| file.writable == writable);
            kept.map(|file| file.target.clone()).collect()
        };
        let spec = input.spec;
        let hostname = format!("bastide-{}", input.id.as_str().get(..8).unwrap_or_default());
        let (mut steps, mount_points) = match self.rung {
            Rung::Landlock | Rung::Unconfined => (Vec::new(), Vec::new()),
            _ => (
                layout::session_steps(&hostname, spec.network, &self.files, spec.nested_sandbox),
                self.mount_points(spec),
            ),
        };
        let egress = egress::boot(input);
        if let Some(EgressBoot { bundle: Some(bundle), .. }) = &egress {
            steps.extend(egress::bundle_steps(bundle));
        }
        steps.extend(egress::manager_steps(spec, &self.trusted));
        BootSpec {
            token: input.token.0,
            caller: match self.rung {
                Rung::Landlock | Rung::Unconfined => Some(rustix::process::geteuid().as_raw()),
                // A guest in a namespace of its own does not see who is who outside.
                _ => None,
            },
            session_dir: input.dir.to_owned(),
            single_user_reason: self.who.single_user_reason.clone(),
            nested_sandbox: spec.nested_sandbox,
            limits: spec.limits,
            steps,
            hostname,
            keep_folder: input.was_there,
            writable: targets(true),
            readable: targets(false),
            identities: match self.rung {
                // Mounts are made by them, and stay what they are.
                Rung::Namespaces => Vec::new(),
                _ => self.identities(),
            },
            writes_to_host: self.writes_to_host(),
            mount_points,
            resolver,
            own_folders: self.own_folders.clone(),
            image: self.image.image().cloned(),
            egress,
        }
    }

    /// Which files of the host those of the caller's are.
    fn identities(&self) -> Vec<(String, InodeId)> {
        let identity = |file: &HostFile| Some((file.target.clone(), file.identity?));
        self.files.iter().filter_map(identity).collect()
    }

    fn host_walls(&self, input: &PlanInput<'_>) -> HostWalls {
        let network = input.spec.network != NetworkAccess::None;
        HostWalls {
            readable: layout::readable(input.toolchains, network),
            devices: layout::DEVICES.map(str::to_owned).to_vec(),
            network,
            least_abi: if input.by_itself { LEAST_ABI_BY_ITSELF } else { LEAST_ABI },
        }
    }
}

impl Identity {
    /// Who commands are where they have the host's ids. Root's are never root: Landlock does not keep anybody from
    /// changing the permissions, owners and times of files that are theirs, and root's are everywhere.
    fn on_host(files: &[HostFile]) -> Result<Self> {
        let mut open = files.iter().filter(|file| file.writable);
        let first = open.next();
        let single_user_reason = Some(match first {
            Some(file) => only_owner(&file.source),
            None => {
                "the rung `landlock` has no ids of its own; the rung `namespaces` has".to_owned()
            }
        });
        let caller = Self::caller_itself();
        let has_ranges = || {
            Self::has_ranges().map_err(|error| {
                let message = format!("cannot tell which ids there are: {error}");
                Error::new(ErrorKind::Io, message)
            })
        };
        let is_root = Self::is_hosts_root().map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot tell who the caller is: {error}"))
        })?;
        let ids = match first {
            _ if !is_root => HostIds::Caller,
            _ if !has_ranges()? => {
                let why = "there is no id here that they could have instead";
                return Err(never_root(why).with_hint("run Bastide as another user"));
            }
            Some(HostFile { source, owner, .. }) if owner.uid == 0 || owner.gid == 0 => {
                let why = format!("the folder {} is root's", source.display());
                return Err(never_root(&why).with_condition(Condition::FolderIsRoots));
            }
            Some(HostFile { source, owner, .. }) => {
                if let Some(other) = open.find(|file| file.owner != *owner) {
                    return Err(two_owners(&source.display().to_string(), other));
                }
                HostIds::Given(*owner)
            }
            None => HostIds::Claimed { locks: PathBuf::from(ID_LOCKS) },
        };
        Ok(match ids {
            HostIds::Caller => Self { single_user_reason, ..caller },
            HostIds::Given(inside) => {
                Self { name: "agent", inside, ids: Ids::Host(ids), single_user_reason }
            }
            HostIds::Claimed { .. } => {
                // Which one it is, the warden knows once it has it.
                let inside = UserAndGroup { uid: u32::MAX, gid: u32::MAX };
                Self { name: "agent", inside, ids: Ids::Host(ids), single_user_reason }
            }
        })
    }

    /// The caller, with all the caller may.
    fn caller_itself() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let inside = UserAndGroup { uid, gid: rustix::process::getegid().as_raw() };
        let (name, single_user_reason) = match uid {
            0 => ("root", None),
            _ => ("caller", Some("commands of this session are the caller itself".to_owned())),
        };
        Self { name, inside, ids: Ids::Host(HostIds::Caller), single_user_reason }
    }
}

fn never_root(why: &str) -> Error {
    let message = format!(
        "on the rung `landlock` commands would be root, who can change the permissions of every file: {why}"
    );
    Error::new(ErrorKind::Unsupported, message)
}

/// The error where folders belong to different users, and commands can be but one.
fn two_owners(first: &str, other: &HostFile) -> Error {
    let other = other.source.display().to_string();
    let message = format!(
        "{first} and {other} belong to different users, and the rung `landlock` has one for both"
    );
    Error::new(ErrorKind::Unsupported, message)
        .with_context("path", other)
        .with_condition(Condition::FoldersOfTwoUsers)
}

/// The session's own storage, which is there.
fn own_storage(storage: &Path, root: &GuestPath) -> Result<HostFile> {
    let found = std::fs::metadata(storage).map_err(|error| {
        let message = format!("cannot look at {}: {error}", storage.display());
        Error::new(ErrorKind::Io, message).with_context("path", storage.display().to_string())
    })?;
    let owner = UserAndGroup { uid: found.uid(), gid: found.gid() };
    Ok(HostFile { owner, ..own_file(storage, root) })
}

fn own_file(storage: &Path, root: &GuestPath) -> HostFile {
    HostFile {
        source: storage.to_owned(),
        target: root.as_str().to_owned(),
        writable: true,
        is_dir: true,
        is_own: true,
        owner: UserAndGroup { uid: 0, gid: 0 },
        identity: None,
    }
}

fn guest_path(path: &Path) -> Result<GuestPath> {
    let text = path.to_str().unwrap_or_default();
    text.parse().map_err(|error| {
        let message = format!("{} cannot be a workspace: {error}", path.display());
        Error::new(ErrorKind::InvalidInput, message)
    })
}
