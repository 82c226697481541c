//! The guest itself: serves the link to the host.

mod beneath;
mod blocking;
mod call;
mod connection;
mod exec;
mod files;
mod kill;
mod pool;
mod put;
mod side;

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use bastide_proto::boot::BootSpec;
use bastide_proto::hello::Token;

use beneath::Roots;
use pool::Pool;

/// Where the guest is reached, and whom it reaches.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Where hosts connect.
    pub(crate) listener: UnixListener,
    /// The connection of the host that made the session.
    pub(crate) first: Option<UnixStream>,
    /// The launcher of the default user.
    pub(crate) launcher: UnixStream,
    /// The warden, which never speaks; only its end can be noticed.
    pub(crate) warden: UnixStream,
}

/// What every call can reach.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) token: Token,
    pub(crate) roots: Roots,
    pub(crate) pool: Pool,
}

/// Serves until the warden is gone. A sandbox that nobody watches over must not live on.
pub(crate) fn run(spec: &BootSpec, endpoints: Endpoints) -> io::Result<()> {
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
            pool: Pool::new(endpoints.launcher)?,
        });
        endpoints.listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(endpoints.listener)?;
        if let Some(first) = endpoints.first {
            first.set_nonblocking(true)?;
            let first = tokio::net::UnixStream::from_std(first)?;
            tokio::spawn(connection::serve(Arc::clone(&guest), first));
        }
        endpoints.warden.set_nonblocking(true)?;
        let warden = tokio::net::UnixStream::from_std(endpoints.warden)?;
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
