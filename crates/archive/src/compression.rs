//! Opens a tar stream, whatever it is compressed with.

use std::fmt;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::{LzmaReader, XzReader};

use super::bounds::{ExpansionError, Slow, Stopwatch, expansion};

/// Memory for one stream's dictionary: what the best preset needs, with room to spare. A header
/// can ask for four gibibytes.
pub(crate) const DICTIONARY_KIB: u32 = 256 << 10;

/// The stream below, with the bytes that were looked at put back in front.
type Input<R> = BufReader<Chain<Cursor<Vec<u8>>, Counted<R>>>;

/// A stream that decompresses what its first bytes say it holds, and no more than an archive of its size
/// may hold.
#[derive(Debug)]
pub(crate) struct Decompressed<R: Read> {
    kind: Kind<R>,
    /// How long the stream below is, if that is known; else how much of it was read counts.
    length: Option<u64>,
    consumed: Arc<AtomicU64>,
    produced: u64,
    pub(crate) watch: Stopwatch,
}

enum Kind<R: Read> {
    Plain(Input<R>),
    Gzip(Box<MultiGzDecoder<Input<R>>>),
    Bzip2(Box<MultiBzDecoder<Input<R>>>),
    Xz(Box<XzReader<Input<R>>>),
    Lzma(Box<LzmaReader<Input<R>>>),
}

/// Counts what is read of a stream.
pub(crate) struct Counted<R> {
    below: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.below.read(buffer)?;
        self.count.fetch_add(u64::try_from(read).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(read)
    }
}

impl<R: Read> Decompressed<R> {
    /// Looks at the first bytes and opens the stream, of which the length may be known.
    pub(crate) fn open(input: R, length: Option<u64>) -> io::Result<Self> {
        const LONGEST_MAGIC: u64 = 10;
        let watch = Stopwatch::start();
        let consumed = Arc::new(AtomicU64::new(0));
        let mut input = Counted { below: input, count: Arc::clone(&consumed) };
        let mut start = Vec::new();
        input.by_ref().take(LONGEST_MAGIC).read_to_end(&mut start)?;
        let rest = Cursor::new(start.clone()).chain(input);
        let input = BufReader::with_capacity(64 << 10, rest);
        let kind = if start.starts_with(b"\x1f\x8b\x08") {
            Kind::Gzip(Box::new(MultiGzDecoder::new(input)))
        } else if start.starts_with(b"BZh") && start.get(4..10) == Some(b"1AY&SY") {
            Kind::Bzip2(Box::new(MultiBzDecoder::new(input)))
        } else if start.starts_with(b"\xfd7zXZ") {
            Kind::Xz(Box::new(XzReader::new_mem_limit(input, true, DICTIONARY_KIB)))
        } else if start.starts_with(b"\x5d\x00\x00\x80") {
            let reader = LzmaReader::new_mem_limit(input, DICTIONARY_KIB, None)?;
            Kind::Lzma(Box::new(reader))
        } else {
            Kind::Plain(input)
        };
        Ok(Self { kind, length, consumed, produced: 0, watch })
    }

    /// How long the stream below is, if that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    /// How many bytes the archive may unpack to.
    pub(crate) fn allowance(&self) -> u64 {
        expansion(self.size())
    }

    /// Fails once reading the archive has taken longer than it may.
    pub(crate) fn check_time(&self) -> Result<(), Slow> {
        self.watch.check(self.size())
    }

    /// How long the stream below is, as far as that is known by now.
    fn size(&self) -> u64 {
        let consumed = self.consumed.load(Ordering::Relaxed);
        self.length.map_or(consumed, |length| length.max(consumed))
    }

    /// The stream below, wherever it stands.
    pub(crate) fn into_inner(self) -> R {
        let input = match self.kind {
            Kind::Plain(input) => input,
            Kind::Gzip(decoder) => decoder.into_inner(),
            Kind::Bzip2(decoder) => decoder.into_inner(),
            Kind::Xz(decoder) => decoder.into_inner(),
            Kind::Lzma(decoder) => decoder.into_inner(),
        };
        let (_, counted) = input.into_inner().into_inner();
        counted.below
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.check_time()?;
        let read = match &mut self.kind {
            Kind::Plain(input) => return input.read(buffer),
            Kind::Gzip(decoder) => decoder.read(buffer),
            Kind::Bzip2(decoder) => decoder.read(buffer),
            Kind::Xz(decoder) => decoder.read(buffer),
            Kind::Lzma(decoder) => decoder.read(buffer),
        }?;
        self.produced = self.produced.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        let (limit, actual) = (self.allowance(), self.produced);
        match actual > limit {
            true => Err(io::Error::other(ExpansionError { limit, actual })),
            false => Ok(read),
        }
    }
}

impl<R: Read> fmt::Debug for Kind<R> {
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::{Duration, Instant};

    use super::super::bounds::{FREE_EXPANSION, FREE_TIME};
    use super::*;

    #[test]
    fn a_stream_holds_no_more_than_its_size_allows() {
        let mut packer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        packer.write_all(&[0; 100_000]).unwrap();
        let packed = packer.finish().unwrap();
        let mut stream = Decompressed::open(packed.as_slice(), None).unwrap();
        // As if so much had been read before.
        stream.produced = FREE_EXPANSION + 1000;
        let read = io::copy(&mut stream, &mut io::sink());
        let error = read.unwrap_err();
        let expanded = error.get_ref().unwrap().downcast_ref::<ExpansionError>().unwrap();
        assert_eq!(expanded.limit, expansion(packed.len() as u64));
        let error = super::super::bounds::tar_read_failure(error);
        assert_eq!(error.kind(), bastide_model::ErrorKind::LimitExceeded);
        assert!(error.hint().is_some());
        // A plain one holds what it is.
        let mut plain = Decompressed::open(&[b'x'; 5000][..], None).unwrap();
        plain.produced = u64::MAX;
        assert_eq!(io::copy(&mut plain, &mut io::sink()).unwrap(), 5000);
    }

    /// The clock of somebody who has waited too long for an archive of nothing, but not for one of a mebibyte.
    fn later() -> Instant {
        Instant::now() + FREE_TIME + Duration::from_millis(500)
    }

    #[test]
    fn a_stream_takes_no_longer_than_its_size_allows() {
        let mut packer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        packer.write_all(&[0; 100_000]).unwrap();
        for small in [packer.finish().unwrap(), b"x".repeat(5000)] {
            let mut stream = Decompressed::open(small.as_slice(), None).unwrap();
            let mut front = [0; 100];
            stream.read_exact(&mut front).unwrap();
            stream.watch.now = later;
            let error = io::copy(&mut stream, &mut io::sink()).unwrap_err();
            let error = super::super::bounds::tar_read_failure(error);
            assert_eq!(error.kind(), bastide_model::ErrorKind::LimitExceeded, "{error}");
            assert!(error.hint().is_some());
        }
        let mut large = Decompressed::open(io::repeat(0).take(5000), Some(1 << 20)).unwrap();
        large.watch.now = later;
        assert_eq!(io::copy(&mut large, &mut io::sink()).unwrap(), 5000);
    }
}
