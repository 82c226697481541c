//! The network of a container that has a policy, made from outside: neither the container nor anything in it ever has a
//! capability for it.
//!
//! The engine starts the container with a network of its own that has nothing but loopback. Before its first process receives
//! anything, a child of the warden joins that network namespace and makes a pair of interfaces there, whose other end is in
//! the egress namespace, where the process that makes listening sockets is. Another joins the container's mounts and adds
//! the session's authority to the certificates that programs of the image trust. Each lives as long as that takes.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bastide_proto::boot::{BootFailure, TrustBundle};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use super::egress::{MAX_BUNDLE, add_certificate, bundle_file, open_bundle};
use crate::jail::{StepContext, StepError, join};
use crate::sys::{Fork, close_inherited, exit_now, fork, fork_into};
use crate::{egress_listeners, packet};

/// How long a child may take for its few calls to the kernel.
const CHILD: Duration = Duration::from_secs(10);

/// Where images keep the certificates that programs trust, in one file.
const IMAGE_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

/// What is around a session's authority in the files of an image: the next one takes its place.
const BEGIN: &[u8] = b"# Bastide: the authority of this session\n";
const END: &[u8] = b"# Bastide: end\n";

/// The first process of a container, which cannot be taken for another one.
#[derive(Debug)]
pub(super) struct ContainerProcess(OwnedFd);

impl ContainerProcess {
    /// The process of a pidfd.
    pub(super) fn new(pidfd: OwnedFd) -> Self {
        Self(pidfd)
    }

    /// Forks the process that makes listening sockets into an egress namespace, and joins the container's network to that.
    /// `orders` is where the process will be asked.
    pub(super) fn join_egress(&self, orders: OwnedFd) -> Result<Pid, BootFailure> {
        let pair = || UnixStream::pair().step(|| "make a pair of sockets".to_owned());
        let (to_listeners, far) = pair()?;
        to_listeners.set_read_timeout(Some(CHILD)).step(|| "make a pair of sockets".to_owned())?;
        let step = "set the egress namespace up";
        let listeners =
            match fork_into(libc::CLONE_NEWNET).step(|| "make the egress namespace".to_owned())? {
                Fork::Child => become_listeners(&orders, &far),
                Fork::Parent(listeners) => listeners,
            };
        drop((orders, far));
        in_child(|| {
            self.enter_network()?;
            join(listeners)
        })?;
        packet::send(&to_listeners, &(), &[]).step(|| step.to_owned())?;
        let received = packet::receive::<Result<(), BootFailure>>(&to_listeners);
        match received.step(|| step.to_owned())? {
            Some((is_up, _)) => is_up.map(|()| listeners),
            None => Err(StepError::from_errno(step, libc::EPIPE).into()),
        }
    }

    fn enter_network(&self) -> Result<(), StepError> {
        let step = || "join the container's network".to_owned();
        let network = || File::open("/proc/self/ns/net").and_then(|file| file.metadata());
        let own = network().step(step)?;
        move_into_thread_name_spaces(self.0.as_fd(), ThreadNameSpaceType::NETWORK).step(step)?;
        let joined = network().step(step)?;
        // What the engine started on the host's network has none that could be led anywhere.
        if (own.dev(), own.ino()) == (joined.dev(), joined.ino()) {
            return Err(Errno::NOTUNIQ).step(step);
        }
        Ok(())
    }

    /// Has programs of the image trust the session's authority, where they look by themselves, and puts all that they trust
    /// into the file that variables point to. Before anything of the session runs (`is_first`) what an earlier start left is
    /// taken out; later on files are only added to, as on this machine.
    pub(super) fn add_authority(
        &self,
        bundle: &TrustBundle,
        certificate: &str,
        is_first: bool,
    ) -> io::Result<()> {
        if !is_first {
            add_certificate(&mut open_bundle(bundle)?, certificate.as_bytes())?;
            return self.in_mounts(|| add_another(certificate.as_bytes()));
        }
        let machine = match &bundle.machine {
            Some(path) => std::fs::read(path)?,
            None => Vec::new(),
        };
        let all = bundle_file(bundle)?;
        self.in_mounts(|| add_inside(all, machine, certificate.as_bytes()))
    }

    /// Does something in the mounts of the container.
    fn in_mounts(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let done = in_child(|| {
            let step = || "tell programs of the image whom to trust".to_owned();
            move_into_thread_name_spaces(self.0.as_fd(), ThreadNameSpaceType::MOUNT).step(step)?;
            work().step(step)
        });
        done.map_err(|failure| io::Error::from_raw_os_error(failure.errno))
    }
}

/// In the mounts of the container, while programs may read what is there.
fn add_another(certificate: &[u8]) -> io::Result<()> {
    for path in IMAGE_BUNDLES {
        let Ok(mut file) = open_inside(path, OFlags::RDWR | OFlags::APPEND) else { continue };
        match add_certificate(&mut file, &block(certificate)) {
            // Commands made something else of it, which no program reads as certificates.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
            added => added?,
        }
    }
    Ok(())
}

/// An authority with what is around it in the files of an image.
fn block(certificate: &[u8]) -> Vec<u8> {
    [BEGIN, certificate, b"\n", END].concat()
}

/// In the mounts of the container. What cannot be written to there the variables make up for.
fn add_inside(mut all: File, machine: Vec<u8>, certificate: &[u8]) -> io::Result<()> {
    let mut trusted = None;
    for path in IMAGE_BUNDLES {
        let Some(own) = read_bundle(path) else { continue };
        let own = without_authority(&own);
        if let Ok(mut file) = open_inside(path, OFlags::WRONLY) {
            file.set_len(0)?;
            file.write_all(&[&own[..], &block(certificate)].concat())?;
        }
        trusted.get_or_insert(own);
    }
    // Programs of an image without any bring authorities of their own along, and would lose them.
    let mut trusted = trusted.unwrap_or(machine);
    end_line(&mut trusted);
    trusted.extend(certificate);
    all.rewind()?;
    all.write_all(&trusted)
}

/// Opens a file of the image itself: neither a link nor anything that is mounted is followed, for commands may have put
/// either there.
fn open_inside(path: &str, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let file = File::from(openat2(CWD, path, flags, Mode::empty(), resolve)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn read_bundle(path: &str) -> Option<Vec<u8>> {
    let file = open_inside(path, OFlags::RDONLY).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_BUNDLE + 1).read_to_end(&mut bytes).ok()?;
    (u64::try_from(bytes.len()).ok()? <= MAX_BUNDLE).then_some(bytes)
}

/// Takes out what an earlier start of this container put there.
fn without_authority(bundle: &[u8]) -> Vec<u8> {
    let find = |within: &[u8], what: &[u8]| within.windows(what.len()).position(|at| at == what);
    let (mut kept, mut rest) = (Vec::new(), bundle);
    while let Some(begin) = find(rest, BEGIN) {
        kept.extend_from_slice(&rest[..begin]);
        rest = &rest[begin..];
        rest = &rest[find(rest, END).map_or(rest.len(), |end| end + END.len())..];
    }
    kept.extend_from_slice(rest);
    end_line(&mut kept);
    kept
}

fn end_line(bytes: &mut Vec<u8>) {
    if bytes.last().is_some_and(|last| *last != b'\n') {
        bytes.push(b'\n');
    }
}

/// The life of the process that makes listening sockets, with nothing of the warden's open but where it is asked.
fn become_listeners(orders: &OwnedFd, warden: &UnixStream) -> ! {
    let alone = || -> io::Result<(OwnedFd, OwnedFd)> {
        rustix::stdio::dup2_stdin(orders)?;
        rustix::stdio::dup2_stdout(warden)?;
        close_inherited()?;
        let taken = |stream: std::os::fd::BorrowedFd<'_>| stream.try_clone_to_owned();
        let both = (taken(io::stdin().as_fd())?, taken(io::stdout().as_fd())?);
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(both)
    };
    match alone() {
        Ok((orders, warden)) => egress_listeners::run(&orders, warden),
        Err(_) => exit_now(1),
    }
}

/// Does something in a child of this process, which may go into other namespaces for that.
fn in_child(work: impl FnOnce() -> Result<(), StepError>) -> Result<(), BootFailure> {
    let step = "go into the container";
    let (near, far) = UnixStream::pair().step(|| step.to_owned())?;
    near.set_read_timeout(Some(CHILD)).step(|| step.to_owned())?;
    let child = match fork().step(|| step.to_owned())? {
        Fork::Child => {
            let done = work().map_err(BootFailure::from);
            exit_now(i32::from(packet::send(&far, &done, &[]).is_err()))
        }
        Fork::Parent(child) => child,
    };
    drop(far);
    let received = packet::receive::<Result<(), BootFailure>>(&near);
    if received.is_err() {
        // It is ours and has not been waited for, so nobody else has its number.
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    while let Err(Errno::INTR) = waitpid(Some(child), WaitOptions::empty()) {}
    match received.step(|| step.to_owned())? {
        Some((done, _)) => done,
        None => Err(StepError::from_errno(step, libc::EPIPE).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_out_what_an_earlier_start_added() {
        let own = b"-----BEGIN CERTIFICATE-----\nA\n-----END CERTIFICATE-----";
        let block = [BEGIN, b"first\n", END].concat();
        let with = [&own[..], b"\n", &block, b"later\n"].concat();
        assert_eq!(without_authority(&with), [&own[..], b"\nlater\n"].concat());
        assert_eq!(without_authority(own), [&own[..], b"\n"].concat());
        // One that was cut off goes to the end.
        let cut = [&own[..], b"\n", &block[..block.len() - 4]].concat();
        assert_eq!(without_authority(&cut), [&own[..], b"\n"].concat());
        // Each policy that read other hosts added one.
        let several = [&with[..], &block, b"last\n"].concat();
        assert_eq!(without_authority(&several), [&own[..], b"\nlater\nlast\n"].concat());
        assert!(without_authority(b"").is_empty());
    }

    #[test]
    fn follows_no_link_to_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bundle");
        std::fs::write(&file, "certificates").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        // Whether the folder is on the mount of the root is the machine's business.
        if open_inside(file.to_str().unwrap(), OFlags::RDONLY).is_ok() {
            assert!(open_inside(link.to_str().unwrap(), OFlags::RDONLY).is_err());
        }
        assert!(open_inside("/proc/self/status", OFlags::RDONLY).is_err());
    }
}
