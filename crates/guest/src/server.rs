//! The guest itself: serves the link to the host.

mod activity;
mod beneath;
mod blocking;
mod call;
mod connection;
mod credentials;
mod exec;
mod files;
mod freeze;
pub(crate) mod kill;
mod lease;
mod log;
mod modes;
mod oom;
mod pipes;
mod pool;
mod ports;
mod process;
mod processes;
mod provision;
mod put;
mod side_channel;
mod terminal;
mod tree;
mod unchanged;
mod usage;
mod users;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use bastide_proto::boot::{BootSpec, InodeId, Resolver};
use bastide_proto::hello::{TOKEN_BYTES, Token};
use bastide_proto::pod::PodLease;
use bastide_wire::LazyWriteStream;
use bastide_wire::conduit::Conduits;
use rustix::process::Pid;

use crate::accounts::{Identity, UnnamedGroup};
use crate::init::InitRequest;
use crate::jail::{StepContext, StepError};
use crate::launcher::LauncherReport;
use crate::packet;
use crate::removable_walls::{Wall, is_removed};
use crate::sys::ignore_library_signals;

use activity::Activity;
use beneath::Roots;
use lease::{Lease, LeaseExpiry};
use log::LogFolder;
use oom::OomCounter;
use pipes::Pipes;
use pool::Pool;
use processes::Processes;
use unchanged::Unchanged;
use usage::SessionUsage;
use users::Users;

pub(crate) use users::UserPolicy;

/// How many hosts may wait to be accepted.
const BACKLOG: i32 = 128;

/// Where the guest is reached, and whom it reaches.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Where hosts connect.
    pub(crate) listener: UnixListener,
    /// The connection of the host that made the session.
    pub(crate) first: Option<UnixStream>,
    /// The launcher of the default user.
    pub(crate) launcher: UnixStream,
    /// Init, which starts launchers.
    pub(crate) init: UnixStream,
    /// The warden of a local sandbox, which never speaks; only its end can be noticed.
    pub(crate) warden: Option<UnixStream>,
    /// Where the warden asks for connections to ports inside, if it did not come by a connection.
    pub(crate) port_channel: Option<OwnedFd>,
    /// The folder for what commands say; no path inside leads to it.
    pub(crate) logs: OwnedFd,
    /// Where the kernel counts OOM kills, where it does.
    pub(crate) oom_events: Option<OwnedFd>,
    /// The process that makes listening sockets for the network's policy, a child of init as the guest is.
    pub(crate) egress_listeners: Option<Pid>,
}

/// What is served.
#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    /// The token every connection must prove.
    pub(crate) token: [u8; TOKEN_BYTES],
    /// Where files may be changed; the first is the workspace.
    pub(crate) writable: Vec<String>,
    /// Where they may only be read.
    pub(crate) readable: Vec<String>,
    /// Which files of the host some of these are.
    pub(crate) identities: Vec<(String, InodeId)>,
    /// Whether some of the former are folders of the host.
    pub(crate) writes_to_host: bool,
    /// How they are found.
    pub(crate) resolver: Resolver,
    /// Who there is.
    pub(crate) user_policy: UserPolicy,
    /// How many bytes of disk the session may use, if that is limited.
    pub(crate) disk: Option<u64>,
    /// Who may connect besides root, where that can be seen.
    pub(crate) caller: Option<u32>,
    /// Whether the control groups that are seen inside hold this session and nothing else.
    pub(crate) has_own_groups: bool,
    /// When it ends by itself, where nobody else ends it.
    pub(crate) lease: Option<PodLease>,
    /// Whether files that do not allow it are written to all the same.
    pub(crate) overrides_modes: bool,
}

impl From<&BootSpec> for ServerConfig {
    fn from(spec: &BootSpec) -> Self {
        Self {
            token: spec.token,
            writable: spec.writable.clone(),
            readable: spec.readable.clone(),
            identities: spec.identities.clone(),
            writes_to_host: spec.writes_to_host,
            resolver: spec.resolver,
            user_policy: UserPolicy {
                own: Identity {
                    uid: rustix::process::geteuid().as_raw(),
                    gid: rustix::process::getegid().as_raw(),
                    groups: Vec::new(),
                },
                // Every command is told where its home is.
                home: "/".to_owned(),
                single_user_reason: spec.single_user_reason.clone(),
                unnamed_group: UnnamedGroup::InOwnGroup,
            },
            disk: spec.limits.disk,
            caller: spec.caller,
            has_own_groups: false,
            lease: None,
            overrides_modes: false,
        }
    }
}

/// What every call can reach.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) token: Token,
    pub(crate) roots: Roots,
    pub(crate) users: Users,
    pub(crate) processes: Processes,
    pub(crate) logs: LogFolder,
    pub(crate) memory: OomCounter,
    pub(crate) pipes: Pipes,
    /// Held alone by whoever puts a tree in the place of another, together by whoever looks through one.
    pub(crate) restores: Arc<tokio::sync::RwLock<()>>,
    /// Held alone by whoever keeps everything from running, together by whoever starts a command.
    pub(crate) freezes: Arc<tokio::sync::RwLock<()>>,
    /// When something was last done here.
    pub(crate) activity: Activity,
    /// Whether files can have changed since a tree was looked through.
    pub(crate) unchanged: Unchanged,
    /// What commands used.
    pub(crate) usage: SessionUsage,
    /// When it ends by itself.
    pub(crate) lease: Lease,
    /// Links that outlive the streams they go over.
    pub(crate) conduits: Conduits<tokio::net::UnixStream>,
}

impl Guest {
    /// How long nothing has happened: no command and nothing descended from one lived, and no host did anything.
    fn idle(&self) -> std::time::Duration {
        match self.processes.is_any_alive() {
            true => std::time::Duration::ZERO,
            false => self.activity.idle(),
        }
    }
}

/// Waits until commands can be run, and tells init.
fn await_launcher(endpoints: &Endpoints) -> io::Result<Pid> {
    let report = packet::receive::<LauncherReport>(&endpoints.launcher)?;
    let (report, _) = report.ok_or(io::ErrorKind::UnexpectedEof)?;
    let pid = report.as_ref().ok().and_then(|launched| Pid::from_raw(launched.pid));
    let up = InitRequest::Up(report.map(|launched| launched.walls));
    packet::send(&endpoints.init, &up, &[])?;
    pid.ok_or_else(|| io::ErrorKind::Other.into())
}

fn to_tokio(stream: UnixStream) -> io::Result<tokio::net::UnixStream> {
    stream.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(stream)
}

/// Tells init why there will be no guest.
pub(crate) fn give_up(init: &UnixStream, error: StepError) -> io::Error {
    let why = error.to_string();
    // An init that is gone has nobody to tell it to.
    drop(packet::send(init, &InitRequest::Up(Err(error.into())), &[]));
    io::Error::other(why)
}

/// What has to be there before anything is served.
fn prepare(
    served: &ServerConfig,
    listener: &UnixListener,
) -> Result<(Roots, tokio::runtime::Runtime), StepError> {
    // A host that connects learns from the kernel who listens: this process, not the first one. It comes
    // as soon as it hears that commands can be run, so by then this must be so.
    rustix::net::listen(listener, BACKLOG).step(|| "listen for hosts".to_owned())?;
    kill::detect_pid_namespace();
    ignore_library_signals();
    // Held from before the first command ran: nothing a command does to a path changes what these
    // name.
    let ServerConfig { writable, readable, identities, resolver, .. } = served;
    // What cannot be opened is the session's own, and no want of the machine's.
    let roots = Roots::open(writable, readable, identities, *resolver);
    let roots = roots.map_err(StepError::of_session)?;
    // What the guest makes has the same permissions as what commands make.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if served.writes_to_host && !is_removed(Wall::SetIdModes) {
        modes::forbid_set_id();
    }
    if served.overrides_modes {
        modes::override_permissions();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .step(|| "start the guest's runtime".to_owned())?;
    Ok((roots, runtime))
}

/// Serves until the warden is gone. A sandbox that nobody watches over must not live on.
pub(crate) fn run(served: &ServerConfig, endpoints: Endpoints) -> io::Result<()> {
    let prepared = prepare(served, &endpoints.listener);
    let (roots, runtime) = prepared.map_err(|error| give_up(&endpoints.init, error))?;
    // All of the above was done while the launcher went behind its walls.
    let launcher = await_launcher(&endpoints)?;
    let init = endpoints.init.try_clone()?;
    runtime.block_on(async {
        let guest = Arc::new(Guest {
            token: Token(served.token),
            roots,
            users: Users::new(
                LazyWriteStream::new(endpoints.init)?,
                served.user_policy.clone(),
                Pool::new(endpoints.launcher, launcher)?,
                endpoints.egress_listeners,
            ),
            processes: Processes::default(),
            logs: LogFolder::new(endpoints.logs, served.disk),
            memory: OomCounter::new(endpoints.oom_events),
            pipes: Pipes::default(),
            restores: Arc::default(),
            freezes: Arc::default(),
            activity: Activity::default(),
            unchanged: Unchanged::default(),
            usage: SessionUsage::new(served.has_own_groups),
            lease: Lease::new(served.lease),
            conduits: Conduits::default(),
        });
        endpoints.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(endpoints.listener)?;
        if let Some(first) = endpoints.first {
            tokio::spawn(connection::serve(Arc::clone(&guest), to_tokio(first)?));
        }
        if let Some(port_channel) = endpoints.port_channel {
            tokio::spawn(ports::serve(Arc::clone(&guest), port_channel));
        }
        let gone = end_of(endpoints.warden);
        tokio::pin!(gone);
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let stream = accepted?.0;
                    // A command may have opened the folder the socket lies in to everybody.
                    if may_connect(&stream, served.caller) {
                        tokio::spawn(connection::serve(Arc::clone(&guest), stream));
                    }
                }
                gone = &mut gone => return gone,
                over = guest.lease.over(|| guest.idle()) => {
                    let why = match over {
                        LeaseExpiry::Abandoned => InitRequest::Over,
                        LeaseExpiry::Expired => InitRequest::Expired,
                    };
                    return packet::send_now(&init, &packet::encode(&why)?, &[]);
                }
            }
        }
    })
}

/// Whether whoever connects is the session's caller, where ids are the host's, or root.
fn may_connect(stream: &tokio::net::UnixStream, caller: Option<u32>) -> bool {
    let Some(caller) = caller else { return true };
    stream.peer_cred().is_ok_and(|peer| [0, caller].contains(&peer.uid()))
}

/// Waits for the end of the warden, where there is one.
async fn end_of(warden: Option<UnixStream>) -> io::Result<()> {
    let Some(warden) = warden else { return std::future::pending().await };
    to_tokio(warden)?.readable().await
}
