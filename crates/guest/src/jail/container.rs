//! The walls between commands and guest inside a container, whose other walls are its engine's.

use landlock::{ABI, Access, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_no_new_privs};

use super::seccomp::{FilterOptions, Protected, Shared, first_filter, guest_filter};
use super::walls::{abi_number, apply, install_filter, keep_capabilities};
use super::{StepContext, StepError};
use crate::removable_walls::{Wall, is_removed};

pub(crate) use super::walls::become_user;

/// The newest Landlock version we know how to use.
const NEWEST: ABI = ABI::V7;

/// What the first process and the guest use. Whatever else the engine gave is for commands of root.
const OWN: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::KILL);

/// Leaves the first process what it uses of what the engine gave. The rest it keeps for the launchers it
/// will start.
pub(crate) fn reduce_first() -> Result<(), StepError> {
    let given = given()?;
    keep_capabilities(given, given.intersection(OWN))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "become untraceable".to_owned())
}

/// Leaves the guest what it uses.
pub(crate) fn reduce_guest() -> Result<(), StepError> {
    let keep = given()?.intersection(OWN);
    keep_capabilities(keep, keep)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).step(|| "become untraceable".to_owned())
}

/// Keeps the first process, and all it will fork, from what none of them does. Where commands may gain privileges, or the
/// caller wants no calls filtered, they would inherit it: there it stays as the engine made it.
pub(crate) fn harden_first(
    shared: Shared,
    is_filtered: bool,
    gains_privileges: bool,
) -> Result<(), StepError> {
    if gains_privileges {
        return Ok(());
    }
    set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    if is_filtered && !is_removed(Wall::OwnFilters) { apply(&first_filter(shared)) } else { Ok(()) }
}

/// Keeps the guest from what it does not do. It executes nothing, so nobody inherits that.
pub(crate) fn harden_guest(is_filtered: bool) -> Result<(), StepError> {
    set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    if is_filtered && !is_removed(Wall::OwnFilters) { apply(&guest_filter()) } else { Ok(()) }
}

fn given() -> Result<CapabilitySet, StepError> {
    Ok(capabilities(None).step(|| "look at capabilities".to_owned())?.permitted)
}

/// Puts this process, and everything it forks from now on, behind the walls: no new privileges, our own
/// filter of system calls if there is somebody to protect by it, and signals and abstract sockets only
/// among commands. Returns the Landlock version in force, 0 where there is none: what files commands
/// reach is the engine's to say.
pub(crate) fn raise_walls(
    protected: Option<&Protected>,
    options: FilterOptions,
) -> Result<u32, StepError> {
    // What the engine gave, of which a user that is no root has lost everything by now.
    let given = given()?;
    keep_capabilities(given, given)?;
    set_no_new_privs(true).step(|| "give up new privileges".to_owned())?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .step(|| "become untraceable".to_owned())?;
    let landlock_abi = keep_to_commands()?;
    if let Some(protected) = protected {
        install_filter(protected, options)?;
    }
    Ok(landlock_abi)
}

/// An engine may refuse Landlock altogether; that is said, and no reason not to start. Where there is
/// Landlock, it has to hold.
fn keep_to_commands() -> Result<u32, StepError> {
    let build = || -> Result<_, landlock::RulesetError> {
        Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .scope(Scope::from_all(NEWEST))?
            .create()?
            .restrict_self()
    };
    let status = build()
        .map_err(|error| std::io::Error::other(error.to_string()))
        .step(|| "restrict commands with Landlock".to_owned())?;
    Ok(match status.landlock {
        landlock::LandlockStatus::Available { effective_abi, .. } => abi_number(effective_abi),
        _ => 0,
    })
}
