//! System calls without a safe wrapper.
#![expect(unsafe_code, reason = "this is where it lives")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A counter that wakes whoever polls it.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was made above, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Adds one to an eventfd.
pub(crate) fn notify(counter: &OwnedFd) {
    let one = 1_u64.to_ne_bytes();
    // SAFETY: the pointer is to that many bytes that live until the call returns. A counter that is
    // full wakes its reader all the same.
    unsafe { libc::write(counter.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Sets an eventfd to zero.
pub(crate) fn reset(counter: &OwnedFd) {
    let mut count = [0_u8; 8];
    // SAFETY: the pointer is to that many writable bytes. One that is zero already is what is wanted.
    unsafe { libc::read(counter.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
}

/// A copy of a descriptor that Python has, as a file.
pub(crate) fn duplicate(descriptor: RawFd) -> io::Result<File> {
    if descriptor < 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the caller's file object keeps it open for the length of this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(File::from(borrowed.try_clone_to_owned()?))
}

/// Closes a descriptor that the parent of this process owns a copy of.
pub(crate) fn close(descriptor: RawFd) {
    // SAFETY: takes no pointers. Its owner in this process is never used or dropped again.
    unsafe { libc::close(descriptor) };
}
