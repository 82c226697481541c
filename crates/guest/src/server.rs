//! The guest itself: serves the link to the host.

mod acting;
mod beneath;
mod blocking;
mod call;
mod connection;
mod exec;
mod files;
mod kill;
mod log;
mod memory;
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

use bastide_proto::boot::BootSpec;
use bastide_proto::hello::Token;
use rustix::process::Pid;

use crate::init::ToInit;
use crate::launcher::LauncherReport;
use crate::packet;

use beneath::Roots;
use log::LogFolder;
use memory::MemoryBook;
use pool::Pool;
use processes::Processes;
use users::Users;

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
    /// The warden, which never speaks; only its end can be noticed.
    pub(crate) warden: UnixStream,
    /// Where the warden asks for connections to ports inside.
    pub(crate) porter: OwnedFd,
    /// The folder for what commands say; no path inside leads to it.
    pub(crate) logs: OwnedFd,
    /// Where the kernel counts whom it killed for want of memory, where it does.
    pub(crate) kills: Option<OwnedFd>,
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
pub(crate) fn run(spec: &BootSpec, endpoints: Endpoints) -> io::Result<()> {
    let launcher = await_launcher(&endpoints)?;
    // Held from before the first command ran: nothing a command does to a path changes what these
    // name.
    let roots = Roots::open(&spec.writable, &spec.readable, spec.resolver)?;
    // What the guest makes has the same permissions as what commands make.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .thread_keep_alive(std::time::Duration::from_secs(1))
        .max_blocking_threads(blocking::MAX_THREADS)
        .build()?;
    runtime.block_on(async {
        let guest = Arc::new(Guest {
            token: Token(spec.token),
            roots,
            users: Users::new(
                to_tokio(endpoints.init)?,
                spec.only_own.clone(),
                Pool::new(endpoints.launcher, launcher)?,
            ),
            processes: Processes::default(),
            logs: LogFolder(endpoints.logs),
            memory: MemoryBook::new(endpoints.kills),
            restores: Arc::default(),
        });
        endpoints.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(endpoints.listener)?;
        if let Some(first) = endpoints.first {
            tokio::spawn(connection::serve(Arc::clone(&guest), to_tokio(first)?));
        }
        tokio::spawn(ports::serve(endpoints.porter));
        let warden = to_tokio(endpoints.warden)?;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    tokio::spawn(connection::serve(Arc::clone(&guest), accepted?.0));
                }
                gone = warden.readable() => return gone,
            }
        }
    })
}
