//! What commands may not make where it stays on the host when they have ended.
//!
//! A set-id program or a file capability that a command leaves in a folder of the host gives whoever runs
//! it there what its owner had. No mount option keeps it from being written, and Landlock knows nothing of
//! modes, so every call that takes one is looked at. The kernel takes a mode as 16 bits and flags as 32, so
//! only the lower half of an argument counts.

use super::program::Condition::{AnyBit, Masked};
use super::program::{Rule, Rules};

/// Whether what commands write stays where others find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteTarget {
    /// Only in the session's own storage, which nobody else can enter.
    Inside,
    /// In folders of the host.
    OnHost,
}

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// The flags without which nothing is made by opening it, and the mode is whatever was in the register:
/// `O_CREAT`, and what `O_TMPFILE` has besides `O_DIRECTORY`.
const MAKES: u32 = 0o100 | 0o2000_0000;

/// The part of a mode that says what kind of file it is, and the two kinds of devices.
const KIND: u32 = 0o17_0000;
const DEVICES: [u32; 2] = [0o2_0000, 0o6_0000];

/// The flag of `renameat2` that leaves a device in the place of what is moved.
const RENAME_WHITEOUT: u32 = 1 << 2;

/// Refuses what must not be left on the host.
pub(super) fn refuse_set_id(refused: &mut Rules, allowed: &mut Rules) {
    for (call, mode) in modes() {
        refuse(refused, call, vec![vec![AnyBit(mode, SET_ID)]]);
    }
    for (call, flags, mode) in openings() {
        refuse(refused, call, vec![vec![AnyBit(flags, MAKES), AnyBit(mode, SET_ID)]]);
    }
    for (call, mode) in makers_of_nodes() {
        let devices = DEVICES.map(|device| vec![Masked(mode, KIND, device)]);
        refuse(refused, call, devices.to_vec());
    }
    refuse(refused, libc::SYS_renameat2, vec![vec![AnyBit(4, RENAME_WHITEOUT)]]);
    // Its mode is behind a pointer, where nothing can look. Programs fall back to `openat`.
    allowed.remove(&libc::SYS_openat2);
}

/// Adds to when a call is refused; one that always is stays so.
fn refuse(refused: &mut Rules, call: libc::c_long, when: Vec<Rule>) {
    match refused.get_mut(&call) {
        Some(rules) if rules.is_empty() => {}
        Some(rules) if !when.is_empty() => rules.extend(when),
        _ => drop(refused.insert(call, when)),
    }
}

/// Calls that set a mode, and which argument that is. That of `mkdir` is none of them: the kernel takes no
/// set-id bits from it.
#[cfg(target_arch = "x86_64")]
fn modes() -> [(libc::c_long, u32); 7] {
    [
        (libc::SYS_chmod, 1),
        (libc::SYS_creat, 1),
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (libc::SYS_fchmodat2, 2),
        (libc::SYS_mknod, 1),
        (libc::SYS_mknodat, 2),
    ]
}

#[cfg(target_arch = "aarch64")]
fn modes() -> [(libc::c_long, u32); 4] {
    [
        (libc::SYS_fchmod, 1),
        (libc::SYS_fchmodat, 2),
        (libc::SYS_fchmodat2, 2),
        (libc::SYS_mknodat, 2),
    ]
}

/// Calls that open, and which arguments their flags and mode are. A queue of messages is a file too, and can
/// be copied like one where file systems can be mounted.
#[cfg(target_arch = "x86_64")]
fn openings() -> [(libc::c_long, u32, u32); 3] {
    [(libc::SYS_open, 1, 2), (libc::SYS_openat, 2, 3), (libc::SYS_mq_open, 1, 2)]
}

#[cfg(target_arch = "aarch64")]
fn openings() -> [(libc::c_long, u32, u32); 2] {
    [(libc::SYS_openat, 2, 3), (libc::SYS_mq_open, 1, 2)]
}

/// Calls that make devices, and which argument says so.
#[cfg(target_arch = "x86_64")]
fn makers_of_nodes() -> [(libc::c_long, u32); 2] {
    [(libc::SYS_mknod, 1), (libc::SYS_mknodat, 2)]
}

#[cfg(target_arch = "aarch64")]
fn makers_of_nodes() -> [(libc::c_long, u32); 1] {
    [(libc::SYS_mknodat, 2)]
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::super::filter::{FilterOptions, Protected, Shared, filter};
    use super::super::program::tests::answer_to;
    use super::*;

    const HIGH: u64 = 1 << 32;
    const EPERM: Option<i32> = Some(libc::EPERM);
    const ENOSYS: Option<i32> = Some(libc::ENOSYS);

    fn of(shared: Shared, writes: WriteTarget) -> seccompiler::BpfProgram {
        let walled = FilterOptions { shared, writes, ..FilterOptions::USUAL };
        filter(&Protected(vec![Pid::from_raw(7).unwrap()]), walled)
    }

    #[test]
    fn refuses_set_id_modes_however_they_are_written() {
        let all = [Shared::Nothing, Shared::Host { network: true }];
        for shared in all {
            let (inside, on_host) =
                (of(shared, WriteTarget::Inside), of(shared, WriteTarget::OnHost));
            for (call, at) in modes() {
                for bits in [0o4755, 0o2755, 0o6000, 0o4755 | HIGH] {
                    let mut arguments = [0; 4];
                    arguments[at as usize] = bits;
                    assert_eq!(answer_to(&on_host, call, &arguments), EPERM, "{call} {bits:o}");
                    arguments[at as usize] = bits & !0o6000 | 0o1000;
                    let want = answer_to(&inside, call, &arguments);
                    assert_eq!(answer_to(&on_host, call, &arguments), want, "{call}");
                }
            }
            for (call, flags, mode) in openings() {
                let ask = |filter: &[_], flag: u64| {
                    let mut arguments = [0; 4];
                    (arguments[flags as usize], arguments[mode as usize]) = (flag, 0o4755);
                    answer_to(filter, call, &arguments)
                };
                for flag in [0o100, 0o101, 0o100 | HIGH, 0o2020_0001] {
                    assert_eq!(ask(&on_host, flag), EPERM, "{call} {flag:o}");
                }
                // Nothing is made, and the mode means nothing.
                for flag in [0, 0o1, 0o1000, HIGH] {
                    assert_eq!(ask(&on_host, flag), ask(&inside, flag), "{call} {flag:o}");
                }
            }
        }
    }

    #[test]
    fn refuses_devices_and_what_nothing_can_look_at() {
        let on_host = of(Shared::Nothing, WriteTarget::OnHost);
        let inside = of(Shared::Nothing, WriteTarget::Inside);
        for (call, at) in makers_of_nodes() {
            let ask = |mode: u64| {
                let mut arguments = [0; 4];
                arguments[at as usize] = mode;
                answer_to(&on_host, call, &arguments)
            };
            assert_eq!([ask(0o2_0644), ask(0o6_0644 | HIGH)], [EPERM; 2]);
            assert_eq!([ask(0o1_0644), ask(0o10_0644), ask(0o644)], [None; 3], "pipes and files");
        }
        let rename = |flags: u64| answer_to(&on_host, libc::SYS_renameat2, &[0, 0, 0, 0, flags]);
        assert_eq!([rename(4), rename(5 | HIGH)], [EPERM; 2]);
        assert_eq!([rename(0), rename(1), rename(2)], [None; 3]);
        assert_eq!(answer_to(&on_host, libc::SYS_openat2, &[]), ENOSYS);
        assert_eq!(answer_to(&inside, libc::SYS_openat2, &[]), None);
    }
}
