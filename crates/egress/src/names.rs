//! Addresses that stand for names.
//!
//! A name's address follows from its hash, so that a program that is started again in the same session gives
//! the same names the same addresses, as good as always.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use ring::digest;

/// The most names of a session.
pub(crate) const MAX_NAMES: usize = 16_384;

/// The first addresses are those of the egress namespace itself.
const RESERVED: u32 = 8;

#[derive(Debug)]
pub(crate) struct Names {
    session: String,
    base: u32,
    size: u32,
    by_name: HashMap<String, u32>,
    by_offset: HashMap<u32, String>,
}

impl Names {
    pub(crate) fn new(session: &str, (base, prefix): (Ipv4Addr, u8)) -> Self {
        let size = 1u32.checked_shl(32 - u32::from(prefix.clamp(8, 28))).unwrap_or(1 << 17);
        Self {
            session: session.to_owned(),
            base: base.to_bits(),
            size,
            by_name: HashMap::new(),
            by_offset: HashMap::new(),
        }
    }

    /// The address of a name; none if there are too many already.
    pub(crate) fn address_of(&mut self, name: &str) -> Option<Ipv4Addr> {
        let offset = match self.by_name.get(name) {
            Some(offset) => *offset,
            None => self.allocate(name)?,
        };
        Some(Ipv4Addr::from_bits(self.base + offset))
    }

    fn allocate(&mut self, name: &str) -> Option<u32> {
        let room = self.size - RESERVED;
        let most = MAX_NAMES.min(usize::try_from(room).unwrap_or(usize::MAX));
        if self.by_name.len() >= most {
            return None;
        }
        let hash = digest::digest(&digest::SHA256, format!("{} {name}", self.session).as_bytes());
        let first = hash.as_ref().first_chunk().map_or(0, |four| u32::from_be_bytes(*four));
        let mut offset = first % room;
        while self.by_offset.contains_key(&(RESERVED + offset)) {
            offset = (offset + 1) % room;
        }
        let offset = RESERVED + offset;
        self.by_name.insert(name.to_owned(), offset);
        self.by_offset.insert(offset, name.to_owned());
        Some(offset)
    }

    /// Whether an address can stand for a name.
    pub(crate) fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits().checked_sub(self.base).is_some_and(|offset| offset < self.size)
    }

    /// The name an address stands for.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<&str> {
        let offset = address.to_bits().checked_sub(self.base)?;
        self.by_offset.get(&offset).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_every_name_an_address_of_its_own_until_there_are_too_many() {
        let range = (Ipv4Addr::new(198, 18, 0, 0), 15);
        let (mut names, mut again) = (Names::new("s", range), Names::new("s", range));
        let mut same = 0;
        for number in 0..MAX_NAMES {
            let name = format!("n{number}.a.org");
            let address = names.address_of(&name).unwrap();
            assert!(names.contains(address) && address > Ipv4Addr::new(198, 18, 0, 7));
            assert_eq!(names.name_of(address), Some(name.as_str()));
            assert_eq!(names.address_of(&name), Some(address));
            // In another order, as another program would be asked.
            let other = format!("n{}.a.org", MAX_NAMES - 1 - number);
            again.address_of(&other).unwrap();
            same += usize::from(again.address_of(&name) == Some(address));
        }
        assert_eq!(names.address_of("more.a.org"), None);
        assert!(names.address_of("n1.a.org").is_some());
        assert!(same > MAX_NAMES * 8 / 10, "{same}");
    }
}
