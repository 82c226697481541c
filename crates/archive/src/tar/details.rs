//! What a tar says about a member besides its content, for whoever keeps it.

use super::member::TarMember;
use super::pax;

/// How the names of extended attributes begin in a record.
const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";

/// Owner, time and extended attributes of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TarDetails {
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// When it was last changed: seconds since 1970.
    pub seconds: i64,
    /// The rest, below a second.
    pub nanos: u32,
    /// Extended attributes, by name.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl TarMember {
    /// Owner, time and extended attributes. What is no number, or none that can be, is 0.
    #[must_use]
    pub fn details(&self) -> TarDetails {
        let id = |keyword: &[u8], own: i128| {
            let record = self.records.get(keyword).and_then(pax::integer);
            u32::try_from(record.unwrap_or(own)).unwrap_or(0)
        };
        let (seconds, nanos) = match self.records.get(b"mtime").and_then(time) {
            Some(time) => time,
            None => (i64::try_from(self.owner.mtime).unwrap_or(0), 0),
        };
        let mut attributes = self.records.own_beginning_with(ATTRIBUTE);
        attributes.sort();
        let (uid, gid) = (id(b"uid", self.owner.uid), id(b"gid", self.owner.gid));
        TarDetails { uid, gid, seconds, nanos, attributes }
    }

    /// Sets owner, time and extended attributes.
    pub fn set_details(&mut self, details: &TarDetails) {
        (self.owner.uid, self.owner.gid) = (details.uid.into(), details.gid.into());
        self.owner.mtime = details.seconds.into();
        if details.nanos != 0 {
            // As a decimal fraction; before 1970 that counts the other way.
            let total = i128::from(details.seconds) * 1_000_000_000 + i128::from(details.nanos);
            let sign = if total < 0 { "-" } else { "" };
            let (whole, rest) =
                (total.unsigned_abs() / 1_000_000_000, total.unsigned_abs() % 1_000_000_000);
            let text = format!("{sign}{whole}.{rest:09}");
            self.records.set(b"mtime", text.as_bytes());
        }
        for (name, value) in &details.attributes {
            self.records.set(&[ATTRIBUTE, name.as_slice()].concat(), value);
        }
    }
}

/// Reads a time that may have a fraction.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let nanos: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let total =
        whole.parse::<i128>().ok()?.checked_mul(1_000_000_000)? + nanos.parse::<i128>().ok()?;
    let total = if is_negative { -total } else { total };
    let seconds = i64::try_from(total.div_euclid(1_000_000_000)).ok()?;
    Some((seconds, u32::try_from(total.rem_euclid(1_000_000_000)).ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::{TarKind, TarReader, TarWriter};
    use super::*;

    #[test]
    fn details_survive_an_archive() {
        let cases = [(1_700_000_000, 123_456_789), (0, 0), (-1, 500_000_000), (-5, 0)];
        for (seconds, nanos) in cases {
            let attributes = vec![(b"user.a".to_vec(), b"\xff\0x".to_vec())];
            let details = TarDetails { uid: 4_000_000_000, gid: 7, seconds, nanos, attributes };
            let mut member = TarMember::new(b"name", TarKind::Fifo);
            member.set_details(&details);
            let mut tar = Vec::new();
            let mut writer = TarWriter::new(&mut tar);
            writer.append(&member, &mut std::io::empty()).unwrap();
            writer.finish().unwrap();
            let mut reader = TarReader::open(tar.as_slice()).unwrap();
            assert_eq!(reader.next_member().unwrap().unwrap().details(), details);
        }
    }
}
