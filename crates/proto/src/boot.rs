//! What the host sends to the warden of a local sandbox, and what the warden reports back.
//!
//! The host decides the policy (what is seen, which ids, which network); the warden and the jail
//! carry it out and say what is really in force.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::EgressStart;

/// The
/// base of a sandbox, whichever session it is for: a warden is told it first, and can build it before there is a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseSpec {
    /// How commands are confined.
    pub rung: Rung,
    /// A folder of the host that the new root is assembled on.
    pub mount_dir: PathBuf,
    /// Who is who inside.
    pub ids: Ids,
    /// Whether the sandbox has a network of its own with nothing but loopback.
    pub own_network: bool,
    /// Whether that network leads to an egress namespace, which the session brings along.
    pub has_egress: bool,
    /// What is built into the new root before anything of the session is, in order.
    pub steps: Vec<RootStep>,
    /// Whether a session adds nothing to this root but in the places made for it.
    pub is_common: bool,
}

/// Everything needed to build one local sandbox, besides its base. With it come two descriptors:
/// the first connection to the guest, and the file whose lock says that somebody of the session lives.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BootSpec {
    /// The token every connection must prove.
    pub token: [u8; crate::hello::TOKEN_BYTES],
    /// Who may connect to the guest besides root, where ids inside are the host's.
    pub caller: Option<u32>,
    /// The host name inside.
    pub hostname: String,
    /// The session's own folder on the host.
    pub session_dir: PathBuf,
    /// Why commands run as the session's default user only, where they do.
    pub single_user_reason: Option<String>,
    /// Whether commands may make namespaces and mounts of their own.
    pub nested_sandbox: bool,
    /// What commands may use.
    pub limits: ResourceLimits,
    /// What of the session is built into the new root, in order.
    pub steps: Vec<RootStep>,
    /// Whether the folder outlives a boot that its owner does not see through: it held a session
    /// before, whose files are not to be lost.
    pub keep_folder: bool,
    /// Where commands may write, besides their own `/tmp` and `/dev`; the first is the workspace.
    pub writable: Vec<String>,
    /// Whether one of those is a folder of the host: nothing may be left there that gives anybody more
    /// than its owner had.
    pub writes_to_host: bool,
    /// What has to be in folders of the host for something else to be mounted there, outermost first.
    pub mount_points: Vec<MountPoint>,
    /// What else is granted, for reading only.
    pub readable: Vec<String>,
    /// Which files of the host some of these paths are, where commands have the host's paths: whatever else is found
    /// there is not what was granted.
    pub identities: Vec<(String, InodeId)>,
    /// How the guest finds files beneath these folders.
    pub resolver: Resolver,
    /// Folders of the session's own on the host that everything inside owns. Where they do not lie in
    /// the session's folder, the one they lie in is made for them, and removed with the session.
    pub own_folders: Vec<PathBuf>,
    /// The file system the workspace lies on, where it has one of its own.
    pub image: Option<Image>,
    /// What serves the network, where it has a policy. Two more descriptors come along: the program of the proxy, and
    /// the secrets if there are any.
    pub egress: Option<EgressBoot>,
}

/// What serves a network that has a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressBoot {
    /// What the proxy is told.
    pub start: EgressStart,
    /// The file that says which authorities programs inside trust, where the proxy reads TLS.
    pub bundle: Option<TrustBundle>,
}

/// A file of certificates that is shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustBundle {
    /// Where the warden writes it.
    pub path: PathBuf,
    /// The machine's own, which it begins with.
    pub machine: Option<PathBuf>,
}

/// A name in a folder of the host on which something is mounted inside. If it is missing it is made, and
/// removed again when the session ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPoint {
    /// The folder of the host.
    pub folder: PathBuf,
    /// Which folder that is.
    pub identity: InodeId,
    /// The name, beneath the folder.
    pub beneath: PathBuf,
    /// Whether a folder is mounted there, or a file.
    pub is_dir: bool,
}

/// Which file of the host something is, while it is there: a path may lead to another one a moment later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeId {
    /// The device it lies on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
}

/// A file system of a fixed size in a file of the session's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// How many bytes it has.
    pub bytes: u64,
    /// The program that makes it. Where there is one, the session can do without an image; where there
    /// is none, its files lie in the one that is there.
    pub maker: Option<PathBuf>,
    /// The folder it is bound in the place of.
    pub instead_of: PathBuf,
}

/// How commands are confined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rung {
    /// By namespaces and a root of the sandbox's own, and walls on the commands.
    Namespaces,
    /// By walls on the commands, over the host's own paths.
    Landlock(HostWalls),
    /// By nothing.
    Unconfined,
}

/// What commands may use of the host where they see all of its paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostWalls {
    /// Files and folders they may read, besides those of the session.
    pub readable: Vec<String>,
    /// Devices they may read and write.
    pub devices: Vec<String>,
    /// Whether they may use the host's network.
    pub network: bool,
    /// The oldest version of Landlock that will do.
    pub least_abi: u32,
}

/// How paths are followed beneath a folder that is held open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Resolver {
    /// By the kernel in one call where it can, else name by name.
    #[default]
    Kernel,
    /// Name by name from held folders, as on kernels that cannot do it in one call.
    Walk,
}

/// The first id outside that sessions of root take. Beyond what distributions give to people (below
/// 60,000), to services, and to the subordinate ids of containers (commonly from 100,000 or 524,288
/// up).
pub const FIRST_RANGE_ID: u32 = 0x7000_0000;

/// Which ids shall exist inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ids {
    /// A range of ids that no other session has: 0 and up inside, far from anybody's outside.
    /// Commands are uid 0 inside. Only root can give such a range.
    Range {
        /// The folder of the locks by which sessions keep out of each other's ranges.
        locks: PathBuf,
        /// The one id of the range that exists inside, and what it looks like there, where commands
        /// can write to folders of the host: whatever they leave there has one owner.
        only: Option<UserAndGroup>,
    },
    /// The caller's own ids, and around them a range that the machine set aside for the caller. Only
    /// two programs with privileges of their own can give it.
    Subordinate {
        /// Which users there are.
        users: Vec<IdExtent>,
        /// Which groups there are.
        groups: Vec<IdExtent>,
        /// `newuidmap`, where it is.
        newuidmap: PathBuf,
        /// `newgidmap`, where it is.
        newgidmap: PathBuf,
    },
    /// Ids of the host itself, where the sandbox has no namespace for others.
    Host(HostIds),
    /// The caller's own ids alone.
    Own {
        /// The user and group outside.
        outside: UserAndGroup,
        /// What they look like inside.
        inside: UserAndGroup,
    },
}

/// Whose ids of the host everything inside has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostIds {
    /// The caller's.
    Caller,
    /// A user's that the caller may become.
    Given(UserAndGroup),
    /// One out of a range that nobody else has. Only root can take it.
    Claimed {
        /// The folder of the locks by which sessions keep out of each other's ranges.
        locks: PathBuf,
    },
}

/// Some ids inside that are as many outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdExtent {
    /// The first one inside.
    pub inside: u32,
    /// The first one outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// What commands of a session may use, all of them together; what is not given is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// How many processes.
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u64>,
    /// Bytes of disk.
    pub disk: Option<u64>,
}

/// What enforces each limit that was asked for, where anything does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// Memory.
    pub memory: Option<String>,
    /// Processes.
    pub pids: Option<String>,
    /// Processors.
    pub cpu: Option<String>,
    /// Disk.
    pub disk: Option<String>,
}

impl Enforced {
    /// What enforces each limit here, or else there.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory: self.memory.or(other.memory),
            pids: self.pids.or(other.pids),
            cpu: self.cpu.or(other.cpu),
            disk: self.disk.or(other.disk),
        }
    }
}

/// A user and a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserAndGroup {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// One step of building the new root. Targets are absolute paths inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RootStep {
    /// A folder of the new root itself.
    Dir {
        /// Where.
        target: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A small file of the new root itself.
    File {
        /// Where.
        target: String,
        /// What it holds.
        content: String,
    },
    /// A symbolic link of the new root itself.
    Link {
        /// Where.
        target: String,
        /// What it says.
        to: String,
    },
    /// A file or folder of the host, and all that is mounted beneath it.
    Bind {
        /// Where it is on the host.
        source: PathBuf,
        /// Where.
        target: String,
        /// Whether it can be written to.
        writable: bool,
        /// Which file it was when it was looked at: another number where there is another by now.
        version: u64,
    },
    /// A file or folder of the host whose owners are shifted into the range of [`Ids::Range`]; a
    /// plain bind under [`Ids::Own`].
    BindOwned {
        /// Where it is on the host.
        source: PathBuf,
        /// Where.
        target: String,
        /// Whether it can be written to.
        writable: bool,
        /// The owner on disk that is shown as the one user of [`Ids::Range`] where there is but one;
        /// files of anybody else belong to nobody inside.
        owner: Option<UserAndGroup>,
        /// Which file it has to be, where commands could have put another one in its place.
        identity: Option<InodeId>,
    },
    /// A folder of one that can be written, mounted on itself: nobody inside can rename or remove it.
    Pin {
        /// Where.
        target: String,
    },
    /// Something of a file system that was mounted before, closed to writing; nothing where there is no such thing.
    ReadOnly {
        /// Where.
        target: String,
    },
    /// Something of the right kind to mount on. What is there is used as it is, whatever it holds.
    MountPoint {
        /// Where.
        target: String,
        /// Whether a folder is mounted there, or a file.
        is_dir: bool,
    },
    /// A private file system in memory.
    Tmpfs {
        /// Where.
        target: String,
        /// The permission bits of its top folder.
        mode: u32,
        /// How many bytes it holds at most; what the kernel gives, if none.
        size: Option<u64>,
    },
    /// The processes of the sandbox.
    Proc {
        /// Where.
        target: String,
    },
    /// Terminals of the sandbox's own.
    Devpts {
        /// Where.
        target: String,
    },
}

/// What became of a boot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum BootReport {
    /// The guest is up.
    Ready(SandboxReady),
    /// Nothing runs, and nothing is left.
    Failed(BootFailure),
}

/// A warden that was just forked; a descriptor of the process comes along.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct ForkedWarden {
    /// Its process.
    pub pid: u32,
}

/// What is really in force in a sandbox that is up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxReady {
    /// The first process of the sandbox, as the host numbers it.
    pub init_pid: u32,
    /// The guest, as the host numbers it.
    pub guest_pid: u32,
    /// Who commands are outside, where the boot has chosen.
    pub uid: Option<u32>,
    /// What enforces the limits.
    pub enforced: Enforced,
    /// The Landlock version the kernel enforces on commands.
    pub landlock_abi: u32,
    /// The device of the workspace's own file system, or why it has none; nothing where none was asked
    /// for.
    pub image: Option<Result<u64, String>>,
}

/// Which step of a boot failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BootFailure {
    /// What was being done, as in "cannot {step}".
    pub step: String,
    /// The system's error number.
    pub errno: i32,
    /// Whether what failed was making the namespaces.
    pub no_namespaces: bool,
    /// Whether what failed was about the session: its own files, which its commands may have changed, or what was asked
    /// for. It says nothing of what the machine can do.
    pub of_session: bool,
    /// What helps, where the step knows.
    pub hint: Option<String>,
    /// Whether the range of ids could not be had; without it the boot may succeed.
    pub no_range: bool,
}

/// The system's errors that say that something is not there or that nobody gets it, whenever they ask: `EPERM`,
/// `ENOENT`, `ENXIO`, `EACCES`, `ENODEV`, `EINVAL`, `ENOTTY`, `ENOSYS`, `EOPNOTSUPP`.
const MISSING: [i32; 9] = [1, 2, 6, 13, 19, 22, 25, 38, 95];

/// Whether an error of the system says that the machine does not have something, or gives it to nobody. That
/// there is no room, or too many of something, is no such error: somebody can bring it about.
#[must_use]
pub fn is_missing(errno: i32) -> bool {
    MISSING.contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::is_missing;

    #[test]
    fn takes_no_want_of_room_for_a_missing_feature() {
        // EINTR, EIO, E2BIG, EAGAIN, ENOMEM, EBUSY, ENFILE, EMFILE, ENOSPC, EROFS, EUSERS, ETIMEDOUT.
        for errno in [4, 5, 7, 11, 12, 16, 23, 24, 28, 30, 87, 110] {
            assert!(!is_missing(errno), "{errno}");
        }
        for errno in [1, 13, 22, 25, 38, 95] {
            assert!(is_missing(errno), "{errno}");
        }
    }
}
