//! The only module of the guest that may hold `unsafe`: the system calls rustix has no safe form of.
#![expect(unsafe_code, reason = "fork, clone, exec and a few newer calls have no safe wrapper")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
use rustix::process::{Pid, Uid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Fork {
    /// The process that forked, with its new child.
    Parent(Pid),
    /// The new child.
    Child,
}

/// Forks this process, which must have one thread: the child of a threaded process inherits locks
/// that nobody will ever release.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: every caller is one of our one-threaded processes (warden, init, launcher,
    // supervisor), so no lock can be held by a thread the child does not have.
    let pid = unsafe { libc::fork() };
    forked(pid)
}

/// Forks this process into new namespaces given as `CLONE_NEW*` flags.
///
/// The child must not start threads or use `fork` of another kind than [`fork`]: the C library does
/// not know about it and still holds the parent's thread id.
pub(crate) fn fork_into(namespaces: libc::c_int) -> io::Result<Fork> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: with a null stack, clone behaves like fork: the child runs on a copy of this stack.
    // The only callers are the warden and init, which have one thread.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    forked(libc::pid_t::try_from(pid).unwrap_or(-1))
}

fn forked(pid: libc::pid_t) -> io::Result<Fork> {
    match pid {
        0 => Ok(Fork::Child),
        pid if pid > 0 => Pid::from_raw(pid).map(Fork::Parent).ok_or_else(io::Error::last_os_error),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The stack of a process that shares its maker's memory.
const STACK: usize = 256 << 10;

/// Where such a process begins, and the descriptor it gets.
struct ForkEntry {
    entry_point: fn(OwnedFd) -> !,
    socket: RawFd,
}

/// Forks this process without copying its memory: the child lives in it, on a stack of its own, until it
/// executes a program, which then has nothing to clear away. The child has `socket`, and this process no
/// longer does.
///
/// Whoever calls this must not touch the heap again: the child may, once it is told that nobody else does,
/// and may be killed in the middle of that.
pub(crate) fn fork_vm(entry_point: fn(OwnedFd) -> !, socket: OwnedFd) -> io::Result<Pid> {
    extern "C" fn begin(entry: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it was made below for this process alone, and is never freed.
        let ForkEntry { entry_point, socket } = unsafe { ptr::read(entry.cast()) };
        // SAFETY: descriptors are copied, not shared, so this one is nobody else's.
        entry_point(unsafe { OwnedFd::from_raw_fd(socket) })
    }
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, at a place the kernel chooses.
    let stack = unsafe { mmap_anonymous(ptr::null_mut(), STACK, protection, MapFlags::PRIVATE) }?;
    // SAFETY: the lowest page of it is a guard page: a stack overflow ends the process.
    unsafe { mprotect(stack, 4096, MprotectFlags::empty()) }?;
    let top = stack.wrapping_byte_add(STACK);
    let entry = Box::into_raw(Box::new(ForkEntry { entry_point, socket: socket.as_raw_fd() }));
    // SAFETY: the stack is new, whole pages long and grows down from its end; both processes keep to
    // what is said above about the memory they share.
    let pid = unsafe { libc::clone(begin, top, libc::CLONE_VM | libc::SIGCHLD, entry.cast()) };
    match forked(pid)? {
        Fork::Parent(child) => Ok(child),
        Fork::Child => Err(io::ErrorKind::Other.into()),
    }
}

/// Ends this process at once, running no destructors and no exit handlers: what a forked child that
/// shares state with its parent must do.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes a plain integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Replaces this process with `program`. Returns only if that failed.
pub(crate) fn exec(program: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end in a null pointer, and they and the strings they point to live until
    // the call returns, which it does only on failure.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Takes another user's id for what this thread does with files.
pub(crate) fn set_file_uid(uid: u32) -> io::Result<()> {
    // SAFETY: the call takes a plain integer, and concerns this thread alone.
    unsafe { libc::setfsuid(uid) };
    // The call tells the id before it, whether it succeeded or not; an id that cannot be asks.
    // SAFETY: as above.
    let now = unsafe { libc::setfsuid(libc::uid_t::MAX) };
    taken(now, uid)
}

/// Takes another group's id for what this thread does with files.
pub(crate) fn set_file_gid(gid: u32) -> io::Result<()> {
    // SAFETY: the call takes a plain integer, and concerns this thread alone.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: as above.
    let now = unsafe { libc::setfsgid(libc::gid_t::MAX) };
    taken(now, gid)
}

fn taken(now: libc::c_int, wanted: u32) -> io::Result<()> {
    if now.cast_unsigned() == wanted {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

/// Blocks every signal that can be blocked.
pub(crate) fn block_signals() {
    set_signal_mask(u64::MAX);
}

/// Gives a program about to be executed the signal state a shell would: nothing blocked, and
/// `SIGPIPE`, which the Rust runtime ignores, ends the process again.
pub(crate) fn reset_signals() {
    // SAFETY: `SIGPIPE` is a valid signal, and the default disposition runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    set_signal_mask(0);
}

/// Gives every signal its default disposition but `SIGCHLD` and `SIGPIPE`, which this process has uses
/// for: what the program that started us ignores, its commands would ignore, too.
pub(crate) fn default_signals() {
    /// What the kernel takes for a disposition: no handler, no flags, no mask is the default.
    static DEFAULT: [u64; 4] = [0; 4];
    for signal in 1..=libc::SIGRTMAX() {
        if !matches!(signal, libc::SIGCHLD | libc::SIGPIPE | libc::SIGKILL | libc::SIGSTOP) {
            // By the system call itself: the C library lets nobody have the two signals it uses between
            // threads, and a program that started us may ignore those, too.
            // SAFETY: the default disposition runs no code of ours, and no old one is asked for.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    signal,
                    &raw const DEFAULT,
                    std::ptr::null_mut::<u64>(),
                    SIGNAL_SET,
                )
            };
        }
    }
}

/// Ignores the two signals that the C library uses between threads. It unblocks them with the first thread it makes, and
/// by default each of them ends the process.
pub(crate) fn ignore_library_signals() {
    /// What the kernel takes for a disposition: `SIG_IGN`, no flags, no mask.
    static IGNORED: [u64; 4] = [1, 0, 0, 0];
    for signal in LIBRARY_SIGNALS {
        // SAFETY: an ignored signal runs no code of ours, and no old disposition is asked for.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const IGNORED,
                ptr::null_mut::<u64>(),
                SIGNAL_SET,
            )
        };
    }
}

/// The two signals that the C library has for itself: no set that it fills holds them.
pub(crate) const LIBRARY_SIGNALS: [libc::c_int; 2] = [32, 33];

/// Lets the kernel collect this process's dead children.
pub(crate) fn ignore_sigchld() {
    // SAFETY: `SIGCHLD` is a valid signal, and ignoring it runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Collects this process's dead children itself again; undoes [`ignore_sigchld`] after a fork.
pub(crate) fn default_sigchld() {
    // SAFETY: `SIGCHLD` is a valid signal, and the default disposition runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// What descended from this process and was collected has used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rusage {
    pub(crate) cpu_us: u64,
    /// Of the largest process, in bytes.
    pub(crate) peak_memory: u64,
    /// What went through devices, in bytes: read and written.
    pub(crate) blocks: (u64, u64),
}

/// What descended from this process and was collected has used.
pub(crate) fn rusage_of_children() -> Rusage {
    let mut found = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `found` has room for one, and lives until the call returns.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, found.as_mut_ptr()) };
    // SAFETY: every bit pattern is valid for its numbers, and it was zeroed before.
    let found = unsafe { found.assume_init() };
    let number = |number: i64| u64::try_from(number).unwrap_or(0);
    let micros = |time: libc::timeval| number(time.tv_sec) * 1_000_000 + number(time.tv_usec);
    Rusage {
        cpu_us: micros(found.ru_utime) + micros(found.ru_stime),
        peak_memory: number(found.ru_maxrss) * 1024,
        blocks: (number(found.ru_inblock) * 512, number(found.ru_oublock) * 512),
    }
}

/// How many bytes the kernel's set of signals has.
const SIGNAL_SET: usize = 8;

/// By the system call itself: the C library blocks neither of the two signals it uses between threads, and whoever may
/// signal a process could end it by those.
fn set_signal_mask(mask: u64) {
    // SAFETY: `mask` is as long as is said and lives until the call returns, and the old one is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            ptr::null_mut::<u64>(),
            SIGNAL_SET,
        )
    };
}

/// Closes every descriptor but the standard streams. Only for the start of a program, before anything
/// of its own is open.
pub(crate) fn close_inherited() -> io::Result<()> {
    let (first, last, flags): (libc::c_uint, libc::c_uint, libc::c_uint) =
        (3, libc::c_uint::MAX, 0);
    // SAFETY: the caller vouches that no descriptor in the range belongs to anything of this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    let error = io::Error::last_os_error();
    match result {
        0 => Ok(()),
        // Kernels before 5.9 do not know the call, and what only looks like a kernel knows half of it.
        _ if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)) => {
            close_one_by_one()
        }
        _ => Err(error),
    }
}

fn close_one_by_one() -> io::Result<()> {
    let names = std::fs::read_dir("/proc/self/fd")?;
    let open: Vec<libc::c_int> =
        names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // SAFETY: the caller vouches that no descriptor but the standard streams belongs to anything
        // of this process; the one of the listing is closed already, and closing it again fails.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

/// Lets the runtime say when a descriptor, which must not block, is ready.
pub(crate) fn async_fd(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` holds one open descriptor, always the same, until it is dropped, and the
    // `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, interest) }?)
}

/// What to change on a mount.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct MountAttributes {
    /// `MOUNT_ATTR_*` flags to set.
    pub(crate) set: u64,
    /// The user namespace of an id-mapped mount.
    pub(crate) user_namespace: Option<libc::c_int>,
}

/// Changes the attributes of a mount and of everything mounted beneath it.
pub(crate) fn set_mount_attributes(
    mount: impl AsFd,
    attributes: MountAttributes,
) -> io::Result<()> {
    let (idmap, userns_fd) = match attributes.user_namespace {
        Some(fd) => (libc::MOUNT_ATTR_IDMAP, u64::from(fd.unsigned_abs())),
        None => (0, 0),
    };
    let attr = libc::mount_attr {
        attr_set: attributes.set | idmap,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd,
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the path is a NUL-terminated empty string, `attr` lives until the call returns, and
    // its size is passed beside it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            mem::size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn raise_loopback(socket: impl AsFd) -> io::Result<()> {
    // SAFETY: an interface request is plain data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = LOOPBACK_UP;
    // SAFETY: `SIOCSIFFLAGS` reads the interface request, which lives until the call returns.
    let result =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has each datagram that is received say which address it was sent to.
pub(crate) fn receive_destination(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(mem::size_of_val(&on)).unwrap_or_default();
    // SAFETY: the option is an integer, which lives until the call returns, and its length is passed beside it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_PKTINFO,
            (&raw const on).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(clippy::cast_possible_truncation, reason = "both flags are below 0x100")]
const LOOPBACK_UP: libc::c_short = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;

/// Asks the kernel for the number of a loop device that nobody uses.
pub(crate) fn free_loop(control: impl AsFd) -> io::Result<u32> {
    // SAFETY: the request takes no argument and answers with a number.
    let result = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE) };
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Has a loop device stand for a file until nobody has the device open or mounted any more.
pub(crate) fn attach_loop(device: impl AsFd, file: impl AsFd) -> io::Result<()> {
    let info = LoopInfo { flags: LO_FLAGS_AUTOCLEAR, ..LoopInfo::default() };
    let file = file.as_fd().as_raw_fd().unsigned_abs();
    let config = LoopConfig { file, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the request reads the configuration, which has the kernel's layout and lives until the
    // call returns.
    let result =
        unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The device and the number of the file that a loop device stands for.
pub(crate) fn behind_loop(device: impl AsFd) -> io::Result<(u64, u64)> {
    let mut info = LoopInfo::default();
    // SAFETY: the request fills in the structure, which has the kernel's layout and lives until the call
    // returns.
    let result =
        unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    if result == 0 { Ok((info.device, info.inode)) } else { Err(io::Error::last_os_error()) }
}

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The kernel's `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Default for LoopInfo {
    fn default() -> Self {
        // SAFETY: it is plain numbers, for which all zeroes are valid.
        unsafe { mem::zeroed() }
    }
}

/// The kernel's `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(mem::size_of::<LoopConfig>() == 304);

/// Who is at the other end of a connection.
pub(crate) struct Peer {
    /// The process; none where this one cannot see it.
    pub(crate) pid: Option<Pid>,
    pub(crate) uid: Uid,
}

/// Who connected a socket. Libraries that take the kernel's 0, for a process of another pid namespace, as a pid cannot be asked.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = libc::socklen_t::try_from(size_of_val(&peer)).map_err(io::Error::other)?;
    let (about, length) = ((&raw mut peer).cast(), &raw mut size);
    // SAFETY: both pointers are to variables of this function, as large as is said.
    let got = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, about, length)
    };
    match got {
        0 => Ok(Peer { pid: Pid::from_raw(peer.pid), uid: Uid::from_raw(peer.uid) }),
        _ => Err(io::Error::last_os_error()),
    }
}
