//! Content that comes from Python: bytes, or a file that is read here.

use std::io::{Seek, SeekFrom};
use std::os::fd::RawFd;

use bastide::Content;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::sys;

/// Bytes, or a descriptor and where to begin in it.
#[derive(FromPyObject)]
pub(crate) enum Source {
    /// All of it.
    Bytes(PyBackedBytes),
    /// A regular file that Python has open.
    File(RawFd, u64),
}

impl Source {
    /// The content; a file is read by the runtime, from a descriptor of its own.
    pub(crate) fn content(self) -> PyResult<Content<'static>> {
        match self {
            Self::Bytes(bytes) => Ok(Content::Bytes(Bytes::copy_from_slice(&bytes))),
            Self::File(descriptor, start) => {
                let mut file = sys::duplicate(descriptor)?;
                file.seek(SeekFrom::Start(start))?;
                Ok(Content::stream(tokio::fs::File::from_std(file)))
            }
        }
    }
}
