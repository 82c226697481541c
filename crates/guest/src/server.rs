//! The guest itself: serves the link to the host.

mod acting;
mod beneath;
mod blocking;
mod call;
mod connection;
mod exec;
mod files;
pub(crate) mod kill;
mod log;
mod memory;
mod modes;
mod pipes;
mod pool;
mod ports;
mod process;
mod processes;
mod provision;
mod put;
mod side;
mod terminal;
mod tree;
mod users;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use bastide_proto::boot::{BootSpec, Resolver};
use bastide_proto::hello::{TOKEN_BYTES, Token};
use bastide_wire::Quiet;
use rustix::process::Pid;

use crate::init::ToInit;
use crate::launcher::LauncherReport;
use crate::packet;
use crate::without::{Wall, is_out};

use beneath::Roots;
use log::LogFolder;
use memory::MemoryBook;
use pipes::Pipes;
use pool::Pool;
use processes::Processes;
use users::Users;

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
    pub(crate) porter: Option<OwnedFd>,
    /// The folder for what commands say; no path inside leads to it.
    pub(crate) logs: OwnedFd,
    /// Where the kernel counts whom it killed for want of memory, where it does.
    pub(crate) kills: Option<OwnedFd>,
}

/// What is served.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    /// The token every connection must prove.
    pub(crate) token: [u8; TOKEN_BYTES],
    /// Where files may be changed; the first is the workspace.
    pub(crate) writable: Vec<String>,
    /// Where they may only be read.
    pub(crate) readable: Vec<String>,
    /// Whether some of the former are folders of the host.
    pub(crate) writes_to_host: bool,
    /// How they are found.
    pub(crate) resolver: Resolver,
    /// Why there is nobody but the default user, if so.
    pub(crate) only_own: Option<String>,
    /// Who the default user is.
    pub(crate) own_uid: u32,
}

impl From<&BootSpec> for Served {
    fn from(spec: &BootSpec) -> Self {
        Self {
            token: spec.token,
            writable: spec.writable.clone(),
            readable: spec.readable.clone(),
            writes_to_host: spec.writes_to_host,
            resolver: spec.resolver,
            only_own: spec.only_own.clone(),
            own_uid: rustix::process::geteuid().as_raw(),
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
    pub(crate) memory: MemoryBook,
    pub(crate) pipes: Pipes,
    /// Held alone by whoever puts a tree in the place of another, together by whoever looks through one.
    pub(crate) restores: Arc<tokio::sync::RwLock<()>>,
}

/// Waits until commands can be run, and tells init.
fn await_launcher(endpoints: &Endpoints) -> io::Result<Pid> {
    let report = packet::receive::<LauncherReport>(&endpoints.launcher)?;
    let (report, _) = report.ok_or(io::ErrorKind::UnexpectedEof)?;
    let pid = report.as_ref().ok().and_then(|launched| Pid::from_raw(launched.pid));
    let up = ToInit::Up(report.map(|launched| launched.walls));
    packet::send(&endpoints.init, &up, &[])?;
    pid.ok_or_else(|| io::ErrorKind::Other.into())
}

fn to_tokio(stream: UnixStream) -> io::Result<tokio::net::UnixStream> {
    stream.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(stream)
}

/// Serves until the warden is gone. A sandbox that nobody watches over must not live on.
pub(crate) fn run(served: &Served, endpoints: Endpoints) -> io::Result<()> {
    // A host that connects learns from the kernel who listens: this process, not the first one. It comes
    // as soon as it hears that commands can be run, so by then this must be so.
    rustix::net::listen(&endpoints.listener, BACKLOG)?;
    // Held from before the first command ran: nothing a command does to a path changes what these
    // name.
    let roots = Roots::open(&served.writable, &served.readable, served.resolver)?;
    // What the guest makes has the same permissions as what commands make.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if served.writes_to_host && !is_out(Wall::SetIdModes) {
        modes::forbid_set_id();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .max_blocking_threads(blocking::MAX_THREADS)
        .build()?;
    // All of the above was done while the launcher went behind its walls.
    let launcher = await_launcher(&endpoints)?;
    runtime.block_on(async {
        let guest = Arc::new(Guest {
            token: Token(served.token),
            roots,
            users: Users::new(
                Quiet::new(endpoints.init)?,
                served.only_own.clone(),
                served.own_uid,
                Pool::new(endpoints.launcher, launcher)?,
            ),
            processes: Processes::default(),
            logs: LogFolder(endpoints.logs),
            memory: MemoryBook::new(endpoints.kills),
            pipes: Pipes::default(),
            restores: Arc::default(),
        });
        endpoints.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(endpoints.listener)?;
        if let Some(first) = endpoints.first {
            tokio::spawn(connection::serve(Arc::clone(&guest), to_tokio(first)?));
        }
        if let Some(porter) = endpoints.porter {
            tokio::spawn(ports::serve(porter));
        }
        let gone = end_of(endpoints.warden);
        tokio::pin!(gone);
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    tokio::spawn(connection::serve(Arc::clone(&guest), accepted?.0));
                }
                gone = &mut gone => return gone,
            }
        }
    })
}

/// Waits for the end of the warden, where there is one.
async fn end_of(warden: Option<UnixStream>) -> io::Result<()> {
    let Some(warden) = warden else { return std::future::pending().await };
    to_tokio(warden)?.readable().await
}
