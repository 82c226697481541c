//! What all connections of the session share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bastide_model::policy::{Host, Policy};
use bastide_proto::egress::{EgressStart, EgressStatus, FlowStatus};
use rustls::ClientConfig;
use tokio::sync::{Notify, Semaphore, watch};

use crate::flow::OpenFlow;
use crate::names::Names;
use crate::notes::{Note, Notes};
use crate::package_cache::PackageCache;
use crate::pending_approvals::PendingApprovals;
use crate::resolver::Resolver;
use crate::secrets::Secrets;
use crate::tls::{self, Authority};

/// How many policies there have been.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// What holds until the policy is changed.
pub(crate) struct ActivePolicy {
    /// Which one it is, in this program.
    pub(crate) number: u64,
    pub(crate) policy: Policy,
    pub(crate) secrets: Secrets,
    pub(crate) authority: Option<Arc<Authority>>,
    client: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl ActivePolicy {
    pub(crate) fn new(policy: Policy, secrets: Secrets, authority: Option<Arc<Authority>>) -> Self {
        Self {
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            policy,
            secrets,
            authority,
            client: OnceLock::new(),
        }
    }

    /// How many connections there may be at a time.
    fn connections(&self) -> usize {
        usize::try_from(self.policy.limits.connections).unwrap_or(1)
    }

    /// How servers outside are spoken to and verified; made when it is first needed.
    pub(crate) fn client(&self, start: &EgressStart) -> Result<Arc<ClientConfig>, String> {
        let make =
            || tls::client_config(start.roots.as_deref(), self.policy.upstream.roots.as_deref());
        self.client.get_or_init(make).clone()
    }
}

/// What all connections of the session share.
pub(crate) struct ProxyState {
    pub(crate) start: EgressStart,
    pub(crate) notes: Notes,
    pub(crate) names: Mutex<Names>,
    pub(crate) resolver: Resolver,
    pub(crate) approvals: PendingApprovals,
    /// Packages that are kept, if they are.
    pub(crate) cache: Option<PackageCache>,
    /// Room for connections: one number for all, whichever policy they were opened by.
    pub(crate) slots: Arc<Semaphore>,
    active: Mutex<Arc<ActivePolicy>>,
    changes: watch::Sender<u64>,
    flows: Mutex<(u64, HashMap<u64, Arc<OpenFlow>>)>,
    allowed: AtomicU64,
    denied: AtomicU64,
    /// Bytes of flows that have ended.
    past_out: AtomicU64,
    past_in: AtomicU64,
    pub(crate) waiting: AtomicU64,
    /// Something was denied that may be repeated.
    pub(crate) denials: Notify,
}

impl ProxyState {
    pub(crate) fn new(
        start: EgressStart,
        notes: Notes,
        active: ActivePolicy,
        cache: Option<PackageCache>,
    ) -> Self {
        let names = Mutex::new(Names::new(&start.session_id, start.name_range));
        let resolver = Resolver::new(&start.resolv_conf, &start.hosts);
        Self {
            start,
            notes,
            names,
            resolver,
            approvals: PendingApprovals::default(),
            cache,
            slots: Arc::new(Semaphore::new(active.connections())),
            active: Mutex::new(Arc::new(active)),
            changes: watch::Sender::new(0),
            flows: Mutex::default(),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            past_out: AtomicU64::new(0),
            past_in: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            denials: Notify::new(),
        }
    }

    /// What holds now.
    pub(crate) fn active(&self) -> Arc<ActivePolicy> {
        Arc::clone(&self.active.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another policy holds from now on, for what is open too.
    pub(crate) fn set_active(&self, active: ActivePolicy) {
        let now = active.connections();
        let before = {
            let mut held = self.active.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *held, Arc::new(active)).connections()
        };
        self.slots.add_permits(now.saturating_sub(before));
        let mut too_many = before.saturating_sub(now);
        too_many -= self.slots.forget_permits(too_many);
        if too_many > 0 {
            // What is open stays open; as it ends, nothing comes in its place. All at once, so that nobody who asks
            // meanwhile is in between.
            let slots = Arc::clone(&self.slots);
            let too_many = u32::try_from(too_many).unwrap_or(u32::MAX);
            tokio::spawn(async move {
                if let Ok(taken) = slots.acquire_many(too_many).await {
                    taken.forget();
                }
            });
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Tells of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whom an address stands for; none if it is one of ours that stands for nobody.
    pub(crate) fn dialled(&self, address: IpAddr) -> Option<Host> {
        let address = address.to_canonical();
        if let IpAddr::V4(v4) = address {
            let names = self.names();
            if names.contains(v4) {
                return names.name_of(v4).map(|name| Host::Name(name.to_owned()));
            }
        }
        Some(Host::Address(address))
    }

    /// Puts a decision on record.
    pub(crate) fn note(&self, note: Note) {
        match note.decision {
            "allow" => {
                self.allowed.fetch_add(1, Ordering::Relaxed);
            }
            "deny" => {
                self.denied.fetch_add(1, Ordering::Relaxed);
                self.denials.notify_one();
            }
            _ => {}
        }
        self.notes.add(note);
    }

    fn flows(&self) -> MutexGuard<'_, (u64, HashMap<u64, Arc<OpenFlow>>)> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a flow as open until the value is dropped.
    pub(crate) fn open(self: &Arc<Self>, flow: &Arc<OpenFlow>) -> FlowGuard {
        let mut flows = self.flows();
        flows.0 += 1;
        let id = flows.0;
        flows.1.insert(id, Arc::clone(flow));
        FlowGuard { shared: Arc::clone(self), id }
    }

    /// Bytes that went out and came in so far.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let mut out = self.past_out.load(Ordering::Relaxed);
        let mut inward = self.past_in.load(Ordering::Relaxed);
        for flow in self.flows().1.values() {
            out += flow.bytes_out.load(Ordering::Relaxed);
            inward += flow.bytes_in.load(Ordering::Relaxed);
        }
        (out, inward)
    }

    /// Whether the session has had as many bytes as it may.
    pub(crate) fn is_over_quota(&self) -> bool {
        self.active().policy.limits.bytes.is_some_and(|most| {
            let (out, inward) = self.bytes();
            out.saturating_add(inward) >= most
        })
    }

    pub(crate) fn status(&self) -> EgressStatus {
        let active = self.active();
        let flows: Vec<FlowStatus> =
            self.flows().1.values().take(256).map(|flow| flow.status()).collect();
        let (bytes_out, bytes_in) = self.bytes();
        EgressStatus {
            pid: std::process::id(),
            policy: active.policy.to_value().to_string(),
            read_hosts: active.policy.read_hosts().iter().map(ToString::to_string).collect(),
            ports: active.policy.ports(),
            certificate: active.authority.as_ref().map(|authority| authority.certificate_pem()),
            flows,
            waiting: self.waiting.load(Ordering::Relaxed),
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            bytes_out,
            bytes_in,
        }
    }
}

/// Whatever holds it is part of an open flow.
pub(crate) struct FlowGuard {
    shared: Arc<ProxyState>,
    id: u64,
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        if let Some(flow) = self.shared.flows().1.remove(&self.id) {
            let add = |to: &AtomicU64, of: &AtomicU64| {
                to.fetch_add(of.load(Ordering::Relaxed), Ordering::Relaxed);
            };
            add(&self.shared.past_out, &flow.bytes_out);
            add(&self.shared.past_in, &flow.bytes_in);
        }
    }
}
