//! What a guest sends: frames, and the messages in them.

use bastide_proto::files::{
    Change, ChangedPath, DirListing, EntryType, FileStat, FileTime, FoundFile, Opened, Resolved,
};
use bastide_proto::frame::Tag;
use bastide_proto::request::{PutObstacle, PutObstacleKind};
use bastide_proto::{
    Accepted, End, Fault, FaultKind, Frame, FrameCodec, ProcessNotice, ProcessRecord, PutItem,
    PutMessage, Request,
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
        Tag::Item => item(&frame.body),
        _ => Verdict::Refused,
    }
}

/// An item is what the call it belongs to says; here it may be of any.
fn item(body: &[u8]) -> Verdict {
    let readers: &[fn(&[u8]) -> Verdict] = &[
        again::<ProcessRecord>,
        again::<ProcessNotice>,
        again::<Opened>,
        again::<FoundFile>,
        again::<DirListing>,
        again::<Resolved>,
        again::<Vec<Change>>,
        again::<PutMessage>,
        again::<PutItem>,
    ];
    let mut verdict = Verdict::Refused;
    for read in readers {
        match read(body) {
            Verdict::Refused => {}
            broken @ Verdict::Broken(_) => return broken,
            accepted @ Verdict::Accepted => verdict = accepted,
        }
    }
    verdict
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
    let (message, path) = ("cannot".to_owned(), Some("/workspace/a".to_owned()));
    let fault = Fault { kind: FaultKind::Io, message, errno: Some(5), path };
    let stat = FileStat {
        kind: EntryType::Symlink,
        mode: 0o777,
        uid: 0,
        gid: 65_534,
        owner: Some("root".to_owned()),
        group: None,
        size: 4,
        modified: FileTime { seconds: -1, nanos: 5 },
        links: 1,
        target: Some(b"here".to_vec().into()),
    };
    let listed = DirListing {
        folder: b"/workspace".to_vec().into(),
        entries: vec![(b"a".to_vec().into(), stat.clone())],
    };
    let changed = ChangedPath { path: b"a".to_vec().into(), is_dir: false };
    let renamed = Change::Renamed { from: b"b".to_vec().into(), to: changed.clone() };
    let link = PutObstacleKind::Link { at: b"a/b".to_vec().into(), leaves: true };
    [
        seed(Tag::Accepted, &Accepted { process: Some(7), from: 9 }),
        seed(Tag::Refused, &fault),
        seed(Tag::End, &End::Exited { code: 3 }),
        seed(Tag::End, &End::Failed(fault)),
        seed(Tag::Item, &ProcessNotice::Lost(12)),
        seed(Tag::Item, &FoundFile { path: b"/workspace/a".to_vec().into(), stat }),
        seed(Tag::Item, &listed),
        seed(Tag::Item, &vec![Change::Created(changed), renamed, Change::Overflow]),
        seed(Tag::Item, &PutMessage::Obstacle(PutObstacle { entry: 3, what: link })),
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
