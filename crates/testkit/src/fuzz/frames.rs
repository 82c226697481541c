//! What a guest sends: frames, and the messages in them.

use bastide_proto::frame::Tag;
use bastide_proto::{
    Accepted, End, Fault, FaultKind, Frame, FrameCodec, Notice, ProcessRecord, Request,
};
use bytes::BytesMut;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::codec::{Decoder, Encoder};

use super::{Target, Verdict};

pub(super) const TARGET: Target =
    Target { name: "guest_frames", check, seeds, words: &["\u{1}", "\u{9}", "\0\0\0\0"] };

fn check(input: &[u8]) -> Verdict {
    let mut bytes = BytesMut::from(input);
    let mut accepted = false;
    loop {
        let before = bytes.len();
        match FrameCodec.decode(&mut bytes) {
            Ok(Some(frame)) => {
                if frame.body.len() > frame.tag.max_body() || bytes.len() >= before {
                    return Verdict::Broken(format!("{:?} frame over its bounds", frame.tag));
                }
                match message(&frame) {
                    Verdict::Refused => {}
                    Verdict::Accepted => accepted = true,
                    broken @ Verdict::Broken(_) => return broken,
                }
            }
            Ok(None) | Err(_) => break,
        }
    }
    if accepted { Verdict::Accepted } else { Verdict::Refused }
}

fn message(frame: &Frame) -> Verdict {
    match frame.tag {
        Tag::Request => again::<Request>(&frame.body),
        Tag::Accepted => again::<Accepted>(&frame.body),
        Tag::Refused => again::<Fault>(&frame.body),
        Tag::End => again::<End>(&frame.body),
        Tag::Item => match again::<ProcessRecord>(&frame.body) {
            Verdict::Refused => again::<Notice>(&frame.body),
            read => read,
        },
        _ => Verdict::Refused,
    }
}

/// What is read must be the same when it is written and read again.
fn again<T: Serialize + DeserializeOwned + PartialEq>(body: &[u8]) -> Verdict {
    let Ok(first) = bastide_proto::decode::<T>(body) else { return Verdict::Refused };
    match bastide_proto::encode(&first).map(|bytes| bastide_proto::decode::<T>(&bytes)) {
        Ok(Ok(second)) if second == first => Verdict::Accepted,
        _ => Verdict::Broken("a message does not survive being written again".to_owned()),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let fault = Fault { kind: FaultKind::Io, message: "cannot".to_owned(), errno: Some(5) };
    [
        seed(Tag::Accepted, &Accepted { process: Some(7), from: 9 }),
        seed(Tag::Refused, &fault),
        seed(Tag::End, &End::Exited { code: 3 }),
        seed(Tag::End, &End::Failed(fault)),
        seed(Tag::Item, &Notice::Lost(12)),
        seed(Tag::Request, &Request::Ping),
    ]
    .to_vec()
}

fn seed<T: Serialize>(tag: Tag, message: &T) -> Vec<u8> {
    let body = bastide_proto::encode(message).unwrap_or_default();
    let mut bytes = BytesMut::new();
    // A seed that cannot be written is an empty one.
    drop(FrameCodec.encode(Frame::new(tag, body), &mut bytes));
    bytes.to_vec()
}
