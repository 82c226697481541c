//! Answers to the questions of programs inside. Nobody else is asked.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bastide_model::policy::{AddressOwner, DecisionReason, Flow, Host, Policy, normal_name};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use std::os::fd::AsFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

use crate::names::Names;
use crate::notes::Note;
use crate::state::ProxyState;
use crate::sys;

/// How long an answer may be kept. It holds for the session's life; what is denied may be allowed soon.
const TTL: u32 = 60;

/// Questions a second.
const RATE: u32 = 200;

/// The longest question.
const MAX_QUESTION: usize = 4096;

/// How long nothing is received after that failed.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);

/// The code of EDE, and of its reason "Blocked" (RFC 8914).
const EDE: u16 = 15;
const BLOCKED: u16 = 15;

/// An answer.
pub(crate) struct DnsAnswer {
    pub(crate) bytes: Vec<u8>,
    /// The name, if it was refused.
    pub(crate) denied: Option<String>,
}

/// The answer to a message; none to what no answer can be given to.
pub(crate) fn answer(policy: &Policy, names: &Mutex<Names>, bytes: &[u8]) -> Option<DnsAnswer> {
    let (id, flags) = (bytes.first_chunk::<2>()?, *bytes.get(2)?);
    // An answer is no question: two servers could talk to each other forever.
    if flags & 0x80 != 0 {
        return None;
    }
    let id = u16::from_be_bytes(*id);
    let Ok(question) = Message::from_vec(bytes) else {
        let reply = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
        return Some(DnsAnswer { bytes: reply.to_vec().ok()?, denied: None });
    };
    let mut reply = Message::new(id, MessageType::Response, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    if question.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(1232);
        reply.set_edns(edns);
    }
    let denied = fill(policy, names, &question, &mut reply);
    Some(DnsAnswer { bytes: reply.to_vec().ok()?, denied })
}

/// Fills the reply in; tells the name if it is refused.
fn fill(
    policy: &Policy,
    names: &Mutex<Names>,
    question: &Message,
    reply: &mut Message,
) -> Option<String> {
    if question.metadata.op_code != OpCode::Query {
        reply.metadata.response_code = ResponseCode::NotImp;
        return None;
    }
    let [query] = question.queries.as_slice() else {
        reply.metadata.response_code = ResponseCode::FormErr;
        return None;
    };
    if !question.answers.is_empty() || !question.authorities.is_empty() {
        reply.metadata.response_code = ResponseCode::FormErr;
        return None;
    }
    reply.add_query(query.clone());
    if query.query_class() != DNSClass::IN {
        reply.metadata.response_code = ResponseCode::Refused;
        return None;
    }
    let owner = query.name();
    if query.query_type() == RecordType::PTR {
        match pointer(names, owner) {
            Some(name) => {
                reply.add_answer(Record::from_rdata(owner.clone(), TTL, RData::PTR(PTR(name))));
            }
            None => reply.metadata.response_code = ResponseCode::NXDomain,
        }
        return None;
    }
    let text = owner.to_ascii();
    let name = normal_name(&text).ok().filter(|name| policy.may_allow_name(name));
    let Some(name) = name else {
        reply.metadata.response_code = ResponseCode::NXDomain;
        if let Some(edns) = &mut reply.edns {
            let mut option = BLOCKED.to_be_bytes().to_vec();
            option.extend_from_slice(reason(policy, &text).as_bytes());
            edns.options_mut().insert(EdnsOption::Unknown(EDE, option));
        }
        return Some(text.trim_end_matches('.').to_ascii_lowercase());
    };
    // Every other type is empty: no tunnel, no keys of ECH, no hints of HTTP/3.
    if query.query_type() == RecordType::A {
        let address = names.lock().unwrap_or_else(PoisonError::into_inner).address_of(&name);
        match address {
            Some(address) => {
                let data = RData::A(A(address));
                reply.add_answer(Record::from_rdata(owner.clone(), TTL, data));
            }
            None => reply.metadata.response_code = ResponseCode::ServFail,
        }
    }
    None
}

fn reason(policy: &Policy, text: &str) -> String {
    let reason = Host::parse(text.trim_end_matches('.')).ok().and_then(|host| {
        let rule = policy.explain(&Flow { host: &host, port: 443, http: None }).rule?;
        policy.rules.get(rule)?.reason.clone()
    });
    reason.unwrap_or_else(|| "no rule of this session's policy allows this host".to_owned())
}

/// The name behind one of our addresses.
fn pointer(names: &Mutex<Names>, owner: &Name) -> Option<Name> {
    let text = owner.to_ascii().to_ascii_lowercase();
    let digits = text.strip_suffix(".in-addr.arpa.")?;
    let mut octets: Vec<u8> = digits.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    octets.reverse();
    let octets: [u8; 4] = octets.try_into().ok()?;
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    let name = names.name_of(Ipv4Addr::from(octets))?;
    Name::from_ascii(format!("{name}.")).ok()
}

/// Lets so many pass in a second; others wait.
struct RateLimit {
    since: Instant,
    passed: u32,
}

impl RateLimit {
    fn new() -> Self {
        Self { since: Instant::now(), passed: 0 }
    }

    async fn step(&mut self) {
        let second = Duration::from_secs(1);
        if self.since.elapsed() >= second {
            *self = Self::new();
        }
        self.passed += 1;
        if self.passed > RATE {
            tokio::time::sleep(second.saturating_sub(self.since.elapsed())).await;
            *self = Self::new();
        }
    }
}

fn reply_to(shared: &ProxyState, bytes: &[u8]) -> Option<Vec<u8>> {
    let active = shared.active();
    let answer = answer(&active.policy, &shared.names, bytes)?;
    if let Some(name) = answer.denied {
        let mut note = Note::new("deny", DecisionReason::NoRule, &name, 53);
        note.protocol = "dns";
        shared.note(note);
    }
    Some(answer.bytes)
}

/// Answers datagrams as long as there is the socket.
pub(crate) async fn serve_datagrams(shared: Arc<ProxyState>, socket: UdpSocket) {
    // The warden has done it where it made the socket; elsewhere there is no destination without.
    if sys::request_destination(socket.as_fd()).is_err() {
        return;
    }
    let mut pace = RateLimit::new();
    let mut buffer = vec![0; MAX_QUESTION];
    loop {
        let receive = || sys::receive_from(socket.as_fd(), &mut buffer);
        let (length, from, to) = match socket.async_io(Interest::READABLE, receive).await {
            Ok(received) => received,
            // An error of an earlier answer, such as a program that is gone.
            Err(error) if error.kind() != std::io::ErrorKind::NotConnected => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(_) => return,
        };
        pace.step().await;
        if let Some(reply) = reply_to(&shared, &buffer[..length]) {
            // A datagram that is lost is asked for again.
            drop(sys::send_from(socket.as_fd(), &reply, from, to));
        }
    }
}

/// Answers a connection.
pub(crate) async fn serve_stream(shared: Arc<ProxyState>, mut stream: TcpStream) {
    let mut pace = RateLimit::new();
    loop {
        let mut prefix = [0; 2];
        let read = tokio::time::timeout(SILENCE, stream.read_exact(&mut prefix)).await;
        if !matches!(read, Ok(Ok(_))) {
            return;
        }
        let length = usize::from(u16::from_be_bytes(prefix));
        if length > MAX_QUESTION {
            return;
        }
        let mut bytes = vec![0; length];
        let read = tokio::time::timeout(SILENCE, stream.read_exact(&mut bytes)).await;
        if !matches!(read, Ok(Ok(_))) {
            return;
        }
        pace.step().await;
        let Some(reply) = reply_to(&shared, &bytes) else { return };
        let Ok(length) = u16::try_from(reply.len()) else { return };
        let whole = [&length.to_be_bytes()[..], &reply].concat();
        let written = tokio::time::timeout(SILENCE, stream.write_all(&whole)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// Whose an address is: nobody else could have this machine's own here.
pub(crate) fn owner_of(address: IpAddr) -> AddressOwner {
    match std::net::UdpSocket::bind((address, 0)) {
        Ok(_) => AddressOwner::ThisMachine,
        Err(_) => AddressOwner::Other,
    }
}
