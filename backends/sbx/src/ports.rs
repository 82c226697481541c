//! Ports of a sandbox, published on this host's loopback by `sbx ports`.

use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::Expose;
use bastide::{Error, ErrorKind, Machine, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::backend::SbxBackend;
use crate::listing::{json, no_json};
use crate::program::Sbx;
use crate::state::own_state;

/// How long `sbx` may take to publish a port, or to say which are.
const ANSWER: Duration = Duration::from_secs(30);

/// Where ports are published, and nowhere else.
const LOOPBACK: &str = "127.0.0.1";

/// A published port, as `sbx ports --json` has it.
#[derive(Debug, Clone, Deserialize)]
struct Published {
    #[serde(default)]
    host_ip: String,
    host_port: u16,
    sandbox_port: u16,
    #[serde(default)]
    protocol: String,
}

impl Published {
    fn is_ours(&self) -> bool {
        self.host_ip == LOOPBACK && !self.protocol.starts_with("udp")
    }
}

#[async_trait]
impl Expose for SbxBackend {
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16> {
        let (sbx, sandbox) = self.sandbox_of(machine)?;
        let is_it = |one: &Published| one.sandbox_port == port;
        let before = published(&sbx, &sandbox).await?;
        if let Some(one) = before.iter().find(|one| is_it(one) && one.is_ours()) {
            return Ok(one.host_port);
        }
        // Of every release: without a port of the host it chooses one, on loopback.
        let spec = format!("{port}/tcp4");
        sbx.check_call(&["ports", &sandbox, "--publish", &spec], ANSWER).await?;
        let now = published(&sbx, &sandbox).await?;
        if let Some(one) = now.iter().find(|one| is_it(one) && one.is_ours()) {
            return Ok(one.host_port);
        }
        // Somebody's default is another address: nobody else is to reach it.
        let is_new = |one: &&Published| {
            is_it(one) && !before.iter().any(|known| known.host_port == one.host_port)
        };
        for one in now.iter().filter(is_new) {
            let spec = format!("{}:{}:{port}", one.host_ip, one.host_port);
            sbx.check_call(&["ports", &sandbox, "--unpublish", &spec], ANSWER).await?;
        }
        let message = format!("`sbx ports` did not publish port {port} on {LOOPBACK}");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>> {
        let (sbx, sandbox) = self.sandbox_of(machine)?;
        let all = published(&sbx, &sandbox).await?;
        let ours = all.into_iter().filter(Published::is_ours);
        Ok(ours.map(|one| (one.sandbox_port, one.host_port)).collect())
    }
}

impl SbxBackend {
    /// The program and the sandbox of a machine that is this home's.
    fn sandbox_of(&self, machine: &Machine) -> Result<(Sbx, String)> {
        use bastide::Backend;
        match own_state(self.home(), machine)?.1 {
            Some(state) => Ok((Sbx::new(&state.program), state.sandbox)),
            None => {
                let message = format!("session {} is not running here", machine.id);
                Err(Error::new(ErrorKind::BackendLost, message))
            }
        }
    }
}

async fn published(sbx: &Sbx, sandbox: &str) -> Result<Vec<Published>> {
    let output = sbx.check_call(&["ports", sandbox, "--json"], ANSWER).await?;
    match json(&output.stdout).ok_or_else(|| no_json("sbx ports --json"))? {
        // Go writes an empty list so.
        Value::Null => Ok(Vec::new()),
        list => serde_json::from_value(list).map_err(|error| {
            let message = format!("`sbx ports --json` answers in another shape: {error}");
            Error::new(ErrorKind::Unsupported, message)
        }),
    }
}
