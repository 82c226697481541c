//! The network of a session that has a policy: what its warden, hosts and the program `bastide-egress` say to each other.
//!
//! The warden executes the program with one end of a `SOCK_SEQPACKET` pair as standard input and nothing else. Each
//! packet of the warden is one [`EgressCommand`], each packet of the program one [`EgressReport`]; descriptors travel
//! beside them (`SCM_RIGHTS`), in the order that the message names.
//!
//! Hosts ask the warden for the program; the warden hands their connections over ([`EgressCommand::Caller`]). From then on
//! such a connection carries one [`EgressRequest`] and one [`EgressResponse`], each as a length of four bytes and a
//! message. Values of secrets are in requests and in sealed memory files alone, neither of which the warden reads.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The longest packet between warden and program.
pub const MAX_EGRESS_PACKET: usize = 160 << 10;

/// The longest request or response of a host.
pub const MAX_EGRESS_MESSAGE: usize = 1 << 20;

/// The longest policy, as JSON.
pub const MAX_POLICY: usize = 128 << 10;

/// The most descriptors beside one packet.
pub const MAX_DESCRIPTORS: usize = 250;

/// Addresses that stand for names: 198.18.0.0/15.
pub const NAME_RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(198, 18, 0, 0), 15);

/// What every placeholder of a secret begins with; 32 hexadecimal digits follow.
pub const PLACEHOLDER_PREFIX: &str = "bst-secret-";

/// What a warden tells the program.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EgressCommand {
    /// First and once. Beside it: the secrets, if [`EgressStart::has_secrets`], then the authority of an earlier program
    /// of this session, if [`EgressStart::has_authority`].
    Start(Box<EgressStart>),
    /// Accept on these; the descriptors are beside it, one for each, at most [`MAX_DESCRIPTORS`].
    Listeners(Vec<EgressListener>),
    /// A host speaks on the connection that is beside it.
    Caller,
    /// End. The end of the channel means the same.
    Stop,
}

/// What the program needs to know of its session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressStart {
    /// The session.
    pub session_id: String,
    /// The policy as JSON: the floor's rules are in it and presets are resolved; no value of a secret is.
    pub policy: String,
    /// Whether a sealed memory file with the secrets comes along: an encoded `Vec<EgressSecret>`.
    pub has_secrets: bool,
    /// Whether the authority of an earlier program comes along, as [`EgressReport::Ready`] gave it out.
    pub has_authority: bool,
    /// The file where decisions are noted for the audit log; its folder exists.
    pub notes: PathBuf,
    /// The machine's `resolv.conf`.
    pub resolv_conf: PathBuf,
    /// The machine's `hosts`.
    pub hosts: PathBuf,
    /// Where certificates of authorities are read; the system's own places, if none.
    pub roots: Option<PathBuf>,
    /// Addresses that stand for names, and the length of their prefix: [`NAME_RANGE`].
    pub name_range: (Ipv4Addr, u8),
    /// The folder in which packages are kept, if they are; it exists.
    pub package_cache: Option<PathBuf>,
    /// How many seconds from now the session may live at most; the certificate of its authority lasts a day longer.
    pub lease_seconds: u64,
}

/// A listener that the program accepts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressListener {
    /// The port that programs inside dial.
    pub port: u16,
    /// What it is.
    pub transport: Transport,
}

/// What a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// A TCP socket that listens. On port 53 it carries DNS.
    Tcp,
    /// A UDP socket that is bound, with `IP_PKTINFO` set: DNS.
    Udp,
}

/// What the program tells its warden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EgressReport {
    /// It answers on whatever it is handed. Beside it: its authority as a sealed memory file, which is handed to the next
    /// program should this one die.
    Ready {
        /// The certificate of the session's authority (PEM), if the policy has TLS read.
        certificate: Option<String>,
        /// The TCP ports the policy is about, 80 and 443 among them.
        ports: Vec<u16>,
    },
    /// It cannot, and ends.
    Failed {
        /// Why, with what to do about it.
        message: String,
    },
    /// The policy was changed by a host: this is what the next program starts with. Beside it: the secrets as a sealed
    /// memory file, and the authority.
    Changed {
        /// The policy.
        policy: String,
        /// The certificate, if one is needed; another one than before if other hosts are read.
        certificate: Option<String>,
        /// The TCP ports it is about. Listeners that are missing are wanted.
        ports: Vec<u16>,
    },
}

/// A secret on its way to the program.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressSecret {
    /// Its name in the policy.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What stands for it inside, if anything does: [`PLACEHOLDER_PREFIX`] and 32 hexadecimal digits.
    pub placeholder: Option<String>,
}

impl fmt::Debug for EgressSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a host wants of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EgressRequest {
    /// Go by another policy from now on, and end what it no longer allows.
    Set {
        /// The policy, as in [`EgressStart::policy`].
        policy: String,
        /// Every secret that it names.
        secrets: Vec<EgressSecret>,
    },
    /// Say how things stand.
    Show,
    /// Name what waits for an answer.
    Pending,
    /// Answer something that waits.
    Answer {
        /// Its number.
        id: u64,
        /// The answer.
        answer: Answer,
    },
}

/// What becomes of something that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It may, this time.
    Once,
    /// It may, and so may the like of it from now on: the policy gets a rule.
    Session,
    /// It may not.
    Deny,
}

/// What the program answers a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EgressResponse {
    /// It is done.
    Done,
    /// How things stand.
    Status(Box<EgressStatus>),
    /// What waits.
    Pending(Vec<PendingFlow>),
    /// It was not done, and nothing was changed.
    Refused {
        /// Why, with what to do about it.
        message: String,
    },
}

/// How things stand with the network of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressStatus {
    /// The program's process.
    pub pid: u32,
    /// The policy in force, as JSON.
    pub policy: String,
    /// The hosts whose TLS is read, as patterns.
    pub read_hosts: Vec<String>,
    /// The TCP ports the policy is about.
    pub ports: Vec<u16>,
    /// The certificate of the session's authority, if there is one.
    pub certificate: Option<String>,
    /// What is open now; at most 256.
    pub flows: Vec<FlowStatus>,
    /// Connections that wait for one of the open ones to end.
    pub waiting: u64,
    /// Flows and requests allowed so far.
    pub allowed: u64,
    /// Flows, requests and names denied so far.
    pub denied: u64,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
}

/// A connection that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// Whom the program inside dialled.
    pub host: String,
    /// Where the connection leads, once it does.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// `tcp`, `tls` or `http`.
    pub protocol: String,
    /// Whether TLS is read.
    pub intercepted: bool,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// For how long it has been open.
    pub open_ms: u64,
}

/// Something that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingFlow {
    /// Its number.
    pub id: u64,
    /// Whom the program inside dialled.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The method, where it is a request.
    pub method: Option<String>,
    /// The path, where it is a request.
    pub path: Option<String>,
    /// How many milliseconds are left until it is denied.
    pub left_ms: u64,
}
