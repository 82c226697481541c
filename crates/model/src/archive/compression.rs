//! Opens a tar stream, whatever it is compressed with.

use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::{LzmaReader, XzReader};

/// Memory for one stream's dictionary: what the best preset needs, with room to spare. A header
/// can ask for four gibibytes.
pub(crate) const DICTIONARY_KIB: u32 = 256 << 10;

/// The stream below, with the bytes that were looked at put back in front.
type Input<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// A stream that decompresses what its first bytes say it holds.
pub(crate) enum Decompressed<R: Read> {
    Plain(Input<R>),
    Gzip(Box<MultiGzDecoder<Input<R>>>),
    Bzip2(Box<MultiBzDecoder<Input<R>>>),
    Xz(Box<XzReader<Input<R>>>),
    Lzma(Box<LzmaReader<Input<R>>>),
}

impl<R: Read> Decompressed<R> {
    /// Looks at the first bytes and opens the stream.
    pub(crate) fn open(mut input: R) -> io::Result<Self> {
        const LONGEST_MAGIC: u64 = 10;
        let mut start = Vec::new();
        input.by_ref().take(LONGEST_MAGIC).read_to_end(&mut start)?;
        let rest = Cursor::new(start.clone()).chain(input);
        let input = BufReader::with_capacity(64 << 10, rest);
        Ok(if start.starts_with(b"\x1f\x8b\x08") {
            Self::Gzip(Box::new(MultiGzDecoder::new(input)))
        } else if start.starts_with(b"BZh") && start.get(4..10) == Some(b"1AY&SY") {
            Self::Bzip2(Box::new(MultiBzDecoder::new(input)))
        } else if start.starts_with(b"\xfd7zXZ") {
            Self::Xz(Box::new(XzReader::new_mem_limit(input, true, DICTIONARY_KIB)))
        } else if start.starts_with(b"\x5d\x00\x00\x80") {
            let reader = LzmaReader::new_mem_limit(input, DICTIONARY_KIB, None)?;
            Self::Lzma(Box::new(reader))
        } else {
            Self::Plain(input)
        })
    }

    /// The stream below, wherever it stands.
    pub(crate) fn into_inner(self) -> R {
        let input = match self {
            Self::Plain(input) => input,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Bzip2(decoder) => decoder.into_inner(),
            Self::Xz(decoder) => decoder.into_inner(),
            Self::Lzma(decoder) => decoder.into_inner(),
        };
        let (_, below) = input.into_inner().into_inner();
        below
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Bzip2(decoder) => decoder.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
            Self::Lzma(decoder) => decoder.read(buffer),
        }
    }
}

impl<R: Read> fmt::Debug for Decompressed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Gzip(_) => "Gzip",
            Self::Bzip2(_) => "Bzip2",
            Self::Xz(_) => "Xz",
            Self::Lzma(_) => "Lzma",
        })
    }
}
