//! A descriptor that came from a guest.

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

/// A descriptor nobody has looked at yet. If it is of a file system in somebody's program, even closing it
/// may take for ever: the program is asked first. So unless it proves to be ordinary, it is closed on
/// a thread that has nothing else to do, which ends with the sandbox at the latest.
#[derive(Debug)]
pub(crate) struct UntrustedFd(Option<OwnedFd>);

impl UntrustedFd {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self(Some(descriptor))
    }

    /// The descriptor itself, once it is known to be harmless.
    pub(super) fn trusted(mut self) -> Option<OwnedFd> {
        self.0.take()
    }

    /// To look at.
    pub(super) fn get(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        let Some(descriptor) = self.0.take() else { return };
        let (sender, receiver) = std::sync::mpsc::channel::<OwnedFd>();
        let thread = std::thread::Builder::new().name("bastide-close".to_owned());
        match thread.spawn(move || drop(receiver.recv())) {
            // A thread that is there takes it.
            Ok(_) => drop(sender.send(descriptor)),
            // Better one descriptor too many than a program that stands still.
            Err(_) => {
                let _never_closed = descriptor.into_raw_fd();
            }
        }
    }
}
