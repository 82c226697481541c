//! Extended headers: records that overrule what the header of a member says.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The keyword and value of every record: of those a member has itself, and of those all members after
/// some header have. The latter are not copied for each member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    own: BTreeMap<Vec<u8>, Vec<u8>>,
    shared: Arc<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Records {
    /// The same records as those of every member after this.
    pub(super) fn for_all(&self) -> Self {
        let mut all = BTreeMap::clone(&self.shared);
        all.extend(self.own.clone());
        Self { own: BTreeMap::new(), shared: Arc::new(all) }
    }

    /// Reads the records of an extended header on top of these. `None` is a header that is none.
    pub(super) fn extend_from(&mut self, payload: &[u8]) -> Option<()> {
        let mut rest = payload;
        while let Some((length, keyword, value_at)) = record_head(rest) {
            if length == 0 {
                return None;
            }
            let end = usize::try_from(length).unwrap_or(usize::MAX);
            // The last byte of a record is its line end.
            let value_end = (end - 1).min(rest.len());
            let value = rest.get(value_at..value_end).unwrap_or_default();
            self.set(keyword, value);
            rest = rest.get(end..).unwrap_or_default();
        }
        Some(())
    }

    pub(super) fn get(&self, keyword: &[u8]) -> Option<&[u8]> {
        self.own.get(keyword).or_else(|| self.shared.get(keyword)).map(Vec::as_slice)
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let shared = self.shared.iter().filter(|(keyword, _)| !self.own.contains_key(*keyword));
        self.own.iter().chain(shared).map(|(keyword, value)| (keyword.as_slice(), value.as_slice()))
    }

    pub(super) fn set(&mut self, keyword: &[u8], value: &[u8]) {
        self.own.insert(keyword.to_vec(), value.to_vec());
    }

    /// Drops records that do not hold for the member any more.
    pub(super) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        self.own.retain(|keyword, _| keep(keyword));
        if self.shared.keys().any(|keyword| !keep(keyword)) {
            Arc::make_mut(&mut self.shared).retain(|keyword, _| keep(keyword));
        }
    }

    /// The member's own records whose keywords begin so, without that.
    pub(super) fn own_beginning_with(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = |(keyword, value): (&Vec<u8>, &Vec<u8>)| {
            let name = keyword.strip_prefix(prefix)?;
            Some((name.to_vec(), value.clone()))
        };
        self.own.iter().filter_map(named).collect()
    }

    /// How many bytes the member's own records hold, without those that say what has a place of its own.
    pub(super) fn weight(&self) -> usize {
        let is_other = |(keyword, _): &(&Vec<u8>, &Vec<u8>)| {
            !matches!(keyword.as_slice(), b"path" | b"linkpath")
        };
        self.own.iter().filter(is_other).map(|(keyword, value)| keyword.len() + value.len()).sum()
    }

    /// How many bytes the records for all members hold.
    pub(super) fn shared_weight(&self) -> usize {
        self.shared.iter().map(|(keyword, value)| keyword.len() + value.len()).sum()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.pairs().map(|(_, value)| value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.shared.is_empty()
    }

    /// The payload of an extended header with these records.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let sorted: BTreeMap<&[u8], &[u8]> = self.pairs().collect();
        for (keyword, value) in sorted {
            let rest = keyword.len() + value.len() + 3;
            // The length counts its own digits.
            let mut length = rest;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            payload.extend_from_slice(length.to_string().as_bytes());
            payload.push(b' ');
            payload.extend_from_slice(keyword);
            payload.push(b'=');
            payload.extend_from_slice(value);
            payload.push(b'\n');
        }
        payload
    }
}

/// The length, the keyword and where the value starts.
fn record_head(record: &[u8]) -> Option<(u64, &[u8], usize)> {
    let digits = record.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (length, rest) = record.split_at_checked(digits)?;
    let length: u64 = std::str::from_utf8(length).ok()?.parse().ok()?;
    let rest = rest.strip_prefix(b" ")?;
    let keyword_end = rest.iter().position(|byte| *byte == b'=')?;
    let keyword = rest.get(..keyword_end).filter(|keyword| !keyword.is_empty())?;
    Some((length, keyword, digits + 1 + keyword_end + 1))
}

/// A whole number of a record.
pub(super) fn integer(value: &[u8]) -> Option<i128> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mut records = Records::default();
        records.set(b"path", &[b'x'; 93]);
        records.set(b"comment", b"a=b\nc");
        let mut read = Records::default();
        read.extend_from(&records.encode()).unwrap();
        assert_eq!(read, records);
    }

    #[test]
    fn lying_lengths_end_the_records_or_spoil_them() {
        let mut records = Records::default();
        assert_eq!(records.extend_from(b"99999999999999999999999 a=b\n"), Some(()));
        assert_eq!(records.extend_from(b"999 a=b\n"), Some(()));
        assert_eq!(records.get(b"a"), Some(&b"b\n"[..]));
        assert_eq!(records.extend_from(b"1 a=b\n2 c=d\n"), Some(()));
        assert_eq!(records.get(b"a"), Some(&b""[..]));
        assert_eq!(records.extend_from(b"0 a=b\n"), None);
    }
}
