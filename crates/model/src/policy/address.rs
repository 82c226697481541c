//! Addresses: networks that rules name, and places that no name may lead to by itself.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whose an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressOwner {
    /// One of the machine that the proxy runs on.
    ThisMachine,
    /// Of anybody else.
    Other,
}

/// Addresses with a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    base: IpAddr,
    prefix: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `::1` and the like; `None` if it is nothing of that kind.
    ///
    /// # Errors
    ///
    /// If it begins with an address and is no network.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let Ok(base) = address.parse::<IpAddr>() else { return Ok(None) };
        let most = width(base);
        let prefix = match prefix {
            None => most,
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|prefix| *prefix <= most && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| format!("the length of a prefix of {address} is 0 to {most}"))?,
        };
        let network = Self { base, prefix };
        if masked(base, prefix) != base {
            let meant = Self { base: masked(base, prefix), prefix };
            return Err(format!("{text} has bits beyond its prefix; did you mean {meant}?"));
        }
        Ok(Some(network))
    }

    /// Whether an address is one of them. An IPv4 address in an IPv6 one is what it stands for.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        width(address) == width(self.base) && masked(address, self.prefix) == self.base
    }

    /// Whether it is one address.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.prefix == width(self.base)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.base)
        } else {
            write!(f, "{}/{}", self.base, self.prefix)
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

/// A place that a name leads to only where somebody said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpecialAddress {
    /// Where clouds tell a machine who it is: reached by its very address only.
    Metadata,
    /// The machine itself.
    Loopback,
    /// No place of the public network, for this reason.
    Other(&'static str),
}

impl SpecialAddress {
    /// What it is, in words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metadata => "metadata of the cloud",
            Self::Loopback => "loopback",
            Self::Other(what) => what,
        }
    }
}

const METADATA_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Why an address is not simply a place of the public network; `None` if it is one.
///
/// ```
/// use bastide_model::policy::special_address;
///
/// assert!(special_address("93.184.216.34".parse().unwrap()).is_none());
/// assert!(special_address("64:ff9b::a00:1".parse().unwrap()).is_some());
/// ```
#[must_use]
pub fn special_address(address: IpAddr) -> Option<SpecialAddress> {
    match address {
        IpAddr::V4(v4) => private_v4(v4),
        IpAddr::V6(v6) => private_v6(v6),
    }
}

fn private_v4(v4: Ipv4Addr) -> Option<SpecialAddress> {
    let [a, b, c, _] = v4.octets();
    let place = match (a, b, c) {
        _ if v4 == METADATA_V4 => SpecialAddress::Metadata,
        (127, ..) => SpecialAddress::Loopback,
        (0, ..) => SpecialAddress::Other("unspecified"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => SpecialAddress::Other("private"),
        (169, 254, _) => SpecialAddress::Other("link-local"),
        (100, 64..=127, _) => SpecialAddress::Other("of a carrier's translation"),
        (192, 0, 0) | (192, 88, 99) => SpecialAddress::Other("of a protocol"),
        (198, 18..=19, _) => SpecialAddress::Other("for measurements"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => SpecialAddress::Other("for documentation"),
        (224..=239, ..) => SpecialAddress::Other("multicast"),
        (240..=255, ..) => SpecialAddress::Other("reserved"),
        _ => return None,
    };
    Some(place)
}

fn private_v6(v6: Ipv6Addr) -> Option<SpecialAddress> {
    if let Some(inner) = embedded_v4(v6) {
        return private_v4(inner);
    }
    let parts = v6.segments();
    let place = match parts[0] {
        _ if v6 == METADATA_V6 => SpecialAddress::Metadata,
        _ if v6.is_loopback() => SpecialAddress::Loopback,
        _ if v6.is_unspecified() => SpecialAddress::Other("unspecified"),
        0xfc00..=0xfdff => SpecialAddress::Other("private"),
        0xfe80..=0xfebf => SpecialAddress::Other("link-local"),
        0xfec0..=0xfeff => SpecialAddress::Other("site-local"),
        0xff00..=0xffff => SpecialAddress::Other("multicast"),
        // NAT64 prefixes of a network's own, whose form nobody outside knows.
        0x0064 if parts[1] == 0xff9b => SpecialAddress::Other("of a translation"),
        0x0100 => SpecialAddress::Other("of no place"),
        0x2001 if parts[1] == 0x0db8 => SpecialAddress::Other("for documentation"),
        0x3fff if parts[1] < 0x1000 => SpecialAddress::Other("for documentation"),
        0x2001 if parts[1] < 0x0200 => SpecialAddress::Other("of a protocol"),
        0x2000..=0x3fff => return None,
        _ => SpecialAddress::Other("reserved"),
    };
    Some(place)
}

/// The IPv4 address that an IPv6 address leads to: mapped, compatible, NAT64, 6to4 or Teredo.
fn embedded_v4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = v6.segments();
    let from = |high: u16, low: u16| Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low));
    match parts {
        [0, 0, 0, 0, 0, 0xffff, high, low] => Some(from(high, low)),
        // Mapped the other way round, as stateless translators have it.
        [0, 0, 0, 0, 0xffff, 0, high, low] => Some(from(high, low)),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(from(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(from(high, low)),
        [0x2002, high, low, ..] => Some(from(high, low)),
        [0x2001, 0, .., high, low] => Some(from(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_private_places_in_every_disguise() {
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.255.255",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001:0:4136:e378:8000:63bf:80ff:fffe",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            let address: IpAddr = private.parse().unwrap();
            assert!(special_address(address).is_some(), "{private}");
        }
        for public in ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"] {
            let address: IpAddr = public.parse().unwrap();
            assert_eq!(special_address(address), None, "{public}");
        }
        assert_eq!(
            special_address("64:ff9b::a9fe:a9fe".parse().unwrap()),
            Some(SpecialAddress::Metadata)
        );
    }
}
