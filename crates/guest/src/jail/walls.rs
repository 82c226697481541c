//! The walls around commands. They hold for the launcher and everything forked from it; the guest
//! stays outside.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

use bastide_proto::boot::{BootSpec, Enforced, HostWalls, InodeId, Rung};
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Pid, Uid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};

use super::seccomp::{
    FilterOptions, Processors, Protected, Shared, WriteTarget, filter, guest_filter, init_filter,
    listeners_filter,
};
use super::{SandboxSpec, StepContext, StepError, open_host_file};
use crate::accounts::Identity;
use crate::removable_walls::{Wall, is_removed};

/// The newest Landlock version we know how to use.
const NEWEST: ABI = ABI::V7;

/// What package managers need, over the sandbox's own ids only.
const ROOT_INSIDE: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// What the guest itself does where there is more than one user: files of every user, and ending their
/// commands.
const GUEST: CapabilitySet = OVER_FILES.union(OVER_USERS);

/// What makes uid 0 inside more than others to files.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// What it takes to act for others.
pub(crate) const OVER_USERS: CapabilitySet =
    CapabilitySet::KILL.union(CapabilitySet::SETUID).union(CapabilitySet::SETGID);

/// Which walls really stand.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WallsReport {
    /// What enforces limits on the commands themselves.
    pub(crate) enforced: Enforced,
    /// The Landlock version in force; 0 where the kernel has none.
    pub(crate) landlock_abi: u32,
    /// Whether what loses its parent stays with the command it came from.
    pub(crate) has_subreaper: bool,
}

/// Puts this process, and everything it forks from now on, behind the walls of its sandbox, as somebody
/// or as whoever it is.
pub(crate) fn raise_walls(
    plan: &SandboxSpec,
    who: Option<&Identity>,
    protected: &Protected,
    processors: Processors,
) -> Result<WallsReport, StepError> {
    let spec = &plan.session;
    let (access, shared, least_abi) = match &plan.base_spec.rung {
        // A process that Landlock keeps from files may not mount either.
        Rung::Namespaces if spec.nested_sandbox => (FileAccess::anywhere(), Shared::Nested, 0),
        Rung::Namespaces => (FileAccess::of_own_root(spec), Shared::Nothing, 0),
        Rung::Landlock(walls) => {
            let shared = Shared::Host { network: walls.network };
            (FileAccess::of_host(spec, walls), shared, walls.least_abi)
        }
        Rung::Unconfined => {
            if let Some(who) = who {
                become_user(who)?;
            }
            return Ok(WallsReport {
                enforced: Enforced::default(),
                landlock_abi: 0,
                has_subreaper: true,
            });
        }
    };
    let access = if is_removed(Wall::LandlockFiles) { FileAccess::anywhere() } else { access };
    // While everything can be found: a user may not be able to look where it may write.
    let rules = access.rules()?;
    let uid = who.map_or_else(|| rustix::process::geteuid().as_raw(), |who| who.uid);
    let keep = match shared {
        _ if is_removed(Wall::Capabilities) => CapabilitySet::all(),
        Shared::Nothing if uid == 0 => ROOT_INSIDE,
        // Root may not be root in a namespace of its own without this; no mount honours what it gives.
        Shared::Nested if uid == 0 => ROOT_INSIDE.union(CapabilitySet::SETFCAP),
        Shared::Nothing | Shared::Nested | Shared::Mounting | Shared::Host { .. } => {
            CapabilitySet::empty()
        }
    };
    give_up_for_ever(keep)?;
    if let Some(who) = who {
        become_user(who)?;
    }
    keep_capabilities(keep, keep)?;
    // Also what keeps set-user-id programs from giving anything back, and what the kernel asks for
    // before it lets us restrict ourselves.
    if !is_removed(Wall::NoNewPrivileges) {
        set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    }
    // Nobody may trace this process, read its memory or open its descriptors: it is not dumpable
    // until it executes a program.
    become_untraceable()?;
    let landlock_abi = restrict(rules)?;
    if landlock_abi < least_abi {
        let step = format!("restrict files: Landlock is {landlock_abi} here, not {least_abi}");
        return Err(StepError::from_errno(&step, libc::EOPNOTSUPP));
    }
    // Where commands have an id and the paths of the host, every file they own is one there, also those
    // that Landlock keeps them from: it does not look at modes.
    let is_on_host = spec.writes_to_host || plan.base_spec.rung != Rung::Namespaces;
    let writes = match is_on_host && !is_removed(Wall::SetIdModes) {
        true => WriteTarget::OnHost,
        false => WriteTarget::Inside,
    };
    install_filter(protected, FilterOptions { shared, processors, writes })?;
    Ok(WallsReport { enforced: Enforced::default(), landlock_abi, has_subreaper: true })
}

/// The filter that most launchers need, and whom it protects, where a process that is copied has made it.
static PREPARED: OnceLock<(Protected, BpfProgram)> = OnceLock::new();

/// Makes that filter. In a namespace of its own the guest is the second process, and the first launcher
/// the third; any others get a filter of their own.
pub(crate) fn prepare_filter() {
    let protected = Protected([2, 1, 3].into_iter().filter_map(Pid::from_raw).collect());
    let filter = filter(&protected, FilterOptions::USUAL);
    drop(PREPARED.set((protected, filter)));
    drop(PREPARED_INIT.set(init_filter()));
    drop(PREPARED_GUEST.set(guest_filter()));
}

/// The same for the filters of init and guest.
static PREPARED_INIT: OnceLock<BpfProgram> = OnceLock::new();
static PREPARED_GUEST: OnceLock<BpfProgram> = OnceLock::new();

/// Keeps init, and all it will fork, from what none of them does: a command that took its place would gain no new
/// privileges and find the kernel as closed. Once its maps of ids are written: from here on nobody of the same user
/// may look at it.
pub(crate) fn harden_init() -> Result<(), StepError> {
    become_untraceable()?;
    harden(PREPARED_INIT.get(), init_filter)
}

/// No new privileges, and a filter of its own.
fn harden(
    prepared: Option<&BpfProgram>,
    make: impl FnOnce() -> BpfProgram,
) -> Result<(), StepError> {
    if is_removed(Wall::NoNewPrivileges) {
        return Ok(());
    }
    set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    if is_removed(Wall::OwnFilters) || is_removed(Wall::Seccomp) {
        return Ok(());
    }
    match prepared {
        Some(prepared) => apply(prepared),
        None => apply(&make()),
    }
}

pub(super) fn apply(program: &BpfProgram) -> Result<(), StepError> {
    seccompiler::apply_filter(program)
        .map_err(|_| io::Error::last_os_error())
        .step(|| "install the system call filter".to_owned())
}

/// Gives up for ever what no process of a sandbox will need, before any other is forked: each of them
/// would have to do it.
pub(crate) fn give_up_unneeded() -> Result<(), StepError> {
    if is_removed(Wall::Capabilities) {
        return Ok(());
    }
    give_up_for_ever(GUEST.union(ROOT_INSIDE).union(CapabilitySet::SETFCAP))
}

/// Gives up for ever every capability, where a sandbox has the host's own ids. While this process is still root, if
/// it is: nobody else may.
pub(crate) fn give_up_everything() -> Result<(), StepError> {
    if is_removed(Wall::Capabilities) {
        return Ok(());
    }
    // What it takes to become somebody else is in use until then; only programs could give it back.
    give_up_for_ever(CapabilitySet::empty())
}

/// Puts the filter of system calls on this process and everything it forks.
pub(super) fn install_filter(
    protected: &Protected,
    walled: FilterOptions,
) -> Result<(), StepError> {
    if is_removed(Wall::Seccomp) || is_removed(Wall::NoNewPrivileges) {
        return Ok(());
    }
    match PREPARED.get() {
        Some((whom, prepared)) if walled == FilterOptions::USUAL && whom == protected => {
            apply(prepared)
        }
        _ => apply(&filter(protected, walled)),
    }
}

/// Leaves the guest only what it uses. Where there is but one user, that is nothing: it does with
/// files what that user may. Where it is no root itself, it uses what it has over files only on behalf
/// of somebody who is.
pub(crate) fn reduce_guest(has_users: bool) -> Result<(), StepError> {
    let keep = if has_users { GUEST } else { CapabilitySet::empty() };
    give_up_for_ever(keep)?;
    let is_root = rustix::process::geteuid().is_root();
    keep_capabilities(keep, if is_root { keep } else { keep.intersection(OVER_USERS) })?;
    become_untraceable()?;
    harden(PREPARED_GUEST.get(), guest_filter)
}

/// Leaves the process that makes listening sockets what that takes.
pub(crate) fn reduce_listeners() -> Result<(), StepError> {
    let keep = CapabilitySet::NET_BIND_SERVICE;
    give_up_for_ever(keep)?;
    keep_capabilities(keep, keep)?;
    become_untraceable()?;
    harden(None, listeners_filter)
}

fn become_untraceable() -> Result<(), StepError> {
    if is_removed(Wall::Untraceable) {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "become untraceable".to_owned())
}

/// Takes the ids of a user.
pub(crate) fn become_user(who: &Identity) -> Result<(), StepError> {
    let step = || format!("become user {}", who.uid);
    let groups: Vec<_> = who.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    set_thread_groups(&groups).step(step)?;
    let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
    set_thread_res_gid(gid, gid, gid).step(step)?;
    set_thread_res_uid(uid, uid, uid).step(step)
}

/// Keeps what is given up from coming back with a program.
fn give_up_for_ever(keep: CapabilitySet) -> Result<(), StepError> {
    for capability in CapabilitySet::all().difference(keep).iter() {
        // To ask is cheap, and to give up what is given up already is not.
        if capability_is_in_bounding_set(capability) == Ok(false) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // A kernel older than this list does not know its newest entries. Where this process may
            // not change the set, as in a container, that nobody gains new privileges has to do.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(errno) => return Err(errno).step(|| "reduce capabilities".to_owned()),
        }
    }
    Ok(())
}

/// What this process may use from now on, and what of that it uses now. What it does not have is not
/// asked for.
pub(super) fn keep_capabilities(
    permitted: CapabilitySet,
    effective: CapabilitySet,
) -> Result<(), StepError> {
    let step = || "reduce capabilities".to_owned();
    let has = capabilities(None).step(step)?.permitted;
    let sets = CapabilitySets {
        effective: effective.intersection(has),
        permitted: permitted.intersection(has),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).step(step)
}

/// What commands may do with files, and where. Signals and abstract sockets they have only among
/// themselves.
struct FileAccess<'a> {
    /// Where, and what; nothing, where whatever the mounts allow may be done.
    rules: Option<Vec<(&'a str, Access)>>,
    /// Which files some of these are.
    identities: &'a [(String, InodeId)],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Everything.
    All,
    /// Reading and executing, if it is there.
    Read,
    /// What there is, reading and writing; nothing is made or removed.
    Use,
}

impl Access {
    fn rights(self) -> landlock::BitFlags<AccessFs> {
        let read = AccessFs::from_read(NEWEST);
        match self {
            Self::All => AccessFs::from_all(NEWEST),
            Self::Read => read,
            Self::Use => read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev,
        }
    }
}

impl<'a> FileAccess<'a> {
    /// Whatever the mounts allow.
    fn anywhere() -> Self {
        Self { rules: None, identities: &[] }
    }

    /// Everything in a root of the sandbox's own is there to be read.
    fn of_own_root(spec: &'a BootSpec) -> Self {
        let fixed = [("/", Access::Read), ("/dev", Access::Use), ("/proc", Access::Use)];
        let scratch = ["/tmp", "/dev/shm"].map(|path| (path, Access::All));
        let own = spec.writable.iter().map(|path| (path.as_str(), Access::All));
        let rules = Some(fixed.into_iter().chain(scratch).chain(own).collect());
        Self { rules, identities: &[] }
    }

    /// Of the host's files, those that are meant. Nothing of `/proc` is written to: root, without any
    /// of its powers, could still change what belongs to the machine.
    fn of_host(spec: &'a BootSpec, walls: &'a HostWalls) -> Self {
        let read = walls.readable.iter().chain(&spec.readable).map(String::as_str);
        let read = read.chain(["/proc"]).map(|path| (path, Access::Read));
        let devices = walls.devices.iter().map(|path| (path.as_str(), Access::Use));
        let folders = spec.own_folders.iter().filter_map(|path| path.to_str());
        let own = spec.writable.iter().map(String::as_str).chain(folders);
        let rules = read.chain(devices).chain(own.map(|path| (path, Access::All))).collect();
        Self { rules: Some(rules), identities: &spec.identities }
    }

    /// Opens everything there are rules for: what was granted, and nothing that was put in its place.
    fn open(&self) -> Result<Vec<(OwnedFd, Access)>, StepError> {
        let mut opened = Vec::new();
        for (path, access) in self.rules.iter().flatten() {
            let identity = self.identities.iter().find(|(known, _)| known == path);
            match open_host_file(Path::new(path), identity.map(|(_, identity)| *identity)) {
                Ok(file) => opened.push((file, *access)),
                // What is not there need not be allowed.
                Err(_) if *access == Access::Read && identity.is_none() => {}
                Err(error) => return Err(error.of_session()),
            }
        }
        Ok(opened)
    }

    fn rules(self) -> Result<RulesetCreated, StepError> {
        let opened = self.open()?;
        let build = || -> Result<_, Box<dyn std::error::Error>> {
            let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
            let ruleset = match &self.rules {
                Some(_) => ruleset.handle_access(AccessFs::from_all(NEWEST))?,
                None => ruleset,
            };
            let scope = match is_removed(Wall::LandlockScope) {
                true => Scope::AbstractUnixSocket.into(),
                false => Scope::from_all(NEWEST),
            };
            let mut ruleset = ruleset.scope(scope)?.create()?;
            for (file, access) in opened {
                ruleset = ruleset.add_rule(PathBeneath::new(file, access.rights()))?;
            }
            Ok(ruleset)
        };
        build()
            .map_err(|error| io::Error::other(error.to_string()))
            .step(|| "make rules for files with Landlock".to_owned())
    }
}

/// Puts rules in force, and says which version of Landlock holds them.
fn restrict(rules: RulesetCreated) -> Result<u32, StepError> {
    if is_removed(Wall::NoNewPrivileges) {
        return Ok(abi_number(NEWEST));
    }
    let status = rules
        .restrict_self()
        .map_err(|error| io::Error::other(error.to_string()))
        .step(|| "restrict files with Landlock".to_owned())?;
    Ok(match status.landlock {
        landlock::LandlockStatus::Available { effective_abi, .. } => abi_number(effective_abi),
        _ => 0,
    })
}

pub(super) fn abi_number(abi: ABI) -> u32 {
    u32::try_from(abi as i64).unwrap_or(0)
}
