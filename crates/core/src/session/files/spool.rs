//! Input that is read twice: kept in memory while it is small, then in a file without a name.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;

use super::write::Content;

/// How much is kept in memory.
const MEMORY: usize = 16 << 20;

/// How much is read at a time, and how finely its length is counted.
const CHUNK: usize = 8192;

/// Input that can be read again.
#[derive(Debug)]
pub(crate) enum Spool {
    Memory(Bytes),
    File(File),
}

/// Input that was not kept.
#[derive(Debug)]
pub(crate) enum SpoolError {
    /// It was longer than allowed: so much of it was read.
    TooLong(u64),
    Io(io::Error),
}

impl From<io::Error> for SpoolError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Both ways to read it.
pub(crate) trait Readable: Read + Seek + Send {}

impl<T: Read + Seek + Send> Readable for T {}

impl Spool {
    /// Keeps all of `content`, refusing it as soon as it is longer than `most`.
    pub(crate) async fn fill(content: Content<'_>, most: Option<u64>) -> Result<Self, SpoolError> {
        let mut source = match content {
            Content::Bytes(bytes) => {
                let length = bytes.len() as u64;
                return match most {
                    Some(most) if length > most => Err(SpoolError::TooLong(counted(most, length))),
                    _ => Ok(Self::Memory(bytes)),
                };
            }
            Content::Stream(source) => source,
        };
        let (mut total, mut memory, mut file) = (0, BytesMut::new(), None);
        loop {
            let mut chunk = [0; CHUNK];
            let mut length = 0;
            while length < CHUNK {
                match source.read(&mut chunk[length..]).await? {
                    0 => break,
                    read => length += read,
                }
            }
            if length == 0 {
                break;
            }
            total += length as u64;
            if most.is_some_and(|most| total > most) {
                return Err(SpoolError::TooLong(total));
            }
            memory.extend_from_slice(&chunk[..length]);
            if memory.len() >= MEMORY {
                file = Some(append(file.take(), memory.split().freeze()).await?);
            }
        }
        match file {
            None => Ok(Self::Memory(memory.freeze())),
            Some(file) => Ok(Self::File(append(Some(file), memory.freeze()).await?)),
        }
    }

    /// Its content from the start, for somebody who blocks.
    pub(crate) fn reader(&self) -> io::Result<Box<dyn Readable>> {
        match self {
            Self::Memory(bytes) => Ok(Box::new(Cursor::new(bytes.clone()))),
            Self::File(file) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(0))?;
                Ok(Box::new(file))
            }
        }
    }

    /// Its content as a file at its start.
    pub(crate) fn into_file(self) -> io::Result<File> {
        let mut file = match self {
            Self::Memory(bytes) => {
                let mut file = tempfile::tempfile()?;
                file.write_all(&bytes)?;
                file
            }
            Self::File(file) => file,
        };
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }

    /// Its content from the start, to be written somewhere.
    pub(crate) fn content(&self) -> io::Result<Content<'static>> {
        match self {
            Self::Memory(bytes) => Ok(Content::Bytes(bytes.clone())),
            Self::File(file) => {
                let mut file = file.try_clone()?;
                file.seek(SeekFrom::Start(0))?;
                Ok(Content::stream(tokio::fs::File::from_std(file)))
            }
        }
    }
}

/// How much would have been read of `length` bytes when it was clear that they are more than `most`.
fn counted(most: u64, length: u64) -> u64 {
    let chunk = CHUNK as u64;
    ((most / chunk + 1) * chunk).min(length)
}

/// Adds to a file without a name, made when it is first needed.
async fn append(file: Option<File>, data: Bytes) -> io::Result<File> {
    let write = move || {
        let mut file = match file {
            Some(file) => file,
            None => tempfile::tempfile()?,
        };
        file.write_all(&data)?;
        Ok(file)
    };
    tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spool: &Spool) -> Vec<u8> {
        let mut all = Vec::new();
        spool.reader().unwrap().read_to_end(&mut all).unwrap();
        all
    }

    #[tokio::test]
    async fn keeps_what_is_small_and_what_is_large() {
        for size in [0, 1, CHUNK, MEMORY - 1, MEMORY, MEMORY + 12_345] {
            let data: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
            let spool = Spool::fill(Content::stream(&data[..]), None).await.unwrap();
            assert_eq!(matches!(spool, Spool::File(_)), size >= MEMORY, "{size}");
            assert!(read(&spool) == data && read(&spool) == data, "{size}");
        }
    }

    #[tokio::test]
    async fn counts_alike_however_it_comes() {
        let data = vec![1; 20_000];
        for (most, want) in [(1, 8192), (8191, 8192), (8192, 16_384), (19_999, 20_000)] {
            for content in [Content::stream(&data[..]), Content::from(data.clone())] {
                let kept = Spool::fill(content, Some(most)).await;
                assert!(matches!(kept, Err(SpoolError::TooLong(read)) if read == want), "{most}");
            }
        }
        assert!(Spool::fill(Content::from(data), Some(20_000)).await.is_ok());
    }
}
