//! Connections that are open, and what is counted of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bastide_model::policy::{Host, NormalPath, Protocol};
use bastide_proto::egress::FlowStatus;

/// A request that is under way.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    pub(crate) method: String,
    pub(crate) path: NormalPath,
    pub(crate) query: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct OpenFlow {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) protocol: Protocol,
    pub(crate) read: bool,
    started: Instant,
    /// Milliseconds after `started`.
    last_byte: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    address: Mutex<Option<IpAddr>>,
    requests: Mutex<(u64, HashMap<u64, InFlight>)>,
}

impl OpenFlow {
    pub(crate) fn new(host: Host, port: u16, protocol: Protocol, read: bool) -> Arc<Self> {
        Arc::new(Self {
            host,
            port,
            protocol,
            read,
            started: Instant::now(),
            last_byte: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            address: Mutex::default(),
            requests: Mutex::default(),
        })
    }

    fn since(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn sent_out(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last_byte.store(self.since(), Ordering::Relaxed);
    }

    pub(crate) fn came_in(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        self.last_byte.store(self.since(), Ordering::Relaxed);
    }

    /// How long no byte has passed.
    pub(crate) fn idle(&self) -> Duration {
        let last = self.last_byte.load(Ordering::Relaxed);
        Duration::from_millis(self.since().saturating_sub(last))
    }

    pub(crate) fn duration_ms(&self) -> u64 {
        self.since()
    }

    pub(crate) fn set_address(&self, address: IpAddr) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn requests(&self) -> MutexGuard<'_, (u64, HashMap<u64, InFlight>)> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a request until the value is dropped.
    pub(crate) fn begin(self: &Arc<Self>, request: InFlight) -> RequestGuard {
        let mut requests = self.requests();
        requests.0 += 1;
        let id = requests.0;
        requests.1.insert(id, request);
        drop(requests);
        RequestGuard { flow: Arc::clone(self), id }
    }

    /// The requests that are under way.
    pub(crate) fn in_flight(&self) -> Vec<InFlight> {
        self.requests().1.values().cloned().collect()
    }

    pub(crate) fn status(&self) -> FlowStatus {
        FlowStatus {
            host: self.host.to_string(),
            address: self.address(),
            port: self.port,
            protocol: self.protocol.as_str().to_owned(),
            intercepted: self.read && self.protocol == Protocol::Tls,
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            open_ms: self.since(),
        }
    }
}

/// Whatever holds it is part of a request that is under way.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    flow: Arc<OpenFlow>,
    id: u64,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.flow.requests().1.remove(&self.id);
    }
}
