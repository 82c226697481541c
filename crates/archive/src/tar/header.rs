//! The block that starts a member.

use super::BLOCK;
use super::member::Owner;

/// A header block, decoded.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) flag: u8,
    pub(super) link: Vec<u8>,
    pub(super) owner: Owner,
    pub(super) sparse: Option<OldSparse>,
}

/// The start of a sparse map, as GNU tar once kept it in the header.
#[derive(Debug)]
pub(super) struct OldSparse {
    pub(super) map: Vec<(u64, u64)>,
    pub(super) continues: bool,
    pub(super) real_size: u64,
}

impl Header {
    /// Decodes a block, or nothing if it is no header.
    pub(super) fn decode(block: &[u8; BLOCK]) -> Option<Self> {
        let checksum = number(&block[148..156])?;
        if !checksums(block).contains(&checksum) {
            return None;
        }
        // Devices are never unpacked, but a header with nonsense here is no header.
        number(&block[329..337])?;
        number(&block[337..345])?;
        let mut flag = block[156];
        let mut name = until_nul(&block[0..100]).to_vec();
        if flag == b'\0' && name.ends_with(b"/") {
            // The oldest archives spell a folder as a file with a trailing slash.
            flag = b'5';
        }
        if flag == b'5' {
            trim_slashes(&mut name);
        }
        let prefix = until_nul(&block[345..500]);
        // GNU keeps other things where POSIX keeps the front of a long name.
        let is_gnu = &block[257..265] == b"ustar  \0";
        if !prefix.is_empty() && !is_gnu && !matches!(flag, b'L' | b'K' | b'S') {
            name = [prefix, &name].join(&b'/');
        }
        let sparse = if flag == b'S' { Some(old_sparse(block)?) } else { None };
        Some(Self {
            name,
            mode: u32::try_from(number(&block[100..108])? & 0o7777).ok()?,
            size: u64::try_from(number(&block[124..136])?).ok()?,
            flag,
            link: until_nul(&block[157..257]).to_vec(),
            owner: Owner {
                uid: number(&block[108..116])?,
                gid: number(&block[116..124])?,
                mtime: number(&block[136..148])?,
                user: until_nul(&block[265..297]).to_vec(),
                group: until_nul(&block[297..329]).to_vec(),
            },
            sparse,
        })
    }
}

/// Removes every trailing slash.
pub(super) fn trim_slashes(name: &mut Vec<u8>) {
    while name.last() == Some(&b'/') {
        name.pop();
    }
}

/// The bytes before the first NUL.
pub(super) fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A number field: octal digits, or a marker byte and a big-endian number.
pub(super) fn number(field: &[u8]) -> Option<i128> {
    // Eleven bytes are the longest there is, so this cannot overflow.
    let binary =
        |bytes: &[u8]| bytes.iter().fold(0, |sum: i128, byte| (sum << 8) | i128::from(*byte));
    match field {
        [0o200, rest @ ..] => Some(binary(rest)),
        [0o377, rest @ ..] => Some(binary(rest) - (1 << (8 * rest.len()))),
        _ => {
            let digits = std::str::from_utf8(until_nul(field)).ok()?.trim();
            if digits.is_empty() { Some(0) } else { i128::from_str_radix(digits, 8).ok() }
        }
    }
}

/// Pairs of offset and length; a pair that is no pair ends them.
pub(super) fn sparse_pairs(fields: &[u8]) -> Vec<(u64, u64)> {
    let pair = |fields: &[u8]| {
        let (offset, length) = fields.split_at_checked(12)?;
        Some((u64::try_from(number(offset)?).ok()?, u64::try_from(number(length)?).ok()?))
    };
    fields.chunks_exact(24).map_while(pair).collect()
}

fn old_sparse(block: &[u8; BLOCK]) -> Option<OldSparse> {
    Some(OldSparse {
        map: sparse_pairs(&block[386..482]),
        continues: block[482] != 0,
        real_size: u64::try_from(number(&block[483..495])?).ok()?,
    })
}

/// The sum of all bytes, with the checksum itself as blanks; some old programs sum signed bytes.
fn checksums(block: &[u8; BLOCK]) -> [i128; 2] {
    let blank = i128::from(b' ') * 8;
    let counted = block[..148].iter().chain(&block[156..]);
    let unsigned: i128 = counted.clone().map(|byte| i128::from(*byte)).sum();
    let signed: i128 = counted.map(|byte| i128::from(byte.cast_signed())).sum();
    [unsigned + blank, signed + blank]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_octal_and_binary_numbers() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b" 644 \0\0\0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\x01\0"), Some(256));
        assert_eq!(number(b"\xff\xff\xff\xff\xff\xff\xff\xff"), Some(-1));
        assert_eq!(number(b"9\0"), None);
        assert_eq!(number(b"\xe9\0"), None);
    }
}
