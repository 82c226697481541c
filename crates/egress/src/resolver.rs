//! Addresses of names outside, asked when a connection is made and not before.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bastide_model::policy::Policy;
use hickory_proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// How long a server may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How often each server is asked.
const ATTEMPTS: usize = 2;

/// How many servers are asked.
const MAX_SERVERS: usize = 3;

/// How many addresses of a name are kept.
const MAX_ADDRESSES: usize = 16;

/// The largest datagram that is taken.
const MAX_DATAGRAM: u16 = 1232;

/// Asks the servers that this machine is set up with.
#[derive(Debug)]
pub(crate) struct Resolver {
    resolv_conf: PathBuf,
    hosts: PathBuf,
    /// What was read last: a file that is replaced may be out of reach.
    servers: Mutex<Vec<SocketAddr>>,
}

impl Resolver {
    pub(crate) fn new(resolv_conf: &Path, hosts: &Path) -> Self {
        let resolver = Self {
            resolv_conf: resolv_conf.to_owned(),
            hosts: hosts.to_owned(),
            servers: Mutex::default(),
        };
        resolver.servers();
        resolver
    }

    fn servers(&self) -> Vec<SocketAddr> {
        let mut kept = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(text) = std::fs::read_to_string(&self.resolv_conf) {
            let found = servers_in(&text);
            if !found.is_empty() {
                *kept = found;
            }
        }
        kept.clone()
    }

    /// The addresses of a name.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub(crate) async fn addresses(
        &self,
        policy: &Policy,
        name: &str,
    ) -> Result<Vec<IpAddr>, String> {
        if let Some(own) = policy.hosts.get(name) {
            return Ok(own.clone());
        }
        let listed = std::fs::read_to_string(&self.hosts).map(|text| hosts_in(&text, name));
        if let Some(listed) = listed.ok().filter(|listed| !listed.is_empty()) {
            return Ok(listed);
        }
        let servers = match policy.upstream.dns {
            Some(server) => vec![server],
            None => self.servers(),
        };
        if servers.is_empty() {
            return Err("this machine has no DNS server".to_owned());
        }
        let (four, six) =
            tokio::join!(ask(&servers, name, RecordType::A), ask(&servers, name, RecordType::AAAA));
        let mut all = Vec::new();
        let mut problem = None;
        for found in [six, four] {
            match found {
                Ok(found) => all.extend(found),
                Err(why) => problem = Some(why),
            }
        }
        all.truncate(MAX_ADDRESSES);
        if all.is_empty() {
            return Err(problem.unwrap_or_else(|| format!("{name} has no address")));
        }
        Ok(all)
    }
}

/// The servers of a `resolv.conf`.
fn servers_in(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = lines.filter_map(|rest| rest.trim().parse::<IpAddr>().ok());
    addresses.map(|address| SocketAddr::new(address, 53)).take(MAX_SERVERS).collect()
}

/// The addresses of a name in a `hosts` file.
fn hosts_in(text: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut fields = line.split_ascii_whitespace();
        let Some(Ok(address)) = fields.next().map(str::parse::<IpAddr>) else { continue };
        if fields.any(|field| field.eq_ignore_ascii_case(name)) {
            found.push(address);
        }
    }
    found.truncate(MAX_ADDRESSES);
    found
}

async fn ask(servers: &[SocketAddr], name: &str, kind: RecordType) -> Result<Vec<IpAddr>, String> {
    let owner = Name::from_ascii(format!("{name}.")).map_err(|error| error.to_string())?;
    let mut problem = String::new();
    for server in servers.iter().cycle().take(servers.len() * ATTEMPTS) {
        let asked = tokio::time::timeout(TIMEOUT, query_server(*server, &owner, kind)).await;
        match asked {
            Ok(Ok(message)) => match message.metadata.response_code {
                ResponseCode::NoError => return Ok(addresses_in(&message, &owner)),
                ResponseCode::NXDomain => return Err(format!("{name} does not exist")),
                code => problem = format!("{server} says {code} of {name}"),
            },
            Ok(Err(error)) => problem = format!("{server}: {error}"),
            Err(_) => problem = format!("{server} does not answer"),
        }
    }
    Err(problem)
}

async fn query_server(server: SocketAddr, owner: &Name, kind: RecordType) -> io::Result<Message> {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(owner.clone(), kind));
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_DATAGRAM);
    query.set_edns(edns);
    let bytes = query.to_vec().map_err(io::Error::other)?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&bytes).await?;
    let mut buffer = vec![0; usize::from(MAX_DATAGRAM) + 1];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Somebody else's answer is no answer.
        let Some(answer) = answer_to(&query, &buffer[..length]) else { continue };
        if !answer.metadata.truncation {
            return Ok(answer);
        }
        return query_over_tcp(server, &query, &bytes).await;
    }
}

async fn query_over_tcp(server: SocketAddr, query: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), bytes].concat()).await?;
    let mut prefix = [0; 2];
    stream.read_exact(&mut prefix).await?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(prefix))];
    stream.read_exact(&mut answer).await?;
    answer_to(query, &answer).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn answer_to(query: &Message, bytes: &[u8]) -> Option<Message> {
    let answer = Message::from_vec(bytes).ok()?;
    let fits = answer.metadata.message_type == MessageType::Response
        && answer.metadata.id == query.metadata.id
        && answer.queries == query.queries;
    fits.then_some(answer)
}

/// The addresses that an answer gives the name, by way of its aliases.
fn addresses_in(message: &Message, owner: &Name) -> Vec<IpAddr> {
    let mut names = BTreeSet::from([owner.to_lowercase()]);
    // Aliases may stand in any order; each round follows at least one of them.
    for _ in 0..8 {
        let before = names.len();
        for record in &message.answers {
            if let RData::CNAME(alias) = &record.data
                && names.contains(&record.name.to_lowercase())
            {
                names.insert(alias.0.to_lowercase());
            }
        }
        if names.len() == before {
            break;
        }
    }
    let own = message.answers.iter().filter(|record| names.contains(&record.name.to_lowercase()));
    own.filter_map(|record| match &record.data {
        RData::A(address) => Some(IpAddr::V4(address.0)),
        RData::AAAA(address) => Some(IpAddr::V6(address.0)),
        _ => None,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_files_of_the_machine() {
        let text =
            "# comment\nnameserver 10.0.0.53\nnameserver fd00::53\noptions ndots:5\nnameserver x\n";
        let found: Vec<String> = servers_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.53:53", "[fd00::53]:53"]);
        let text = "127.0.0.1 localhost\n10.1.1.1 Git.corp git # x.corp\n::2\tgit.corp\n";
        let found: Vec<String> =
            hosts_in(text, "git.corp").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.1.1.1", "::2"]);
        assert!(hosts_in(text, "x.corp").is_empty());
    }
}
