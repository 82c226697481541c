//! The system calls behind [`stability`](super::stability) that rustix has no safe form of.
#![expect(unsafe_code, reason = "leases and shared mappings have no safe wrapper")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Says which signal tells of a lease that somebody waits for; the C library has no name for it.
const F_SETSIG: libc::c_int = 10;

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the commands used here take a plain integer, and the descriptor is open.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if done >= 0 { Ok(()) } else { Err(last_errno()) }
}

fn last_errno() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Whether nobody has a file open for writing, which includes whoever has only a writable shared mapping
/// of it left: the kernel grants a read lease to nobody else. The file must be open for reading only. It
/// fails where the file system has no leases, or the file belongs to somebody else.
///
/// The lease is given back at once. Whoever opens the file for writing in that moment waits for it.
pub(super) fn has_no_writer(file: impl AsFd) -> Result<bool, Errno> {
    let file = file.as_fd();
    // Whoever has to wait makes the kernel signal us: with one that does nothing unless it is handled.
    fcntl(file, F_SETSIG, libc::SIGURG)?;
    match fcntl(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => fcntl(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// One page of a file, mapped shared and writable.
#[derive(Debug)]
pub(super) struct Mapping {
    at: *mut libc::c_void,
}

const PAGE: usize = 4096;

// SAFETY: the mapping belongs to the process, not to a thread, and nobody else has its address.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first page.
    pub(super) fn new(file: &OwnedFd) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at a place the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { at })
    }

    /// Stores one byte, as a program would by an instruction. The kernel stores it on our behalf: where
    /// the page cannot be had (a full disk), that is an error and no signal.
    pub(super) fn store(&self) -> Result<(), Errno> {
        let zero = std::fs::File::open("/dev/zero").map_err(|_| Errno::NOENT)?;
        // SAFETY: the first byte is mapped as long as this lives, and nothing refers to it.
        let read = unsafe { libc::read(zero.as_raw_fd(), self.at, 1) };
        if read == 1 { Ok(()) } else { Err(last_errno()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped above with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.at, PAGE) };
    }
}
