//! The system calls a probe tries. The only module of the test kit that may hold `unsafe`.
#![expect(unsafe_code, reason = "the calls that must be refused have no safe wrapper")]

use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::AsRawFd;

/// A call that was made, and what came of it.
pub(super) type Attempt = (String, io::Result<i64>);

/// Makes a call all of whose arguments are plain numbers, for pointers null. With such arguments none of
/// the calls in this module touches memory, whether it is refused or not.
fn call(number: libc::c_long, arguments: [libc::c_long; 5]) -> io::Result<i64> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: every caller is in this module and passes numbers and null pointers only, to calls that
    // answer those with an error or an effect outside this process's memory.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// What of these attempts was not refused: anything but "not permitted" and "no such call".
pub(super) fn not_refused(attempts: &[Attempt]) -> Vec<String> {
    let refused = [libc::EPERM, libc::ENOSYS, libc::EACCES].map(Some);
    attempts
        .iter()
        .filter_map(|(what, answer)| match answer {
            Err(error) if refused.contains(&error.raw_os_error()) => None,
            Err(error) => Some(format!("{what}: {error}")),
            Ok(_) => Some(format!("{what}: done")),
        })
        .collect()
}

fn attempts(list: &[(&str, libc::c_long, [libc::c_long; 5])]) -> Vec<Attempt> {
    list.iter()
        .map(|(what, number, arguments)| ((*what).to_owned(), call(*number, *arguments)))
        .collect()
}

/// One page of a file, mapped shared and writable.
pub(super) struct Mapping(*mut u8);

impl Mapping {
    const PAGE: usize = 4096;

    /// Maps the first page, and reads from it: so it is mapped before anything is stored.
    pub(super) fn new(file: &std::fs::File) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (none, file) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: new memory, at a place the kernel chooses.
        let at = unsafe { libc::mmap(none, Self::PAGE, protection, libc::MAP_SHARED, file, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self(at.cast());
        // SAFETY: the page is mapped, and nothing else in this process refers to it.
        unsafe { mapping.0.read_volatile() };
        Ok(mapping)
    }

    /// Stores a byte at its front.
    pub(super) fn store(&self, byte: u8) {
        // SAFETY: as above.
        unsafe { self.0.write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped above with this length, and is not used after this.
        unsafe { libc::munmap(self.0.cast(), Self::PAGE) };
    }
}

/// Makes a call of whose arguments one is the name of a file, and all others are plain numbers.
fn call_on(
    number: libc::c_long,
    path: &CStr,
    at: usize,
    mut arguments: [libc::c_long; 4],
) -> io::Result<i64> {
    if let Some(place) = arguments.get_mut(at) {
        *place = path.as_ptr() as libc::c_long;
    }
    let [a, b, c, d] = arguments;
    // SAFETY: every caller is in this module; the one pointer is to a name that ends in a nul and outlives
    // the call, and the calls it is passed to read that name alone.
    let result = unsafe { libc::syscall(number, a, b, c, d) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Every call that takes a mode, with set-id bits in it, and with bits set that the kernel does not look
/// at. What they are called on is beneath the current folder.
#[cfg(target_arch = "x86_64")]
pub(super) fn set_id_calls() -> Vec<Attempt> {
    /// The kernel takes a mode and flags as integers, and ignores this.
    const HIGH: libc::c_long = 1 << 40;
    /// Added to the number of a call of the ABI with 32-bit pointers.
    const X32: libc::c_long = 0x4000_0000;
    const FCHMODAT2: libc::c_long = 452;
    let (here, set) = (libc::c_long::from(libc::AT_FDCWD), 0o4755);
    let made = libc::c_long::from(libc::O_CREAT | libc::O_WRONLY);
    let regular = libc::c_long::from(libc::S_IFREG);
    let list: [(&str, &CStr, libc::c_long, usize, [libc::c_long; 4]); 16] = [
        ("chmod", c"sys-chmod", libc::SYS_chmod, 0, [0, set, 0, 0]),
        ("chmod group", c"sys-chmod-group", libc::SYS_chmod, 0, [0, 0o2755, 0, 0]),
        ("chmod high", c"sys-chmod-high", libc::SYS_chmod, 0, [0, set | HIGH, 0, 0]),
        ("chmod x32", c"sys-chmod-x32", libc::SYS_chmod | X32, 0, [0, set, 0, 0]),
        ("fchmodat", c"sys-fchmodat", libc::SYS_fchmodat, 1, [here, 0, set, 0]),
        ("fchmodat high", c"sys-fchmodat-high", libc::SYS_fchmodat, 1, [here, 0, set | HIGH, 0]),
        ("fchmodat2", c"sys-fchmodat2", FCHMODAT2, 1, [here, 0, set, 0]),
        ("creat", c"sys-creat-new", libc::SYS_creat, 0, [0, set, 0, 0]),
        ("open", c"sys-open-new", libc::SYS_open, 0, [0, made, set, 0]),
        ("open high", c"sys-open-high-new", libc::SYS_open, 0, [0, made | HIGH, set | HIGH, 0]),
        ("openat", c"sys-openat-new", libc::SYS_openat, 1, [here, 0, made, set]),
        ("openat high", c"sys-openat-high-new", libc::SYS_openat, 1, [here, 0, made | HIGH, set]),
        ("mknod", c"sys-mknod-new", libc::SYS_mknod, 0, [0, regular | set, 0, 0]),
        ("mknod high", c"sys-mknod-high-new", libc::SYS_mknod, 0, [0, regular | set | HIGH, 0, 0]),
        ("mknodat", c"sys-mknodat-new", libc::SYS_mknodat, 1, [here, 0, regular | set, 0]),
        ("mq_open", c"bastide-canary", libc::SYS_mq_open, 0, [0, made, set, 0]),
    ];
    let one = |(what, path, number, at, arguments): (&str, &CStr, _, _, _)| {
        let name = path.to_string_lossy();
        if !name.ends_with("-new") && name.starts_with("sys-") {
            drop(std::fs::write(&*name, "#!/bin/sh\n"));
        }
        (what.to_owned(), call_on(number, path, at, arguments))
    };
    list.into_iter().map(one).collect()
}

/// There are only the calls that have safe wrappers.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn set_id_calls() -> Vec<Attempt> {
    Vec::new()
}

/// Mounts and namespaces.
pub(super) fn mounts() -> Vec<Attempt> {
    let flag = libc::c_long::from;
    attempts(&[
        ("mount", libc::SYS_mount, [0; 5]),
        ("umount2", libc::SYS_umount2, [0; 5]),
        ("pivot_root", libc::SYS_pivot_root, [0; 5]),
        ("chroot", libc::SYS_chroot, [0; 5]),
        ("fsopen", libc::SYS_fsopen, [0; 5]),
        ("open_tree", libc::SYS_open_tree, [0; 5]),
        ("move_mount", libc::SYS_move_mount, [0; 5]),
        ("mount_setattr", libc::SYS_mount_setattr, [0; 5]),
        ("setns", libc::SYS_setns, [0; 5]),
        ("unshare user", libc::SYS_unshare, [flag(libc::CLONE_NEWUSER), 0, 0, 0, 0]),
        ("unshare mount", libc::SYS_unshare, [flag(libc::CLONE_NEWNS), 0, 0, 0, 0]),
        ("unshare net", libc::SYS_unshare, [flag(libc::CLONE_NEWNET), 0, 0, 0, 0]),
        ("clone user", libc::SYS_clone, [flag(libc::CLONE_NEWUSER | libc::SIGCHLD), 0, 0, 0, 0]),
        ("clone pid", libc::SYS_clone, [flag(libc::CLONE_NEWPID | libc::SIGCHLD), 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, [0; 5]),
    ])
}

/// Sockets of every kind that could reach anybody.
pub(super) fn sockets() -> Vec<Attempt> {
    let (family, kind) = (libc::c_long::from, libc::c_long::from);
    let (stream, datagram) = (kind(libc::SOCK_STREAM), kind(libc::SOCK_DGRAM));
    attempts(&[
        ("stream", libc::SYS_socket, [family(libc::AF_INET), stream, 0, 0, 0]),
        ("datagram", libc::SYS_socket, [family(libc::AF_INET), datagram, 0, 0, 0]),
        ("six", libc::SYS_socket, [family(libc::AF_INET6), datagram, 0, 0, 0]),
        ("unix", libc::SYS_socket, [family(libc::AF_UNIX), stream, 0, 0, 0]),
        ("netlink", libc::SYS_socket, [family(libc::AF_NETLINK), datagram, 0, 0, 0]),
        ("vsock", libc::SYS_socket, [family(libc::AF_VSOCK), stream, 0, 0, 0]),
    ])
}

/// Sockets that send or see what no other socket does.
pub(super) fn raw_sockets() -> Vec<Attempt> {
    let (family, kind) = (libc::c_long::from, libc::c_long::from);
    let (raw, datagram) = (kind(libc::SOCK_RAW), kind(libc::SOCK_DGRAM));
    let every = libc::c_long::from(libc::ETH_P_ALL.to_be());
    attempts(&[
        ("icmp", libc::SYS_socket, [family(libc::AF_INET), raw, 1, 0, 0]),
        ("raw ip", libc::SYS_socket, [family(libc::AF_INET), raw, 255, 0, 0]),
        ("raw six", libc::SYS_socket, [family(libc::AF_INET6), raw, 58, 0, 0]),
        ("packet", libc::SYS_socket, [family(libc::AF_PACKET), raw, every, 0, 0]),
        ("cooked packet", libc::SYS_socket, [family(libc::AF_PACKET), datagram, every, 0, 0]),
    ])
}

/// Interfaces of the kernel that reach past a sandbox, or have led out of many.
pub(super) fn reaching_calls() -> Vec<Attempt> {
    let family = libc::c_long::from;
    attempts(&[
        ("bpf", libc::SYS_bpf, [0; 5]),
        ("perf_event_open", libc::SYS_perf_event_open, [0; 5]),
        ("keyctl", libc::SYS_keyctl, [0; 5]),
        ("add_key", libc::SYS_add_key, [0; 5]),
        ("request_key", libc::SYS_request_key, [0; 5]),
        ("userfaultfd", libc::SYS_userfaultfd, [0; 5]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, [0; 5]),
        ("init_module", libc::SYS_init_module, [0; 5]),
        ("finit_module", libc::SYS_finit_module, [-1, 0, 0, 0, 0]),
        ("kexec_load", libc::SYS_kexec_load, [0; 5]),
        ("reboot", libc::SYS_reboot, [0; 5]),
        ("swapon", libc::SYS_swapon, [0; 5]),
        ("acct", libc::SYS_acct, [-1, 0, 0, 0, 0]),
        ("syslog", libc::SYS_syslog, [3, 0, 0, 0, 0]),
        ("clock_settime", libc::SYS_clock_settime, [0; 5]),
        ("settimeofday", libc::SYS_settimeofday, [0; 5]),
        ("sethostname", libc::SYS_sethostname, [0; 5]),
        ("fanotify_init", libc::SYS_fanotify_init, [0; 5]),
        ("quotactl", libc::SYS_quotactl, [0; 5]),
        ("raw socket", libc::SYS_socket, [family(libc::AF_INET), family(libc::SOCK_RAW), 1, 0, 0]),
        (
            "packet socket",
            libc::SYS_socket,
            [family(libc::AF_PACKET), family(libc::SOCK_RAW), 0, 0, 0],
        ),
        ("vsock", libc::SYS_socket, [family(libc::AF_VSOCK), family(libc::SOCK_STREAM), 0, 0, 0]),
        ("crypto", libc::SYS_socket, [family(libc::AF_ALG), family(libc::SOCK_SEQPACKET), 0, 0, 0]),
        ("keys", libc::SYS_socket, [family(libc::AF_KEY), family(libc::SOCK_RAW), 2, 0, 0]),
        ("tipc", libc::SYS_socket, [family(libc::AF_TIPC), family(libc::SOCK_SEQPACKET), 0, 0, 0]),
        ("can", libc::SYS_socket, [family(libc::AF_CAN), family(libc::SOCK_DGRAM), 2, 0, 0]),
        ("rds", libc::SYS_socket, [family(libc::AF_RDS), family(libc::SOCK_SEQPACKET), 0, 0, 0]),
        ("smc", libc::SYS_socket, [43, family(libc::SOCK_STREAM), 0, 0, 0]),
        ("xdp", libc::SYS_socket, [family(libc::AF_XDP), family(libc::SOCK_RAW), 0, 0, 0]),
        (
            "tipc pair",
            libc::SYS_socketpair,
            [family(libc::AF_TIPC), family(libc::SOCK_SEQPACKET), 0, 0, 0],
        ),
    ])
}

/// Typing into a terminal as if a person did.
pub(super) fn terminal_requests(terminal: &std::fs::File) -> Vec<Attempt> {
    let requests = [("TIOCSTI", libc::TIOCSTI), ("TIOCLINUX", libc::TIOCLINUX)];
    let fd = libc::c_long::from(terminal.as_raw_fd());
    let one = |(what, request): (&str, libc::Ioctl)| {
        let request = libc::c_long::try_from(request).unwrap_or(0);
        (what.to_owned(), call(libc::SYS_ioctl, [fd, request, 0, 0, 0]))
    };
    requests.into_iter().map(one).collect()
}

/// A call that no kernel has.
pub(super) fn unknown_call() -> String {
    match call(9999, [0; 5]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => "no such call".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Every way to end, stop or take hold of a process.
pub(super) fn attack(pid: i32) -> Vec<Attempt> {
    let (pid, kill) = (libc::c_long::from(pid), libc::c_long::from(libc::SIGKILL));
    let stop = libc::c_long::from(libc::SIGSTOP);
    // The kernel takes a folder of `/proc` for a process, too.
    let folder = std::fs::File::open(format!("/proc/{pid}"));
    let folder = folder.as_ref().map_or(-1, |folder| libc::c_long::from(folder.as_raw_fd()));
    // It drops the upper half of what is an `int` to it.
    let high = 1_i64 << 32;
    let set_signal = 10; // F_SETSIG
    let idle = 3 << 13; // IOPRIO_CLASS_IDLE
    let attach = 16; // PTRACE_ATTACH
    let seize = 0x4206; // PTRACE_SEIZE
    attempts(&[
        ("kill", libc::SYS_kill, [pid, kill, 0, 0, 0]),
        ("kill with stop", libc::SYS_kill, [pid, stop, 0, 0, 0]),
        ("kill group of", libc::SYS_kill, [-pid, kill, 0, 0, 0]),
        ("tkill", libc::SYS_tkill, [pid, kill, 0, 0, 0]),
        ("tgkill", libc::SYS_tgkill, [pid, pid, kill, 0, 0]),
        ("ptrace attach", libc::SYS_ptrace, [attach, pid, 0, 0, 0]),
        ("ptrace seize", libc::SYS_ptrace, [seize, pid, 0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [pid, 0, 0, 0, 0]),
        ("kill with high bits", libc::SYS_kill, [pid & 0xffff_ffff | high, stop, 0, 0, 0]),
        ("pidfd_send_signal with stop", libc::SYS_pidfd_send_signal, [folder, stop, 0, 0, 0]),
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal, [folder, kill, 0, 0, 0]),
        ("F_SETSIG", libc::SYS_fcntl, [0, set_signal, kill, 0, 0]),
        ("F_SETSIG with high bits", libc::SYS_fcntl, [0, set_signal, kill | high, 0, 0]),
        // The two that the C library has for itself and lets nobody block.
        ("F_SETSIG with 32", libc::SYS_fcntl, [0, set_signal, 32, 0, 0]),
        ("F_SETSIG with 33", libc::SYS_fcntl, [0, set_signal, 33, 0, 0]),
        ("F_SETSIG with 33 and high bits", libc::SYS_fcntl, [0, set_signal, 33 | high, 0, 0]),
        ("setpriority", libc::SYS_setpriority, [0, pid, 19, 0, 0]),
        ("setpriority of the user", libc::SYS_setpriority, [2, 0, 19, 0, 0]),
        ("ioprio_set", libc::SYS_ioprio_set, [1, pid, idle, 0, 0]),
    ])
}

/// A signal to everybody this process may signal.
pub(super) fn kill_everybody() -> io::Result<i64> {
    call(libc::SYS_kill, [-1, libc::c_long::from(libc::SIGKILL), 0, 0, 0])
}

/// Whether this process could signal another; none is sent.
pub(super) fn may_signal(pid: i32) -> bool {
    call(libc::SYS_kill, [libc::c_long::from(pid), 0, 0, 0, 0]).is_ok()
}

/// A segment of shared memory that every process of this user can find; removed with this value.
#[derive(Debug)]
pub(crate) struct Segment {
    key: libc::c_long,
    id: libc::c_long,
}

impl Segment {
    /// Makes one, where the kernel has any.
    pub(crate) fn make() -> Option<Self> {
        let key = 0x0bad_0000 | libc::c_long::from(std::process::id() & 0xffff);
        let flags = libc::c_long::from(libc::IPC_CREAT | 0o666);
        let id = call(libc::SYS_shmget, [key, 4096, flags, 0, 0]).ok()?;
        Some(Self { key, id })
    }

    /// The number it is found by.
    pub(crate) fn key(&self) -> i64 {
        self.key
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let remove = libc::c_long::from(libc::IPC_RMID);
        // One that cannot be removed is found by `ipcs`; the trial has its result.
        drop(call(libc::SYS_shmctl, [self.id, remove, 0, 0, 0]));
    }
}

/// Looks for a segment of shared memory.
pub(super) fn find_segment(key: &str) -> Vec<String> {
    let Ok(key) = key.parse() else { return vec!["no number".to_owned()] };
    match call(libc::SYS_shmget, [key, 0, 0, 0, 0]) {
        Ok(_) => vec![format!("found segment {key}")],
        Err(_) => Vec::new(),
    }
}

/// Forks processes that do nothing until they are killed, as many as are wanted or as there is room for; how many.
pub(super) fn family(wanted: usize) -> usize {
    (0..wanted).take_while(|_| fork_one()).count()
}

fn fork_one() -> bool {
    // SAFETY: a probe has one thread, and the child does nothing but wait.
    match unsafe { libc::fork() } {
        0 => forever(),
        pid => pid > 0,
    }
}

/// Forks without end, in every process that comes of it; says once that there is no room for more.
pub(super) fn storm() -> ! {
    let first = rustix::process::getpid();
    let mut reported = false;
    loop {
        // SAFETY: a probe has one thread, and the child does nothing but the same.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            if !reported && rustix::process::getpid() == first {
                // Where nobody listens any more there is nobody to tell.
                drop(io::stdout().write_all(b"full\n"));
            }
            reported = true;
            // As soon as one of them dies another one takes its place, and others on this machine get their turn.
            std::thread::park_timeout(std::time::Duration::from_millis(2));
        }
    }
}

/// Waits until it is killed.
pub(super) fn forever() -> ! {
    loop {
        // SAFETY: it takes no arguments and only waits.
        unsafe { libc::pause() };
    }
}

/// Asks for every processor, and says how many this process may use after that.
pub(super) fn all_processors() -> usize {
    // SAFETY: a set of processors is plain data for which all zeroes is the empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of::<libc::cpu_set_t>();
    for number in 0..1024 {
        // SAFETY: the set has room for 1024 of them.
        unsafe { libc::CPU_SET(number, &mut set) };
    }
    // SAFETY: the set lives until the call returns, and its size is passed beside it.
    unsafe { libc::sched_setaffinity(0, size, &raw const set) };
    // SAFETY: as above.
    unsafe { libc::sched_getaffinity(0, size, &raw mut set) };
    // SAFETY: the set is a valid one.
    usize::try_from(unsafe { libc::CPU_COUNT(&set) }).unwrap_or(0)
}

/// Takes so many bytes of memory that could be shared, and uses them.
pub(super) fn share(bytes: usize) -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, at a place the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of it was mapped just now, to be written to, and is nobody else's.
    unsafe { std::ptr::write_bytes(start.cast::<u8>(), 7, bytes) };
    Ok(())
}
