//! The egress namespace: a second network namespace beside the sandbox's own, in which every IPv4 address is its own.
//!
//! A pair of interfaces joins the two, and the sandbox's default route leads there. So whatever address a program
//! connects to, the connection is the kernel's own, and ends at a listening socket of the egress namespace if there is one
//! for the port. Those sockets are held outside, by the proxy that knows the policy. Nothing is forwarded: no packet of
//! the sandbox is ever on a network of the host.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::Pid;

use super::netlink::{Netlink, RouteTarget, Subnet};
use super::{StepContext, StepError};
use crate::sys::raise_loopback;

/// The address of the sandbox, and that of the egress namespace, which is also its name server's.
const SANDBOX: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const EGRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PREFIX: u8 = 30;

/// What the two ends are called, each in its namespace.
const SANDBOX_INTERFACE: &str = "eth0";
const EGRESS_INTERFACE: &str = "egress";

/// Nothing on the way has smaller packets.
const MTU: u32 = 65_535;

/// Brings loopback up.
pub(crate) fn raise_own_loopback() -> Result<(), StepError> {
    socket(AddressFamily::INET, SocketType::DGRAM, None)
        .map_err(io::Error::from)
        .and_then(raise_loopback)
        .step(|| "bring loopback up".to_owned())
}

/// Joins this namespace, the sandbox's own, to that of the process in the egress namespace.
pub(crate) fn join(listeners: Pid) -> Result<(), StepError> {
    let kernel = Netlink::open().step(talk)?;
    kernel
        .add_pair(SANDBOX_INTERFACE, EGRESS_INTERFACE, listeners, MTU)
        .step(|| "make a pair of network interfaces".to_owned())
        .map_err(|error| match error.is_missing() {
            true => error.with_hint("a network with a policy needs the kernel's `veth` interfaces"),
            false => error,
        })?;
    let set_up = || {
        let index = kernel.index_of(SANDBOX_INTERFACE)?;
        kernel.keep_without_ipv6(index)?;
        kernel.add_address(index, Subnet(SANDBOX, PREFIX))?;
        kernel.raise(index)?;
        kernel.add_default(index, RouteTarget::Gateway(EGRESS))
    };
    set_up().step(|| "set the sandbox's network interface up".to_owned())
}

/// Makes this namespace, which has its end of the pair, the one that has every address.
pub(crate) fn set_up_egress() -> Result<(), StepError> {
    raise_own_loopback()?;
    let kernel = Netlink::open().step(talk)?;
    let set_up = || {
        let index = kernel.index_of(EGRESS_INTERFACE)?;
        kernel.keep_without_ipv6(index)?;
        kernel.add_address(index, Subnet(EGRESS, PREFIX))?;
        kernel.raise(index)?;
        kernel.add_default(kernel.index_of("lo")?, RouteTarget::Itself)
    };
    set_up().step(|| "set the egress namespace up".to_owned())
}

fn talk() -> String {
    "talk to the kernel about networks".to_owned()
}
