//! Extended headers: records that overrule what the header of a member says.

use std::collections::BTreeMap;

/// The keyword and value of every record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records(BTreeMap<Vec<u8>, Vec<u8>>);

impl Records {
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
        self.0.get(keyword).map(Vec::as_slice)
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(keyword, value)| (keyword.as_slice(), value.as_slice()))
    }

    pub(super) fn set(&mut self, keyword: &[u8], value: &[u8]) {
        self.0.insert(keyword.to_vec(), value.to_vec());
    }

    /// Drops records that do not hold for the member any more.
    pub(super) fn retain(&mut self, keep: impl Fn(&[u8]) -> bool) {
        self.0.retain(|keyword, _| keep(keyword));
    }

    /// The records whose keywords begin so, without that.
    pub(super) fn beginning_with(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let named = |(keyword, value): (&Vec<u8>, &Vec<u8>)| {
            let name = keyword.strip_prefix(prefix)?;
            Some((name.to_vec(), value.clone()))
        };
        self.0.iter().filter_map(named).collect()
    }

    /// How many bytes the records hold.
    pub(super) fn weight(&self) -> usize {
        self.0.iter().map(|(keyword, value)| keyword.len() + value.len()).sum()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &[u8]> {
        self.0.values().map(Vec::as_slice)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The payload of an extended header with these records.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for (keyword, value) in &self.0 {
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
