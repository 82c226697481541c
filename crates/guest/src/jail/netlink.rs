//! The few requests about interfaces, addresses and routes that a sandbox needs, as the kernel takes them.
//!
//! A request is a header, a body of a fixed form, and attributes that are a length, a kind and a value each, filled up to
//! four bytes. The kernel has done what was asked when it answers.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use rustix::process::Pid;

/// How long the header of a request is.
const HEADER: usize = 16;

/// What an answer begins with after its header: the error, as a negative number.
const ERROR: usize = 4;

/// The most bytes of an answer that are looked at; it repeats the request.
const ANSWER: usize = 1024;

/// An address and how much of it is the network's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subnet(pub(super) Ipv4Addr, pub(super) u8);

/// Where a route leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum RouteTarget {
    /// Everything goes to this neighbour.
    Gateway(Ipv4Addr),
    /// Every address is this namespace's own.
    Itself,
}

/// The kernel's ear for such requests, in the namespace it was opened in.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        // The default protocol is that of links and routes.
        let opened =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self(opened))
    }

    /// Makes a pair of interfaces, one here and one in the network namespace of a process.
    pub(super) fn add_pair(&self, name: &str, peer: &str, of: Pid, mtu: u32) -> io::Result<()> {
        let of = of.as_raw_pid().unsigned_abs();
        let request = Request::new(libc::RTM_NEWLINK, CREATE, &link_body(0, 0))
            .text(libc::IFLA_IFNAME, name)
            .number(libc::IFLA_MTU, mtu)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |other| {
                        other
                            .bytes(&link_body(0, 0))
                            .text(libc::IFLA_IFNAME, peer)
                            .number(libc::IFLA_MTU, mtu)
                            .number(libc::IFLA_NET_NS_PID, of)
                    })
                })
            });
        self.ask(request)
    }

    /// Keeps the kernel from giving an interface an IPv6 address by itself; nothing to do where it has no IPv6.
    pub(super) fn keep_without_ipv6(&self, index: u32) -> io::Result<()> {
        let families = |families: Request| {
            families.nest(number(libc::AF_INET6), |family| {
                family.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE])
            })
        };
        let request = Request::new(libc::RTM_NEWLINK, 0, &link_body(index, 0))
            .nest(libc::IFLA_AF_SPEC, families);
        match self.ask(request) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            other => other,
        }
    }

    /// Brings an interface up.
    pub(super) fn raise(&self, index: u32) -> io::Result<()> {
        let up = libc::IFF_UP.unsigned_abs();
        self.ask(Request::new(libc::RTM_NEWLINK, 0, &link_body(index, up)))
    }

    /// Gives an interface an address.
    pub(super) fn add_address(&self, index: u32, subnet: Subnet) -> io::Result<()> {
        let Subnet(address, length) = subnet;
        let mut body = vec![family(), length, 0, 0];
        body.extend(index.to_ne_bytes());
        let request = Request::new(libc::RTM_NEWADDR, CREATE, &body)
            .attribute(libc::IFA_LOCAL, &address.octets())
            .attribute(libc::IFA_ADDRESS, &address.octets());
        self.ask(request)
    }

    /// Makes the route of every address that no other one is for.
    pub(super) fn add_default(&self, index: u32, target: RouteTarget) -> io::Result<()> {
        let (scope, kind) = match target {
            RouteTarget::Gateway(_) => (libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST),
            RouteTarget::Itself => (libc::RT_SCOPE_HOST, libc::RTN_LOCAL),
        };
        // The main table, also for the namespace's own addresses: the route to the neighbour is a narrower one in it.
        let mut body =
            vec![family(), 0, 0, 0, libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, kind];
        body.extend(0_u32.to_ne_bytes());
        let request = Request::new(libc::RTM_NEWROUTE, CREATE, &body).number(libc::RTA_OIF, index);
        let request = match target {
            RouteTarget::Gateway(address) => {
                request.attribute(libc::RTA_GATEWAY, &address.octets())
            }
            RouteTarget::Itself => request,
        };
        self.ask(request)
    }

    /// The number of an interface.
    pub(super) fn index_of(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.0, name)?)
    }

    fn ask(&self, request: Request) -> io::Result<()> {
        send(&self.0, &request.finish(), SendFlags::empty())?;
        let mut answer = [0; ANSWER];
        let (length, _) = recv(&self.0, &mut answer, RecvFlags::empty())?;
        let answer = answer.get(..length).and_then(|answer| answer.get(HEADER..HEADER + ERROR));
        let error = answer.and_then(|error| error.try_into().ok()).map(i32::from_ne_bytes);
        match error {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
            None => Err(Errno::BADMSG.into()),
        }
    }
}

/// That something is made that was not there before.
const CREATE: libc::c_int = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;

/// What a request about an interface begins with; no number where a name follows. Only flags that are given are changed.
fn link_body(index: u32, flags: u32) -> Vec<u8> {
    // Family, padding and type; number; flags; which flags are meant.
    [0, index, flags, flags].into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn family() -> u8 {
    u8::try_from(libc::AF_INET).unwrap_or_default()
}

fn number(value: libc::c_int) -> u16 {
    u16::try_from(value).unwrap_or_default()
}

/// A request that is being written. Its length is filled in at the end.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: libc::c_int, body: &[u8]) -> Self {
        let flags = number(flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK);
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.resize(HEADER, 0);
        Self(bytes).bytes(body)
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.nest(kind, |inner| inner.bytes(value))
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.nest(kind, |inner| inner.bytes(value.as_bytes()).bytes(&[0]))
    }

    fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// An attribute whose value is what `inner` writes.
    fn nest(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        let mut written = inner(self);
        // Requests have a few hundred bytes.
        let length = u16::try_from(written.0.len() - start).unwrap_or(u16::MAX);
        written.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        written.0.resize(written.0.len().next_multiple_of(4), 0);
        written
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_attributes_up_and_counts_only_what_they_hold() {
        let request = Request::new(libc::RTM_NEWLINK, 0, &[]).text(3, "lo").finish();
        assert_eq!(request.len(), HEADER + 8);
        assert_eq!(request[..4], 24_u32.to_ne_bytes());
        assert_eq!(request[HEADER..HEADER + 2], 7_u16.to_ne_bytes());
        assert_eq!(request[HEADER + 4..], *b"lo\0\0");
    }

    #[test]
    fn hears_what_the_kernel_refuses() {
        let kernel = Netlink::open().unwrap();
        // Nobody has an interface of this number.
        let error = kernel.raise(0x7fff_ffff).unwrap_err();
        let known = [Some(libc::ENODEV), Some(libc::EPERM)];
        assert!(known.contains(&error.raw_os_error()), "{error}");
    }
}
