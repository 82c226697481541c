//! Ports of pods on this host: whoever publishes one holds it, or has a program hold it that stays.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::Expose;
use bastide::host::{not_connected, token};
use bastide::link::{IdleLink, MuxLink};
use bastide::{Backend, Error, ErrorKind, Machine, MachineStatus, Result};
use bastide_proto::warden::WardenRequest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::KubernetesBackend;
use crate::backend::no_copy;
use crate::cluster::Cluster;
use crate::link::dial_failed;
use crate::port_program::{ControlInput, PortProgram};
use crate::ports::{PortHolder, published};
use crate::state::{State, own_state};

/// How often whoever holds ports asks whether there still is a pod, when nobody else does.
const LOOK: Duration = Duration::from_secs(300);

impl KubernetesBackend {
    /// Sets the program that holds published ports once this process has ended. It is started with these arguments, has to
    /// call [`hold_ports`](Self::hold_ports) with its standard input and output, and lives as long as the session. Without
    /// one, a published port is there for as long as this process.
    #[must_use]
    pub fn with_port_program(mut self, path: impl Into<PathBuf>, args: Vec<String>) -> Self {
        self.port_program = Some(PortProgram { path: path.into(), args });
        self
    }

    /// Holds the published ports of a session, until it ends: what the program does that
    /// [`with_port_program`](Self::with_port_program) names. `orders` says which session that is, and says more later; one
    /// byte to `ready` says that ports can be published.
    ///
    /// # Errors
    ///
    /// Fails if the orders cannot be read, or if there is no such session in this home.
    pub async fn hold_ports(
        &self,
        orders: impl AsyncRead + Unpin,
        mut ready: impl AsyncWrite + Unpin,
    ) -> Result<()> {
        let failed =
            |error: io::Error| Error::new(ErrorKind::Io, format!("cannot hold ports: {error}"));
        let (machine, orders) = ControlInput::read(orders).await.map_err(failed)?;
        let (_, Some(state)) = own_state(self.home(), &machine)? else {
            return Err(no_copy(&machine.id));
        };
        let holder = self.holder(&machine, state).await?;
        ready.write_all(b"+").await.map_err(failed)?;
        ready.flush().await.map_err(failed)?;
        drop(ready);
        let Some(holder) = holder else { return Ok(()) };
        tokio::select! {
            () = holder.serve() => {}
            () = orders.over() => {}
            () = self.until_ended(&machine) => {}
        }
        Ok(())
    }

    /// Makes ready to hold ports in this process; `None` if another does.
    async fn holder(&self, machine: &Machine, state: State) -> Result<Option<PortHolder>> {
        let cluster = self.cluster_of(&state).await?;
        let (machine, dir) = (machine.clone(), state.dir.clone());
        let link = IdleLink::new(machine.protocol, self.idle_link, move || {
            let (cluster, state, machine) = (cluster.clone(), state.clone(), machine.clone());
            Box::pin(async move { open(&cluster, &state, &machine).await })
        });
        PortHolder::begin(&dir, link).map_err(|error| {
            let message = format!("cannot hold ports in {}: {error}", dir.display());
            Error::new(ErrorKind::Io, message)
        })
    }

    /// Waits until the pod is known to have ended. Looking notes the end for everybody.
    async fn until_ended(&self, machine: &Machine) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Ok(MachineStatus::Ended(_)) = self.inspect(machine).await {
                return;
            }
        }
    }
}

async fn open(cluster: &Cluster, state: &State, machine: &Machine) -> Result<MuxLink> {
    let token = token::load(&state.dir).map_err(|error| not_connected(&machine.id, error))?;
    let opened = cluster.dial(&state.pod).await;
    let opened = opened.map_err(|error| dial_failed(error, &machine.id, &state.pod))?;
    let connection = cluster.link(&state.pod, opened.stream, &token).await?;
    MuxLink::connect_at(connection, machine.protocol).await
}

#[async_trait]
impl Expose for KubernetesBackend {
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16> {
        let (_, Some(state)) = own_state(self.home(), machine)? else {
            return Err(no_copy(&machine.id));
        };
        let (dir, id) = (state.dir.clone(), &machine.id);
        let request = WardenRequest::Publish { port };
        let ports = match published(&dir, id, request).await? {
            Some(ports) => Some(ports),
            None => {
                match &self.port_program {
                    Some(program) => program.start(id, machine, &self.tied).await?,
                    None => {
                        if let Some(holder) = self.holder(machine, state).await? {
                            tokio::spawn(holder.serve());
                        }
                    }
                }
                published(&dir, id, request).await?
            }
        };
        let found = ports.into_iter().flatten().find(|(inside, _)| *inside == port);
        found.map(|(_, host_port)| host_port).ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("nobody holds port {port} of session {id}"))
        })
    }

    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>> {
        let (_, Some(state)) = own_state(self.home(), machine)? else { return Ok(Vec::new()) };
        let ports = published(&state.dir, &machine.id, WardenRequest::Ports).await?;
        Ok(ports.unwrap_or_default())
    }
}
