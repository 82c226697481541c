//! Tracing with ptrace. The only module of these tests that may hold `unsafe`.
#![expect(unsafe_code, reason = "ptrace and waiting for threads have no safe wrapper")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libc::{c_int, c_void, pid_t, user_regs_struct};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Fault, Outcome, Traced};

/// How long the tool may take, a fault or not.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A system call about a file.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// Where a call names its file.
#[derive(Debug, Clone, Copy)]
enum Names {
    /// A descriptor, in the argument of this index.
    Descriptor(usize),
    /// A folder's descriptor and a path, in this argument and the next.
    Beneath(usize),
    /// A path from the working directory.
    Path(usize),
}

/// The calls that count: those that can fail for want of room, of descriptors, of permission, or because a
/// disk is broken.
const CALLS: &[(&str, libc::c_long, Names)] = &[
    ("open", libc::SYS_open, Names::Path(0)),
    ("openat", libc::SYS_openat, Names::Beneath(0)),
    ("openat2", libc::SYS_openat2, Names::Beneath(0)),
    ("read", libc::SYS_read, Names::Descriptor(0)),
    ("pread64", libc::SYS_pread64, Names::Descriptor(0)),
    ("write", libc::SYS_write, Names::Descriptor(0)),
    ("writev", libc::SYS_writev, Names::Descriptor(0)),
    ("pwrite64", libc::SYS_pwrite64, Names::Descriptor(0)),
    ("fsync", libc::SYS_fsync, Names::Descriptor(0)),
    ("fdatasync", libc::SYS_fdatasync, Names::Descriptor(0)),
    ("ftruncate", libc::SYS_ftruncate, Names::Descriptor(0)),
    ("fallocate", libc::SYS_fallocate, Names::Descriptor(0)),
    ("fchmod", libc::SYS_fchmod, Names::Descriptor(0)),
    ("flock", libc::SYS_flock, Names::Descriptor(0)),
    ("getdents64", libc::SYS_getdents64, Names::Descriptor(0)),
    ("copy_file_range", libc::SYS_copy_file_range, Names::Descriptor(2)),
    ("statx", libc::SYS_statx, Names::Beneath(0)),
    ("newfstatat", libc::SYS_newfstatat, Names::Beneath(0)),
    ("rename", libc::SYS_rename, Names::Path(0)),
    ("renameat", libc::SYS_renameat, Names::Beneath(0)),
    ("renameat2", libc::SYS_renameat2, Names::Beneath(0)),
    ("mkdir", libc::SYS_mkdir, Names::Path(0)),
    ("mkdirat", libc::SYS_mkdirat, Names::Beneath(0)),
    ("rmdir", libc::SYS_rmdir, Names::Path(0)),
    ("unlink", libc::SYS_unlink, Names::Path(0)),
    ("unlinkat", libc::SYS_unlinkat, Names::Beneath(0)),
    ("link", libc::SYS_link, Names::Path(0)),
    ("linkat", libc::SYS_linkat, Names::Beneath(0)),
    ("symlink", libc::SYS_symlink, Names::Path(1)),
    ("symlinkat", libc::SYS_symlinkat, Names::Beneath(1)),
    ("chmod", libc::SYS_chmod, Names::Path(0)),
    ("fchmodat", libc::SYS_fchmodat, Names::Beneath(0)),
    ("readlinkat", libc::SYS_readlinkat, Names::Beneath(0)),
];

/// Where a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// It runs its own code.
    Outside,
    /// It is in a call.
    Call,
    /// It is in a call that does not happen, and fails like this.
    Fault(i32),
}

pub(super) fn run(command: &mut Command, within: &Path, fault: Option<Fault>) -> Traced {
    // SAFETY: between fork and exec the closure makes one system call, which is safe after a fork.
    unsafe {
        command.pre_exec(|| request(libc::PTRACE_TRACEME, 0, 0).map(drop));
    }
    #[expect(clippy::zombie_processes, reason = "its tracer waits for it, and for its threads")]
    let mut child = command.spawn().unwrap();
    let pid = pid_t::try_from(child.id()).unwrap();
    let watchdog = watch(pid);
    let stdout = read(child.stdout.take());
    let stderr = read(child.stderr.take());
    let (status, calls) = follow(pid, within, fault);
    drop(watchdog);
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    Traced { output: Output { status, stdout, stderr }, calls }
}

/// Ends the tool if nobody says in time that it ended.
fn watch(pid: pid_t) -> mpsc::Sender<()> {
    let process = Pid::from_raw(pid).unwrap();
    let held = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let (ended, is_ended) = mpsc::channel();
    thread::spawn(move || {
        if is_ended.recv_timeout(TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = pidfd_send_signal(held, Signal::KILL);
        }
    });
    ended
}

fn read(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut from) = from {
            from.read_to_end(&mut all).unwrap();
        }
        all
    })
}

/// Follows every thread of a process until it ends.
fn follow(pid: pid_t, within: &Path, fault: Option<Fault>) -> (ExitStatus, Vec<Call>) {
    let mut threads: HashMap<pid_t, At> = HashMap::new();
    let mut calls = Vec::new();
    loop {
        let (tid, status) = wait();
        if !libc::WIFSTOPPED(status) {
            threads.remove(&tid);
            if tid == pid {
                return (ExitStatus::from_raw(status), calls);
            }
            continue;
        }
        let is_new = !threads.contains_key(&tid);
        let at = threads.entry(tid).or_insert(At::Outside);
        let mut deliver = 0;
        match libc::WSTOPSIG(status) {
            signal if signal == libc::SIGTRAP | 0x80 => {
                *at = step(tid, *at, within, fault, &mut calls);
            }
            libc::SIGTRAP if is_new => {
                let options = libc::PTRACE_O_TRACESYSGOOD
                    | libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_EXITKILL;
                request(libc::PTRACE_SETOPTIONS, tid, usize::try_from(options).unwrap()).unwrap();
            }
            libc::SIGTRAP => {}
            // A new thread begins with a stop.
            libc::SIGSTOP if is_new => {}
            signal => deliver = signal,
        }
        // A thread may be killed at any moment, and is waited for then.
        drop(request(libc::PTRACE_SYSCALL, tid, usize::try_from(deliver).unwrap()));
    }
}

/// A thread enters a call or comes back from one.
fn step(tid: pid_t, at: At, within: &Path, fault: Option<Fault>, calls: &mut Vec<Call>) -> At {
    let Ok(mut registers) = registers(tid) else { return at };
    match at {
        At::Outside => {
            let Some(call) = call(tid, &registers, within) else { return At::Call };
            if fault.is_some_and(|fault| calls.len() >= fault.at) {
                return At::Call;
            }
            calls.push(call);
            match fault.filter(|fault| calls.len() == fault.at) {
                Some(fault) => {
                    // No call has this number: nothing happens.
                    registers.orig_rax = u64::MAX;
                    set_registers(tid, &registers);
                    match fault.outcome {
                        Outcome::Errno(errno) => At::Fault(errno),
                        Outcome::Killed => {
                            // A thread's id is good enough to kill all of its process.
                            kill(tid);
                            At::Call
                        }
                    }
                }
                None => At::Call,
            }
        }
        At::Call => At::Outside,
        At::Fault(errno) => {
            registers.rax = i64::from(-errno).cast_unsigned();
            set_registers(tid, &registers);
            At::Outside
        }
    }
}

/// The call a thread is about to make, if it counts.
fn call(tid: pid_t, registers: &user_regs_struct, within: &Path) -> Option<Call> {
    let number = registers.orig_rax.cast_signed();
    let (name, _, names) = CALLS.iter().find(|(_, known, _)| *known == number)?;
    let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
    let descriptor = |index: usize| {
        #[expect(clippy::cast_possible_truncation, reason = "the kernel looks at as much")]
        let number = arguments[index] as i32;
        let link = match number {
            libc::AT_FDCWD => format!("/proc/{tid}/cwd"),
            number => format!("/proc/{tid}/fd/{number}"),
        };
        fs::read_link(link).ok()
    };
    let path = match *names {
        Names::Descriptor(index) => descriptor(index)?,
        Names::Beneath(index) => {
            let text = text(tid, arguments[index + 1]);
            // The path of a call about the descriptor itself is empty.
            match text.as_deref() {
                Some("") | None => descriptor(index)?,
                Some(path) if path.starts_with('/') => path.into(),
                Some(path) => descriptor(index)?.join(path),
            }
        }
        Names::Path(index) => text(tid, arguments[index])?.into(),
    };
    path.starts_with(within).then_some(Call { name, path })
}

/// A text in the memory of a thread.
fn text(tid: pid_t, address: u64) -> Option<String> {
    let memory = File::open(format!("/proc/{tid}/mem")).ok()?;
    let mut bytes = vec![0; libc::PATH_MAX.unsigned_abs() as usize];
    // What follows the text may not be there.
    let page = 4096 - usize::try_from(address % 4096).ok()?;
    let mut count = memory.read_at(&mut bytes[..page], address).ok()?;
    if !bytes[..count].contains(&0) {
        let more = memory.read_at(&mut bytes[count..], address + count as u64).ok()?;
        count += more;
    }
    let end = bytes[..count].iter().position(|byte| *byte == 0)?;
    bytes.truncate(end);
    String::from_utf8(bytes).ok()
}

/// Waits for whatever happens next to a process or thread this thread traces.
fn wait() -> (pid_t, c_int) {
    let mut status = 0;
    // SAFETY: the status is written to a variable that outlives the call. Children of other threads are
    // left alone.
    let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(tid > 0, "{}", io::Error::last_os_error());
    (tid, status)
}

/// Kills the process of a thread that this thread traces.
fn kill(tid: pid_t) {
    // SAFETY: no memory is involved, and the id is of a thread that is stopped here.
    let _ = unsafe { libc::kill(tid, libc::SIGKILL) };
}

/// Makes a request that takes a number and leaves memory alone.
fn request(what: libc::c_uint, tid: pid_t, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: none of the requests made through this function reads or writes memory of ours.
    let done = unsafe { libc::ptrace(what, tid, ptr::null_mut::<c_void>(), data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

fn registers(tid: pid_t) -> io::Result<user_regs_struct> {
    // SAFETY: the structure is plain numbers, for which zeros are values.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    let to = (&raw mut registers).cast::<c_void>();
    // SAFETY: the kernel writes one such structure to where the pointer leads.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid, ptr::null_mut::<c_void>(), to) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(registers) }
}

fn set_registers(tid: pid_t, registers: &user_regs_struct) {
    let from = ptr::from_ref(registers).cast::<c_void>();
    // SAFETY: the kernel reads one such structure from where the pointer leads. A thread that was killed
    // meanwhile needs none.
    unsafe { libc::ptrace(libc::PTRACE_SETREGS, tid, ptr::null_mut::<c_void>(), from) };
}
