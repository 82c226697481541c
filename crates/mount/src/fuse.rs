//! The descriptor of a mount: requests are read from it, answers are written to it.

pub(crate) mod abi;

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use abi::{Reply, Request};

/// An open and mounted `/dev/fuse`.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// The next request; none when the mount is gone.
    pub(crate) fn next(&self, buffer: &mut [u8]) -> Result<Option<Request>, Errno> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(size) => match abi::parse(&buffer[..size]) {
                    Some(request) => return Ok(Some(request)),
                    // Without an answer somebody would wait for ever.
                    None => self.refuse(buffer),
                },
                // ENOENT: the request was withdrawn while it was being read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn refuse(&self, request: &[u8]) {
        if let Some(Ok(unique)) = request.get(8..16).map(<[u8; 8]>::try_from) {
            self.answer(u64::from_ne_bytes(unique), Err(Errno::IO));
        }
    }

    fn wait(&self) -> Result<(), Errno> {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Answers a request. Whoever asked may be gone meanwhile; nothing follows from that.
    pub(crate) fn answer(&self, unique: u64, reply: Result<Reply, Errno>) {
        let (body, data, error) = match &reply {
            Ok(Reply::Data(chunks)) => (Vec::new(), chunks.as_slice(), None),
            Ok(reply) => (abi::body(reply), &[][..], None),
            Err(errno) => (Vec::new(), &[][..], Some(*errno)),
        };
        let size = body.len() + data.iter().map(bytes::Bytes::len).sum::<usize>();
        let header = abi::header(unique, size, error);
        let mut slices = vec![IoSlice::new(&header), IoSlice::new(&body)];
        slices.extend(data.iter().map(|chunk| IoSlice::new(chunk)));
        let _ = rustix::io::writev(&self.0, &slices);
    }

    /// Has the kernel repeat what another process took and left unanswered (since Linux 6.9).
    pub(crate) fn request_resend(&self) -> Result<(), Errno> {
        rustix::io::write(&self.0, &abi::resend()).map(drop)
    }
}
