//! Turning the tables into the filter the kernel runs.

use rustix::process::Pid;
use seccompiler::BpfProgram;

use super::program::Condition::{AnyBit, Equal, Masked, NotEqual};
use super::program::{Rule, Rules, denying, program};
use super::set_id::{WriteTarget, refuse_set_id};
use super::table;
use crate::sys::LIBRARY_SIGNALS;

/// Every kind of namespace a `clone` could ask for.
const NEW_NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    CLONE_NEWTIME,
];

/// Not in the C library's headers yet.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// The personalities Docker allows too: plain Linux, its 32-bit look, and asking.
const PERSONALITIES: [u32; 5] = [0, 0x0008, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// The `fcntl` request by which one process could have another one killed.
const F_SETSIG: u32 = 10;

/// The flags of `mount` that do something to what is mounted already, or show it elsewhere: `MS_REMOUNT`,
/// `MS_BIND`, `MS_MOVE`.
const CHANGES_MOUNTS: u32 = 0x20 | 0x1000 | 0x2000;

/// The families of sockets commands may have: of all the others the kernel's code is seldom used and often broken.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Those of them that lead to no server of the host by a path.
const FAMILIES_ON_HOST: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// What `setpriority` and `ioprio_set` call all processes of a user.
const PRIORITIES_OF_USER: [(libc::c_long, u32); 2] =
    [(libc::SYS_setpriority, 2), (libc::SYS_ioprio_set, 3)];

/// The processes of ours that share the commands' own walls or user, and must outlive them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Protected(pub(crate) Vec<Pid>);

/// What else of the kernel commands share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shared {
    /// Nothing: they are in namespaces of their own.
    Nothing,
    /// Nothing, and they may make further namespaces.
    Nested,
    /// Nothing, and they may mount something new.
    Mounting,
    /// Everything the host's own processes use.
    Host {
        /// Whether they may use its network.
        network: bool,
    },
}

/// Whether commands have to stay on the processors they were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Processors {
    /// They may choose among those of the machine.
    Free,
    /// Nothing else holds the limit on them.
    Pinned,
}

/// What a filter depends on besides whom it protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterOptions {
    pub(crate) shared: Shared,
    pub(crate) processors: Processors,
    pub(crate) writes: WriteTarget,
}

impl FilterOptions {
    /// Most sessions'.
    pub(crate) const USUAL: Self =
        Self { shared: Shared::Nothing, processors: Processors::Free, writes: WriteTarget::Inside };
}

/// The filter of the guest. It executes nothing, traces nobody, and mounts nothing.
pub(crate) fn guest_filter() -> BpfProgram {
    let mut refused = denied(table::REFUSED.iter().chain(table::REFUSED_HERE));
    refused.extend(denied(table::NOT_THE_GUESTS.iter().chain(table::NOT_INITS)));
    refused.insert(libc::SYS_clone, vec![vec![AnyBit(0, new_namespaces())]]);
    // Threads are then made by `clone`, whose flags can be seen.
    denying(&refused, &[libc::SYS_clone3])
}

/// The filter of init, which everything inside inherits: it denies nothing that any of them needs, and leaves init
/// what mounts and networks are made with.
pub(crate) fn init_filter() -> BpfProgram {
    let refused = table::REFUSED.iter().chain(table::REFUSED_HERE);
    let refused = refused.filter(|call| !table::INITS.contains(call));
    let mut refused = denied(refused);
    refused.extend(denied(table::NOT_INITS.iter()));
    denying(&refused, &[])
}

/// The filter of the process that makes listening sockets: those, its socket to the warden, and memory.
pub(crate) fn listeners_filter() -> BpfProgram {
    let mut allowed = denied(table::LISTENERS.iter());
    allowed.insert(libc::SYS_socket, vec![vec![Equal(0, number(libc::AF_INET))]]);
    program(&Rules::new(), &allowed)
}

/// The filter of a container's first process, which everything inside inherits. An engine has made the mounts, so what
/// makes more is left only where commands may.
pub(crate) fn first_filter(shared: Shared) -> BpfProgram {
    if shared == Shared::Mounting {
        return init_filter();
    }
    let refused = table::REFUSED.iter().chain(table::REFUSED_HERE).chain(table::NOT_INITS);
    denying(&denied(refused), &[])
}

fn denied<'a>(calls: impl Iterator<Item = &'a libc::c_long>) -> Rules {
    calls.map(|call| (*call, Vec::new())).collect()
}

fn new_namespaces() -> u32 {
    NEW_NAMESPACES.into_iter().fold(0, |all, flag| all | number(flag))
}

/// The filter of a command.
pub(crate) fn filter(protected: &Protected, walled: FilterOptions) -> BpfProgram {
    let FilterOptions { shared, processors, writes } = walled;
    let (mut refused, mut allowed) = (refused(protected), allowed());
    match shared {
        Shared::Nothing => {}
        Shared::Nested => {
            for call in table::NESTED {
                refused.remove(call);
                allowed.insert(*call, Vec::new());
            }
        }
        Shared::Mounting => {
            // What is mounted already stays as it is: read-only above all.
            refused.insert(libc::SYS_mount, vec![vec![AnyBit(3, CHANGES_MOUNTS)]]);
            refused.remove(&libc::SYS_umount2);
            // Programs that know newer calls go back to this one where those do not exist.
            for call in table::NEW_MOUNT_CALLS {
                refused.remove(call);
            }
            for call in [libc::SYS_mount, libc::SYS_umount2] {
                allowed.insert(call, Vec::new());
            }
        }
        Shared::Host { network } => refuse_shared(&mut refused, network),
    }
    if processors == Processors::Pinned {
        refused.insert(libc::SYS_sched_setaffinity, Vec::new());
    }
    if writes == WriteTarget::OnHost {
        refuse_set_id(&mut refused, &mut allowed);
    }
    program(&refused, &allowed)
}

/// Refuses what namespaces would keep apart and Landlock does not.
fn refuse_shared(refused: &mut Rules, network: bool) {
    // Memory, queues and semaphores that other processes of the user can have.
    for call in table::SHARED_MEMORY {
        refused.insert(*call, Vec::new());
    }
    // Sockets to servers of the host. Pairs stay, but for those that can be connected again.
    let families = if network { vec![none_of(&FAMILIES_ON_HOST)] } else { Vec::new() };
    refused.insert(libc::SYS_socket, families);
    let kinds = [libc::SOCK_DGRAM, libc::SOCK_RAW];
    let kinds = kinds.map(|kind| vec![Masked(1, 0xf, number(kind))]);
    refused.entry(libc::SYS_socketpair).or_default().extend(kinds);
    // Limits and priorities of processes that are not the caller itself.
    for call in table::ON_PROCESSES {
        refused.insert(*call, vec![vec![NotEqual(0, 0)]]);
    }
    // A process, this one; with `ioprio_set` a process is 1.
    refused.insert(libc::SYS_setpriority, vec![vec![NotEqual(0, 0)], vec![NotEqual(1, 0)]]);
    refused.insert(libc::SYS_ioprio_set, vec![vec![NotEqual(0, 1)], vec![NotEqual(1, 0)]]);
}

/// Everything that may happen at all.
fn allowed() -> Rules {
    let mut rules = Rules::new();
    for call in table::ALLOWED.iter().chain(table::ALLOWED_HERE) {
        rules.insert(*call, Vec::new());
    }
    for call in [libc::SYS_clone, libc::SYS_socket] {
        rules.insert(call, Vec::new());
    }
    let one_of = PERSONALITIES.into_iter().map(|value| vec![Equal(0, value)]).collect();
    rules.insert(libc::SYS_personality, one_of);
    rules
}

/// What is refused, by itself or by its arguments.
fn refused(protected: &Protected) -> Rules {
    let mut rules = Rules::new();
    for call in table::REFUSED.iter().chain(table::REFUSED_HERE) {
        rules.insert(*call, Vec::new());
    }
    rules.insert(libc::SYS_clone, vec![vec![AnyBit(0, new_namespaces())]]);
    // Typing into somebody else's terminal.
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX].map(|request| vec![Equal(1, low(request))]);
    rules.insert(libc::SYS_ioctl, terminal.to_vec());
    // Sockets to the hypervisor beside the network namespace are among the others.
    rules.insert(libc::SYS_socket, vec![none_of(&FAMILIES)]);
    rules.insert(libc::SYS_socketpair, vec![none_of(&[libc::AF_UNIX])]);
    rules.extend(signals(protected));
    rules.extend(priorities(protected));
    rules
}

/// A rule that holds for none of these families of sockets.
fn none_of(families: &[libc::c_int]) -> Rule {
    families.iter().map(|family| NotEqual(0, number(*family))).collect()
}

/// Every way to take the processor from the guest or the launcher, which have the commands' own user.
fn priorities(protected: &Protected) -> Vec<(i64, Vec<Rule>)> {
    let about = |argument: u32| -> Vec<Rule> {
        protected.0.iter().map(|pid| vec![Equal(argument, number(pid.as_raw_pid()))]).collect()
    };
    let own = table::ON_PROCESSES.iter().map(|call| (*call, about(0)));
    let others = PRIORITIES_OF_USER.into_iter().map(|(call, user)| {
        let all_of_user = vec![Equal(0, user)];
        (call, about(1).into_iter().chain([all_of_user]).collect())
    });
    own.chain(others).collect()
}

/// Every way to signal or take hold of the guest or the launcher.
///
/// The launcher is inside the same Landlock domain as the commands, so only this keeps them apart;
/// for the guest it is a second wall beside the domain. `pidfd_send_signal` is in no table: it takes a folder of
/// `/proc` for a process as well, and no filter can see whose.
fn signals(protected: &Protected) -> [(i64, Vec<Rule>); 10] {
    let pids: Vec<_> = protected.0.iter().map(|pid| pid.as_raw_pid()).collect();
    let at = |argument: u32, values: &[libc::c_int]| -> Vec<Rule> {
        values.iter().map(|value| vec![Equal(argument, number(*value))]).collect()
    };
    let groups: Vec<_> = pids.iter().flat_map(|pid| [*pid, -*pid]).chain([-1]).collect();
    let either = [at(0, &pids), at(1, &pids)].concat();
    let deadly = [libc::SIGKILL, libc::SIGSTOP].into_iter().chain(LIBRARY_SIGNALS);
    let deadly = deadly.map(|signal| vec![Equal(1, F_SETSIG), Equal(2, number(signal))]);
    [
        (libc::SYS_kill, at(0, &groups)),
        (libc::SYS_tkill, at(0, &pids)),
        (libc::SYS_tgkill, either.clone()),
        (libc::SYS_rt_sigqueueinfo, at(0, &pids)),
        (libc::SYS_rt_tgsigqueueinfo, either),
        (libc::SYS_pidfd_open, at(0, &pids)),
        (libc::SYS_ptrace, at(1, &pids)),
        (libc::SYS_process_vm_readv, at(0, &pids)),
        (libc::SYS_process_vm_writev, at(0, &pids)),
        (libc::SYS_fcntl, deadly.collect()),
    ]
}

/// A C integer as the kernel compares it: its 32 bits, without sign.
fn number(value: libc::c_int) -> u32 {
    u32::from_ne_bytes(value.to_ne_bytes())
}

/// The part of a request the kernel looks at.
fn low(request: libc::Ioctl) -> u32 {
    u32::try_from(request & 0xffff_ffff).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_short_and_kills_nobody() {
        let pid = Pid::from_raw(7).unwrap();
        let all = [
            Shared::Nothing,
            Shared::Nested,
            Shared::Mounting,
            Shared::Host { network: true },
            Shared::Host { network: false },
        ];
        let both = [WriteTarget::Inside, WriteTarget::OnHost];
        for (shared, writes) in all.into_iter().flat_map(|one| both.map(|both| (one, both))) {
            let walled = FilterOptions { shared, processors: Processors::Pinned, writes };
            let program = filter(&Protected(vec![pid]), walled);
            assert!(program.len() < 650, "{} instructions", program.len());
            let kills = [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_KILL_THREAD];
            assert!(program.iter().all(|step| !(step.code == 0x06 && kills.contains(&step.k))));
        }
    }

    /// Launchers and commands inherit init's filter.
    #[test]
    fn denies_init_nothing_that_a_command_may_do() {
        for call in table::NOT_INITS {
            let allowed = table::ALLOWED.contains(call) || table::ALLOWED_HERE.contains(call);
            let inits = table::INITS.contains(call) || table::NESTED.contains(call);
            assert!(!allowed && !inits, "system call {call} is denied to init");
        }
        for call in table::INITS {
            assert!(table::REFUSED.contains(call), "system call {call} is not refused anyway");
        }
    }

    #[test]
    fn lists_no_call_as_both_allowed_and_refused() {
        let refused = table::REFUSED.iter().chain(table::REFUSED_HERE);
        for call in refused {
            let allowed = table::ALLOWED.contains(call) || table::ALLOWED_HERE.contains(call);
            assert!(!allowed, "system call {call} is in both tables");
        }
    }
}
