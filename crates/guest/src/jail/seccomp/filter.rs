//! Turning the tables into filters the kernel runs.

use std::collections::BTreeMap;

use rustix::process::Pid;
use seccompiler::SeccompCmpArgLen::{Dword, Qword};
use seccompiler::SeccompCmpOp::{self, Eq, MaskedEq};
use seccompiler::{BpfProgram, SeccompAction, SeccompCondition, SeccompFilter, SeccompRule};

use super::table;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Result<T> = std::result::Result<T, seccompiler::BackendError>;

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
const PERSONALITIES: [u64; 5] = [0, 0x0008, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// `fcntl` requests and signals by which one process could have another one killed.
const F_SETSIG: u64 = 10;

/// The processes of ours that share the commands' own walls or user, and must outlive them.
#[derive(Debug, Clone)]
pub(crate) struct Protected(pub(crate) Vec<Pid>);

/// The filters of a command, in the order they must be installed.
pub(crate) fn filters(protected: &Protected) -> Result<Vec<BpfProgram>> {
    Ok(vec![
        program(refused(protected)?, SeccompAction::Allow, refusal(libc::EPERM))?,
        program(allowed()?, refusal(libc::ENOSYS), SeccompAction::Allow)?,
    ])
}

/// The answer for a call that is not made.
fn refusal(errno: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(errno.unsigned_abs())
}

/// Everything that may happen at all.
fn allowed() -> Result<Rules> {
    let mut rules = Rules::new();
    let refused = table::REFUSED.iter().chain(table::REFUSED_HERE);
    // What the other filter refuses must pass this one, or it would be "unknown" instead.
    for call in table::ALLOWED.iter().chain(table::ALLOWED_HERE).chain(refused) {
        rules.insert(*call, Vec::new());
    }
    for call in [libc::SYS_clone, libc::SYS_socket] {
        rules.insert(call, Vec::new());
    }
    let personalities = PERSONALITIES.into_iter();
    let one_of = personalities.map(|value| rule([(0, Qword, Eq, value)])).collect::<Result<_>>()?;
    rules.insert(libc::SYS_personality, one_of);
    Ok(rules)
}

/// What is refused, by itself or by its arguments.
fn refused(protected: &Protected) -> Result<Rules> {
    let mut rules = Rules::new();
    for call in table::REFUSED.iter().chain(table::REFUSED_HERE) {
        rules.insert(*call, Vec::new());
    }
    let flags = NEW_NAMESPACES.into_iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        rule([(0, Qword, MaskedEq(flag), flag)])
    });
    rules.insert(libc::SYS_clone, flags.collect::<Result<_>>()?);
    // Typing into somebody else's terminal.
    let terminal = [libc::TIOCSTI, libc::TIOCLINUX];
    let terminal = terminal.map(|request| rule([(1, Dword, Eq, request)]));
    rules.insert(libc::SYS_ioctl, terminal.into_iter().collect::<Result<_>>()?);
    // Sockets to the hypervisor beside the network namespace.
    rules.insert(libc::SYS_socket, vec![rule([(0, Dword, Eq, number(libc::AF_VSOCK))])?]);
    for (call, one_of) in signals(protected)? {
        rules.insert(call, one_of);
    }
    Ok(rules)
}

/// Every way to signal or take hold of the guest or the launcher.
///
/// The launcher is inside the same Landlock domain as the commands, so only this keeps them apart;
/// for the guest it is a second wall beside the domain.
fn signals(protected: &Protected) -> Result<Vec<(i64, Vec<SeccompRule>)>> {
    let pids: Vec<_> = protected.0.iter().map(|pid| pid.as_raw_pid()).collect();
    let at = |argument: u8, values: &[libc::c_int]| -> Result<Vec<SeccompRule>> {
        values.iter().map(|value| rule([(argument, Dword, Eq, number(*value))])).collect()
    };
    let groups: Vec<_> = pids.iter().flat_map(|pid| [*pid, -*pid]).chain([-1]).collect();
    let either = [at(0, &pids)?, at(1, &pids)?].concat();
    let deadly = [libc::SIGKILL, libc::SIGSTOP]
        .map(|signal| rule([(1, Dword, Eq, F_SETSIG), (2, Qword, Eq, number(signal))]));
    Ok(vec![
        (libc::SYS_kill, at(0, &groups)?),
        (libc::SYS_tkill, at(0, &pids)?),
        (libc::SYS_tgkill, either.clone()),
        (libc::SYS_rt_sigqueueinfo, at(0, &pids)?),
        (libc::SYS_rt_tgsigqueueinfo, either),
        (libc::SYS_pidfd_open, at(0, &pids)?),
        (libc::SYS_ptrace, at(1, &pids)?),
        (libc::SYS_process_vm_readv, at(0, &pids)?),
        (libc::SYS_process_vm_writev, at(0, &pids)?),
        (libc::SYS_prlimit64, at(0, &pids)?),
        (libc::SYS_fcntl, deadly.into_iter().collect::<Result<_>>()?),
    ])
}

/// One rule: all of the conditions hold.
fn rule<const N: usize>(
    conditions: [(u8, seccompiler::SeccompCmpArgLen, SeccompCmpOp, u64); N],
) -> Result<SeccompRule> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, length, op, value)| SeccompCondition::new(argument, length, op, value))
        .collect::<Result<_>>()?;
    SeccompRule::new(conditions)
}

/// A C integer as the kernel compares it: its 32 bits, without sign.
fn number(value: libc::c_int) -> u64 {
    u64::from(u32::from_ne_bytes(value.to_ne_bytes()))
}

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram> {
    let arch = std::env::consts::ARCH.try_into()?;
    let mut program: BpfProgram =
        SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()?;
    // The library kills a process that makes a call of another architecture (a 32-bit program, say).
    // It is told that there is no such call instead. The third instruction holds that answer.
    if let Some(foreign) = program.get_mut(2) {
        foreign.k = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_foreign_architectures_with_no_such_call() {
        let pid = Pid::from_raw(7).unwrap();
        for program in filters(&Protected(vec![pid])).unwrap() {
            let kills = [libc::SECCOMP_RET_KILL_PROCESS, libc::SECCOMP_RET_KILL_THREAD];
            assert!(program.iter().all(|step| !(step.code == 0x06 && kills.contains(&step.k))));
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
