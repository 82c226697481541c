//! The frames of one call.
//!
//! A call is one stream of the multiplexed connection. Each frame on it is a tag, a length and a
//! body; the tag fixes how long the body may be, and that is checked before any of it is read.
//!
//! ```text
//! host → guest   Request · (Input* InputEnd)? · (Item | Control)*
//! guest → host   Accepted | Refused · (Stdout | Stderr | Item)* · End
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

/// The longest body of a data frame.
pub const MAX_DATA: usize = 64 * 1024;

/// The longest request: a kernel takes at most 2 MiB of arguments and environment together.
pub const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// The longest body of any other frame.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// How much room a reader of frames starts with. Most calls say little, and the room is cleared for every
/// read; a frame that needs more asks for it.
pub const ROOM: usize = 512;

const HEADER_BYTES: usize = 5;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Tag {
    /// What the host asks for; opens every call.
    Request = 1,
    /// The guest does it.
    Accepted = 2,
    /// The guest does not do it, and why.
    Refused = 3,
    /// Bytes for the command or the file at hand.
    Input = 4,
    /// No more [`Tag::Input`] follows.
    InputEnd = 5,
    /// What a command wrote to standard output, or the content of a file.
    Stdout = 6,
    /// What a command wrote to standard error.
    Stderr = 7,
    /// One typed message in the middle of a call, such as an entry of a tree.
    Item = 8,
    /// How the call ended; closes every accepted call.
    End = 9,
    /// What the host wants of a process in the middle of a call.
    Control = 10,
}

impl Tag {
    fn from_byte(byte: u8) -> Option<Self> {
        let all = [
            Self::Request,
            Self::Accepted,
            Self::Refused,
            Self::Input,
            Self::InputEnd,
            Self::Stdout,
            Self::Stderr,
            Self::Item,
            Self::End,
            Self::Control,
        ];
        all.into_iter().find(|tag| *tag as u8 == byte)
    }

    /// The longest body a frame with this tag may have.
    #[must_use]
    pub fn max_body(self) -> usize {
        match self {
            Self::Request => MAX_REQUEST,
            Self::InputEnd => 0,
            Self::Input | Self::Stdout | Self::Stderr => MAX_DATA,
            Self::Accepted | Self::Refused | Self::Item | Self::End | Self::Control => MAX_MESSAGE,
        }
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub tag: Tag,
    /// What it carries.
    pub body: Bytes,
}

impl Frame {
    /// Makes a frame.
    pub fn new(tag: Tag, body: impl Into<Bytes>) -> Self {
        Self { tag, body: body.into() }
    }
}

/// Why bytes are not frames.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The stream failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The tag is none we know.
    #[error("unknown frame tag {0}")]
    UnknownTag(u8),
    /// The body is longer than its tag allows.
    #[error("a {tag:?} frame of {length} bytes is over its limit")]
    TooLong {
        /// What the frame claims to be.
        tag: Tag,
        /// How long it claims to be.
        length: usize,
    },
}

/// Turns bytes into frames and back, holding at most one frame's worth of input.
#[derive(Debug, Default, Clone, Copy)]
pub struct FrameCodec;

impl Decoder for FrameCodec {
    type Item = Frame;
    type Error = FrameError;

    fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [tag, a, b, c, d] = *header;
        let tag = Tag::from_byte(tag).ok_or(FrameError::UnknownTag(tag))?;
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > tag.max_body() {
            return Err(FrameError::TooLong { tag, length });
        }
        if input.len() < HEADER_BYTES + length {
            input.reserve(HEADER_BYTES + length - input.len());
            return Ok(None);
        }
        input.advance(HEADER_BYTES);
        Ok(Some(Frame { tag, body: input.split_to(length).freeze() }))
    }
}

impl Encoder<Frame> for FrameCodec {
    type Error = FrameError;

    fn encode(&mut self, frame: Frame, output: &mut BytesMut) -> Result<(), FrameError> {
        let length = frame.body.len();
        let too_long = || FrameError::TooLong { tag: frame.tag, length };
        if length > frame.tag.max_body() {
            return Err(too_long());
        }
        let announced = u32::try_from(length).map_err(|_| too_long())?;
        output.reserve(HEADER_BYTES + length);
        output.put_u8(frame.tag as u8);
        output.put_u32_le(announced);
        output.put_slice(&frame.body);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_a_lie_about_the_length_before_reading_the_body() {
        let mut input = BytesMut::from(&[Tag::Stdout as u8, 0xff, 0xff, 0xff, 0x7f][..]);
        let error = FrameCodec.decode(&mut input).unwrap_err();
        assert!(matches!(error, FrameError::TooLong { tag: Tag::Stdout, .. }), "{error}");
    }

    proptest! {
        #[test]
        fn survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = FrameCodec.decode(&mut input) {
                prop_assert!(frame.body.len() <= frame.tag.max_body());
            }
        }

        #[test]
        fn decodes_what_it_encoded(body in proptest::collection::vec(any::<u8>(), 0..2048), cut in 0usize..2048) {
            let frame = Frame::new(Tag::Item, body);
            let mut wire = BytesMut::new();
            FrameCodec.encode(frame.clone(), &mut wire).unwrap();
            // The bytes arrive in two pieces, cut anywhere.
            let tail = wire.split_off(cut.min(wire.len()));
            let early = FrameCodec.decode(&mut wire).unwrap();
            let got = match early {
                Some(frame) => Some(frame),
                None => { wire.unsplit(tail); FrameCodec.decode(&mut wire).unwrap() }
            };
            prop_assert_eq!(got, Some(frame));
        }
    }
}
