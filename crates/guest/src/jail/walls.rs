//! The walls around commands. They stand on the launcher and everything forked from it; the guest
//! stays outside.

use std::io;

use bastide_proto::boot::{Enforced, Ids};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};
use serde::{Deserialize, Serialize};

use super::seccomp::{Protected, filters};
use super::{Step, StepError};

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

/// What the guest itself does where commands are uid 0: files of every user, and ending commands.
const GUEST: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL);

/// Which walls really stand.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WallsReport {
    /// What enforces limits on the commands themselves.
    pub(crate) enforced: Enforced,
    /// The Landlock version in force; 0 where the kernel has none.
    pub(crate) landlock_abi: u32,
}

/// Puts this process, and everything it forks from now on, behind the walls.
pub(crate) fn raise_walls(
    ids: &Ids,
    writable: &[String],
    protected: Protected,
) -> Result<WallsReport, StepError> {
    let keep = match ids {
        Ids::Range { .. } => ROOT_INSIDE,
        Ids::Own { .. } => CapabilitySet::empty(),
    };
    reduce_capabilities(keep)?;
    // Also what keeps set-user-id programs from giving anything back, and what the kernel asks for
    // before it lets us restrict ourselves.
    set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    // Nobody may trace this process, read its memory or open its descriptors: it is not dumpable
    // until it executes a program.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become untraceable".to_owned())?;
    let landlock_abi = restrict_files(writable)?;
    install_filters(protected)?;
    Ok(WallsReport { enforced: Enforced::default(), landlock_abi })
}

/// Puts the filters of system calls on this process and everything it forks.
pub(super) fn install_filters(protected: Protected) -> Result<(), StepError> {
    let programs = filters(protected)
        .map_err(io::Error::other)
        .step(|| "compile the system call filter".to_owned())?;
    for program in &programs {
        seccompiler::apply_filter(program)
            .map_err(|_| io::Error::last_os_error())
            .step(|| "install the system call filter".to_owned())?;
    }
    Ok(())
}

/// Leaves the guest only what it uses. Where there is but one user, that is nothing: it does with
/// files what that user may.
pub(crate) fn reduce_guest(ids: &Ids) -> Result<(), StepError> {
    reduce_capabilities(match ids {
        Ids::Range { .. } => GUEST,
        Ids::Own { .. } => CapabilitySet::empty(),
    })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "become untraceable".to_owned())
}

fn reduce_capabilities(keep: CapabilitySet) -> Result<(), StepError> {
    let step = || "reduce capabilities".to_owned();
    for capability in CapabilitySet::all().difference(keep).iter() {
        match remove_capability_from_bounding_set(capability) {
            // A kernel older than this list does not know its newest entries.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno).step(step),
        }
    }
    let sets =
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).step(step)
}

/// Reading anywhere in the new root, writing only where it is meant, signals and abstract sockets
/// only among the commands themselves.
fn restrict_files(writable: &[String]) -> Result<u32, StepError> {
    let everything = AccessFs::from_all(NEWEST);
    let read = AccessFs::from_read(NEWEST);
    // Devices and the files of `/proc` are written to, never made or removed.
    let existing = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let fixed = [("/", read), ("/dev", existing), ("/proc", existing)];
    let scratch = ["/tmp", "/dev/shm"].map(|path| (path, everything));
    let own = writable.iter().map(|path| (path.as_str(), everything));

    let build = || -> Result<_, Box<dyn std::error::Error>> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(everything)?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        for (path, access) in fixed.into_iter().chain(scratch).chain(own) {
            ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, access))?;
        }
        Ok(ruleset.restrict_self()?)
    };
    let status = build()
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
