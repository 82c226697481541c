//! The proxy of a session whose network has a policy: a process beside the warden, which accepts what programs inside
//! connect to, and knows the policy and the secrets.
//!
//! The warden holds the listening sockets, what the proxy is started with, and what it needs to begin again. A proxy that
//! dies is started again a few times; after that the sockets are closed, and with them the network.

use std::collections::VecDeque;
use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bastide_proto::boot::{BootFailure, EgressBoot, TrustBundle};
use bastide_proto::egress::{
    EgressCommand, EgressListener, EgressReport, EgressStart, MAX_EGRESS_PACKET, Transport,
};
use bastide_proto::warden::WardenResponse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};

use super::container_net::ContainerProcess;
use super::control::answer;
use crate::egress_listeners::{ListenerMaker, ListenerPort};
use crate::jail::StepError;
use crate::{packet, port_channel};

/// How long a proxy may take until it can answer.
const START: Duration = Duration::from_secs(10);

/// How long a proxy may take to end: what it has still to note is little.
const END: Duration = Duration::from_secs(2);

/// How many proxies may die within how long. One more, and there is no network any more.
const MAX_DEATHS: usize = 3;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);

/// What the kernel writes at once.
const PAGE: usize = 4096;

/// The most bytes of certificates that are read from one file: commands may make files of an image as large as they like.
pub(super) const MAX_BUNDLE: u64 = 8 << 20;

/// The ports that names are asked for at.
const NAMES: [EgressListener; 2] = [
    EgressListener { port: 53, transport: Transport::Udp },
    EgressListener { port: 53, transport: Transport::Tcp },
];

/// What comes with a session that has a policy.
#[derive(Debug)]
pub(super) struct EgressFds {
    /// The proxy's program.
    pub(super) program: OwnedFd,
    /// The secrets, in sealed memory that the warden does not look into.
    pub(super) secrets: Option<OwnedFd>,
}

impl EgressFds {
    /// What came with a session, in that order.
    pub(super) fn new(
        boot: &EgressBoot,
        fds: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let program = next()?;
        let secrets = if boot.start.has_secrets { Some(next()?) } else { None };
        Ok(Self { program, secrets })
    }
}

/// The network of a session.
#[derive(Debug)]
pub(super) struct Egress {
    start: EgressStart,
    bundle: Option<TrustBundle>,
    /// Whether programs inside were told of an authority of this session.
    is_trusted: bool,
    fds: EgressFds,
    /// What the certificates of a session's authority are signed with, for the next proxy.
    authority: Option<OwnedFd>,
    maker: ListenerMaker,
    listeners: Vec<(EgressListener, OwnedFd)>,
    proxy: Option<Proxy>,
    /// When proxies died.
    deaths: VecDeque<Instant>,
    /// The container that it is the network of, if it is one's, and the process in its egress namespace.
    container: Option<(ContainerProcess, Pid)>,
}

/// What a proxy says, and what comes along.
type Report = (EgressReport, Vec<OwnedFd>);

#[derive(Debug)]
struct Proxy {
    process: Child,
    channel: OwnedFd,
    /// When it has to be ready at the latest; none once it is.
    deadline: Option<Instant>,
}

impl Egress {
    /// Starts the proxy of a session, which gets ready while the sandbox is built, and says what the sandbox needs for
    /// its part.
    pub(super) fn start(boot: EgressBoot, fds: EgressFds) -> io::Result<(Self, OwnedFd)> {
        let EgressBoot { start, bundle } = boot;
        if let Some(bundle) = &bundle {
            // There to be mounted, whatever it will hold.
            bundle_file(bundle)?;
        }
        let (maker, far) = ListenerMaker::pair()?;
        let mut egress = Self {
            start,
            bundle,
            is_trusted: false,
            fds,
            authority: None,
            maker,
            listeners: Vec::new(),
            proxy: None,
            deaths: VecDeque::new(),
            container: None,
        };
        egress.proxy = Some(egress.start_proxy()?);
        Ok((egress, far))
    }

    /// Leads the network of a container to the proxy. Nothing of the session runs in it yet.
    pub(super) fn join_container(
        &mut self,
        first: ContainerProcess,
        orders: OwnedFd,
    ) -> Result<(), BootFailure> {
        let listeners = first.join_egress(orders)?;
        self.container = Some((first, listeners));
        Ok(self.finish_start()?)
    }

    /// Waits until the proxy can answer, and hands it the sockets of the sandbox, which is built by now.
    pub(super) fn finish_start(&mut self) -> Result<(), StepError> {
        let step = |error: &io::Error| {
            let step = format!("start the proxy of the network ({error})");
            StepError::from_errno(&step, error.raw_os_error().unwrap_or(libc::EIO)).of_session()
        };
        loop {
            let Some(Proxy { channel, deadline: Some(deadline), .. }) = &self.proxy else {
                return self.hide().map_err(|error| step(&error));
            };
            wait_for(channel.as_fd(), *deadline).map_err(|error| step(&error))?;
            let Some(report) = self.next_report().map_err(|error| step(&error))? else { continue };
            self.take_report(report).map_err(|error| step(&error))?;
        }
    }

    /// Keeps other processes of this user from the descriptors of this one, where secrets are among them. The sandbox is
    /// built by now: who builds one has to be seen by its user.
    fn hide(&self) -> io::Result<()> {
        if self.fds.secrets.is_none() {
            return Ok(());
        }
        Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
    }

    /// What to wait for.
    pub(super) fn channel(&self) -> Option<BorrowedFd<'_>> {
        self.proxy.as_ref().map(|proxy| proxy.channel.as_fd())
    }

    /// When to look again even if nothing happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.proxy.as_ref()?.deadline
    }

    /// Whether a proxy has not become ready in time.
    pub(super) fn is_late(&self) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Hears what the proxy says, and starts another if it has ended or is late.
    pub(super) fn handle_ready(&mut self) {
        while self.proxy.is_some() {
            let is_late = self.is_late();
            match self.next_report() {
                // A port that cannot be listened to is refused by the kernel.
                Ok(Some((report, fds))) if !is_failure(&report) => {
                    drop(self.take_report((report, fds)));
                }
                Ok(None) if !is_late => return,
                Ok(_) | Err(_) => self.replace_proxy(),
            }
        }
    }

    /// Hands the connection of a host over to the proxy.
    pub(super) fn forward_caller(&self, caller: &UnixStream) {
        answer(caller, &WardenResponse::Egress { is_served: self.proxy.is_some() });
        if let Some(proxy) = &self.proxy {
            // A proxy that is gone closes the connection by that.
            drop(proxy.send_command(&EgressCommand::Caller, &[caller.as_fd()]));
        }
    }

    /// Ends the proxy. The sandbox has ended.
    pub(super) fn end(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            proxy.end();
        }
        self.listeners.clear();
        if let Some((_, listeners)) = self.container.take() {
            // It ends when nobody can ask it any more.
            self.maker.close();
            while let Err(Errno::INTR) = waitpid(Some(listeners), WaitOptions::empty()) {}
        }
    }

    fn start_proxy(&self) -> io::Result<Proxy> {
        let (channel, far) = port_channel::pair()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", self.fds.program.as_raw_fd()));
        // Whose it is is for whoever looks at its command line; secrets are in none.
        command.arg0("bastide-egress").arg(&self.start.session_id).env_clear();
        command.stdin(Stdio::from(far)).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        let proxy = Proxy { process, channel, deadline: Some(Instant::now() + START) };
        let start = EgressStart {
            has_secrets: self.fds.secrets.is_some(),
            has_authority: self.authority.is_some(),
            ..self.start.clone()
        };
        let fds: Vec<_> = self.fds.secrets.iter().chain(&self.authority).map(AsFd::as_fd).collect();
        match proxy.send_command(&EgressCommand::Start(Box::new(start)), &fds) {
            Ok(()) => Ok(proxy),
            Err(error) => {
                proxy.end();
                Err(error)
            }
        }
    }

    /// The next report, if there is one.
    fn next_report(&self) -> io::Result<Option<Report>> {
        let Some(proxy) = &self.proxy else { return Ok(None) };
        match packet::receive_whole(&proxy.channel, MAX_EGRESS_PACKET) {
            Ok(Some(report)) => Ok(Some(report)),
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take_report(&mut self, (report, fds): Report) -> io::Result<()> {
        let mut fds = fds.into_iter();
        let (certificate, ports) = match report {
            EgressReport::Ready { certificate, ports } => {
                self.authority = fds.next().or(self.authority.take());
                if let Some(proxy) = &mut self.proxy {
                    proxy.deadline = None;
                    let mut known = self.listeners.chunks(packet::MAX_FDS);
                    known.try_for_each(|some| proxy.send_listeners(some))?;
                }
                (certificate, ports)
            }
            EgressReport::Changed { policy, certificate, ports } => {
                self.start.policy = policy;
                self.fds.secrets = fds.next().or(self.fds.secrets.take());
                self.hide()?;
                self.authority = fds.next().or(self.authority.take());
                (certificate, ports)
            }
            EgressReport::Failed { message } => return Err(io::Error::other(message)),
            _ => return Ok(()),
        };
        if let (Some(bundle), Some(certificate)) = (&self.bundle, certificate) {
            match &self.container {
                Some((first, _)) => {
                    first.add_authority(bundle, &certificate, !self.is_trusted)?;
                }
                None => write_bundle(bundle, &certificate)?,
            }
            self.is_trusted = true;
        }
        self.listen(ports)
    }

    /// Has sockets made for the ports that have none, and hands them to the proxy.
    fn listen(&mut self, ports: Vec<u16>) -> io::Result<()> {
        let tcp = ports.into_iter().map(|port| EgressListener { port, transport: Transport::Tcp });
        let known = self.listeners.len();
        let mut missing: Vec<_> = NAMES.into_iter().chain(tcp).collect();
        missing.retain(|wanted| !self.listeners.iter().any(|(listener, _)| listener == wanted));
        missing.dedup();
        let wanted: Vec<_> = missing
            .iter()
            .map(|listener| match listener.transport {
                Transport::Tcp => ListenerPort::Tcp(listener.port),
                Transport::Udp => ListenerPort::Udp(listener.port),
            })
            .collect();
        let made = self.maker.make(&wanted)?;
        self.listeners.extend(missing.into_iter().zip(made));
        let Some(proxy) = &self.proxy else { return Ok(()) };
        self.listeners[known..]
            .chunks(packet::MAX_FDS)
            .try_for_each(|some| proxy.send_listeners(some))
    }

    /// Collects a proxy that has ended, or ends it, and starts the next unless too many have.
    fn replace_proxy(&mut self) {
        if let Some(proxy) = self.proxy.take() {
            proxy.end();
        }
        let now = Instant::now();
        self.deaths.push_back(now);
        self.deaths.retain(|death| now.duration_since(*death) < DEATHS_WITHIN);
        if self.deaths.len() <= MAX_DEATHS {
            self.proxy = self.start_proxy().ok();
        }
        if self.proxy.is_none() {
            self.close();
        }
    }

    /// Closes the network for good: what nobody listens to, the kernel refuses.
    fn close(&mut self) {
        self.listeners.clear();
        // Where it cannot be noted there is no network either way.
        drop(note_loss(&self.start));
    }
}

impl Proxy {
    fn send_command(&self, order: &EgressCommand, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let order = bastide_proto::encode(order).map_err(io::Error::other)?;
        packet::send_now(&self.channel, &order, fds)
    }

    fn send_listeners(&self, listeners: &[(EgressListener, OwnedFd)]) -> io::Result<()> {
        let (which, sockets): (Vec<_>, Vec<_>) =
            listeners.iter().map(|(listener, socket)| (*listener, socket.as_fd())).unzip();
        self.send_command(&EgressCommand::Listeners(which), &sockets)
    }

    fn end(self) {
        let Self { mut process, channel, .. } = self;
        drop(channel);
        if !super::mounts::has_ended(&process, END) {
            drop(process.kill());
        }
        drop(process.wait());
    }
}

fn is_failure(report: &EgressReport) -> bool {
    matches!(report, EgressReport::Failed { .. })
}

/// Waits until something can be read.
fn wait_for(channel: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::from_borrowed_fd(channel, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The file that holds which authorities programs inside trust. It stays the same file: it is mounted.
pub(super) fn bundle_file(bundle: &TrustBundle) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&bundle.path)?;
    // Whatever the mask of whoever made the session: everybody inside reads it.
    file.set_permissions(Permissions::from_mode(0o644))?;
    Ok(file)
}

/// Has programs inside trust the machine's authorities and that of the session.
///
/// Programs may read the file at any time, and it cannot be replaced by another, because it is mounted. So it is only ever
/// added to: whoever reads it meanwhile finds what was there, and no certificate in part. One that an earlier policy had
/// stays: it is for fewer hosts, and its key is nowhere else than that of the newer one.
fn write_bundle(bundle: &TrustBundle, certificate: &str) -> io::Result<()> {
    let mut file = open_bundle(bundle)?;
    if file.metadata()?.len() == 0 {
        let mut known = match &bundle.machine {
            Some(path) => std::fs::read(path)?,
            None => Vec::new(),
        };
        if !known.is_empty() && !known.ends_with(b"\n") {
            known.push(b'\n');
        }
        file.write_all(&known)?;
        file.rewind()?;
    }
    add_certificate(&mut file, certificate.as_bytes())
}

/// Opens the file that holds which authorities programs inside trust, to be added to.
pub(super) fn open_bundle(bundle: &TrustBundle) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).append(true).custom_flags(libc::O_NOFOLLOW).open(&bundle.path)
}

/// Adds a certificate to a file that programs may read meanwhile, unless it is there.
pub(super) fn add_certificate(file: &mut File, certificate: &[u8]) -> io::Result<()> {
    let mut known = Vec::new();
    Read::take(&mut *file, MAX_BUNDLE + 1).read_to_end(&mut known)?;
    if u64::try_from(known.len()).is_ok_and(|length| length > MAX_BUNDLE) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    if known.windows(certificate.len()).any(|part| part == certificate) {
        return Ok(());
    }
    let mut addition = vec![b'\n'; padding(known.len(), certificate.len())];
    addition.extend_from_slice(certificate);
    file.write_all(&addition)
}

/// How many empty lines put bytes that are added to a file into one page, if they fit into one: the kernel shows what is
/// written page by page.
fn padding(length: usize, added: usize) -> usize {
    let left = PAGE - length % PAGE;
    if added <= left || added > PAGE { 0 } else { left }
}

/// Notes for the audit log that the network is closed.
fn note_loss(start: &EgressStart) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).mode(0o600).open(&start.notes)?;
    file.lock()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    // In the form of the proxy's own notes.
    writeln!(
        file,
        r#"{{"ts_ms":{now},"decision":"deny","why":"egress_lost","protocol":"tcp","host":"","port":0,"intercepted":false}}"#
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn adds_authorities_to_the_same_file_and_takes_nothing_away() {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine.pem");
        std::fs::write(&machine, "machine").unwrap();
        let bundle =
            TrustBundle { path: folder.path().join("trusted.pem"), machine: Some(machine) };
        bundle_file(&bundle).unwrap();
        let inode = std::fs::metadata(&bundle.path).unwrap().ino();
        let mut before = Vec::new();
        for number in 0..20 {
            let certificate = format!("<{number}{}>\n", "x".repeat(700));
            // Twice: a proxy that is started again has the same.
            write_bundle(&bundle, &certificate).unwrap();
            write_bundle(&bundle, &certificate).unwrap();
            let now = std::fs::read(&bundle.path).unwrap();
            assert!(now.starts_with(b"machine\n") && now.starts_with(&before));
            let found: Vec<usize> = (0..now.len())
                .filter(|at| now[*at..].starts_with(certificate.as_bytes()))
                .collect();
            let [at] = *found else { panic!("{number}: {found:?}") };
            assert_eq!(
                at / PAGE,
                (at + certificate.len() - 1) / PAGE,
                "{number} lies in two pages"
            );
            before = now;
        }
        assert_eq!(std::fs::metadata(&bundle.path).unwrap().ino(), inode);
    }

    #[test]
    fn reads_no_file_that_commands_made_huge() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        let mut file = File::options().read(true).append(true).create(true).open(&path).unwrap();
        file.set_len(1 << 32).unwrap();
        let added = add_certificate(&mut file, b"certificate\n");
        assert_eq!(added.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(file.metadata().unwrap().len(), 1 << 32);
    }
}
