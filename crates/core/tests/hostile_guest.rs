//! A guest that is not ours: whatever it sends, the host stays bounded, ends every call and says so.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::future::poll_fn;
use std::time::Duration;

use bastide::link::{Incoming, Link, MuxLink};
use bastide::{Connection, ErrorKind};
use bastide_proto::frame::{MAX_DATA, Tag};
use bastide_proto::hello::{HELLO_BYTES, TOKEN_BYTES, Token, WELCOME_BYTES, welcome};
use bastide_proto::{Accepted, End, Request};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_util::compat::TokioAsyncReadCompatExt;

/// Nothing here may take longer, whatever the guest does.
const TIMEOUT: Duration = Duration::from_secs(20);

fn connection() -> (Connection, DuplexStream) {
    let (host, guest) = duplex(1 << 20);
    (
        Connection {
            stream: Box::new(host),
            token: Token([7; TOKEN_BYTES]),
            side: None,
            greeted: false,
            outage: std::time::Duration::ZERO,
        },
        guest,
    )
}

/// A guest that greets, then answers the first call with these bytes and keeps the stream open.
async fn answering(mut guest: DuplexStream, answer: Vec<u8>) {
    let mut hello = [0; HELLO_BYTES];
    guest.read_exact(&mut hello).await.unwrap();
    guest.write_all(&welcome()).await.unwrap();
    let config = yamux::Config::default();
    let mut connection = yamux::Connection::new(guest.compat(), config, yamux::Mode::Server);
    let mut streams = Vec::new();
    while let Some(Ok(mut stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await
    {
        let answer = answer.clone();
        streams.push(tokio::spawn(async move {
            let mut request = [0; 6];
            // The host may have given up already.
            if stream.read_exact(&mut request).await.is_ok() {
                drop(stream.write_all(&answer).await);
                drop(stream.flush().await);
                std::future::pending::<()>().await;
            }
        }));
    }
}

fn frame(tag: u8, length: u32, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &length.to_le_bytes(), body].concat()
}

fn honest(tag: Tag, body: &[u8]) -> Vec<u8> {
    frame(tag as u8, u32::try_from(body.len()).unwrap(), body)
}

fn accepted() -> Vec<u8> {
    let accepted = Accepted { process: Some(1), from: 0 };
    honest(Tag::Accepted, &bastide_proto::encode(&accepted).unwrap())
}

/// What the host makes of a guest that answers like this: the kind of its error.
async fn connect(answer: Vec<u8>) -> Result<Vec<Incoming>, ErrorKind> {
    let (host, guest) = connection();
    tokio::spawn(answering(guest, answer));
    let call = async {
        let link = MuxLink::connect(host).await?;
        let mut stream = link.open(Request::Ping).await?;
        let mut received = Vec::new();
        loop {
            let incoming = stream.from_guest.next().await?;
            let over = matches!(incoming, Incoming::End(_));
            received.push(incoming);
            if over {
                return Ok(received);
            }
        }
    };
    let met: bastide::Result<_> = tokio::time::timeout(TIMEOUT, call).await.expect("it hangs");
    met.map_err(|error| error.kind())
}

#[tokio::test]
async fn is_lost_when_it_sends_garbage() {
    let garbage: Vec<u8> = (0..4096u32).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
    let long_length = frame(Tag::Accepted as u8, u32::MAX, b"");
    let unknown_tag = frame(0xee, 1, b"x");
    let not_an_answer = honest(Tag::Stdout, b"hello");
    let torn_message = honest(Tag::Accepted, b"");
    let trailing_bytes = {
        let mut body = bastide_proto::encode(&Accepted { process: None, from: 0 }).unwrap();
        body.push(0);
        honest(Tag::Accepted, &body)
    };
    let answer_twice = [accepted(), accepted()].concat();
    let data_too_long = {
        let length = u32::try_from(MAX_DATA + 1).unwrap();
        [accepted(), frame(Tag::Stdout as u8, length, &vec![0; MAX_DATA + 1])].concat()
    };
    let input_from_a_guest = [accepted(), honest(Tag::Input, b"x")].concat();
    for answer in [
        garbage,
        long_length,
        unknown_tag,
        not_an_answer,
        torn_message,
        trailing_bytes,
        answer_twice,
        data_too_long,
        input_from_a_guest,
    ] {
        let start = answer.iter().take(16).copied().collect::<Vec<_>>();
        assert_eq!(connect(answer).await, Err(ErrorKind::AgentLost), "{start:?}");
    }
}

#[tokio::test]
async fn is_believed_when_it_keeps_to_the_protocol() {
    let end = bastide_proto::encode(&End::Exited { code: 3 }).unwrap();
    let answer = [accepted(), honest(Tag::Stdout, b"hi"), honest(Tag::End, &end)].concat();
    let want = vec![Incoming::Stdout("hi".into()), Incoming::End(End::Exited { code: 3 })];
    assert_eq!(connect(answer).await, Ok(want));
}

#[tokio::test]
async fn is_lost_when_it_does_not_greet_as_ours_does() {
    for greeting in [&[0u8; WELCOME_BYTES][..], b"HTTP/1.1 200", b"BASTIDE<\xff\xff\xff\xff", b""] {
        let (host, mut guest) = connection();
        tokio::spawn(async move {
            // The host closes the connection as soon as it sees something wrong.
            drop(guest.write_all(greeting).await);
            drop(guest);
        });
        let met = tokio::time::timeout(TIMEOUT, MuxLink::connect(host)).await.expect("it hangs");
        assert_eq!(met.map(drop).map_err(|error| error.kind()), Err(ErrorKind::AgentLost));
    }
}

#[tokio::test(start_paused = true)]
async fn is_lost_when_it_never_greets() {
    let (host, _guest) = connection();
    let met = MuxLink::connect(host).await;
    assert_eq!(met.map(drop).map_err(|error| error.kind()), Err(ErrorKind::AgentLost));
}

#[tokio::test(start_paused = true)]
async fn is_lost_when_it_never_answers() {
    let (host, guest) = connection();
    tokio::spawn(answering(guest, Vec::new()));
    let link = MuxLink::connect(host).await.unwrap();
    let met = link.open(Request::Ping).await;
    assert_eq!(met.map(drop).map_err(|error| error.kind()), Err(ErrorKind::AgentLost));
}

#[tokio::test(start_paused = true)]
async fn is_lost_when_it_stops_answering_in_a_call_without_a_deadline() {
    let (host, guest) = connection();
    // Accepts the first call, and every later one, but says nothing more: no ping is answered whole.
    tokio::spawn(answering(guest, accepted()));
    let link = MuxLink::connect(host).await.unwrap();
    let mut stream = link.open(Request::Ping).await.unwrap();
    let received = tokio::time::timeout(Duration::from_secs(60), stream.from_guest.next()).await;
    let kind = received.expect("it hangs").map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::AgentLost));
}

#[tokio::test]
async fn cannot_open_calls_to_the_host() {
    let (host, mut guest) = connection();
    tokio::spawn(async move {
        let mut hello = [0; HELLO_BYTES];
        guest.read_exact(&mut hello).await.unwrap();
        guest.write_all(&welcome()).await.unwrap();
        let config = yamux::Config::default();
        let mut connection = yamux::Connection::new(guest.compat(), config, yamux::Mode::Server);
        let mut stream = poll_fn(|context| connection.poll_new_outbound(context)).await.unwrap();
        drop(stream.write_all(b"let me in").await);
        while poll_fn(|context| connection.poll_next_inbound(context)).await.is_some() {}
    });
    let link = MuxLink::connect(host).await.unwrap();
    let met = tokio::time::timeout(TIMEOUT, link.open(Request::Ping)).await.expect("it hangs");
    assert_eq!(met.map(drop).map_err(|error| error.kind()), Err(ErrorKind::AgentLost));
}

/// A guest that sends without end is held up by the windows of its calls: what the host holds for it
/// is bounded, and the other call still gets its answer.
#[tokio::test]
async fn cannot_flood_the_host() {
    let (host, mut guest) = connection();
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&sent);
    tokio::spawn(async move {
        let mut hello = [0; HELLO_BYTES];
        guest.read_exact(&mut hello).await.unwrap();
        guest.write_all(&welcome()).await.unwrap();
        let config = yamux::Config::default();
        let mut connection = yamux::Connection::new(guest.compat(), config, yamux::Mode::Server);
        let mut first = true;
        while let Some(Ok(mut stream)) =
            poll_fn(|context| connection.poll_next_inbound(context)).await
        {
            let (flood, counter) = (std::mem::take(&mut first), std::sync::Arc::clone(&counter));
            tokio::spawn(async move {
                drop(stream.write_all(&accepted()).await);
                let data = honest(Tag::Stdout, &[0; MAX_DATA]);
                while flood && stream.write_all(&data).await.is_ok() {
                    counter.fetch_add(data.len(), std::sync::atomic::Ordering::Relaxed);
                }
                let done = bastide_proto::encode(&End::Done).unwrap();
                drop(stream.write_all(&honest(Tag::End, &done)).await);
                drop(stream.close().await);
            });
        }
    });
    let link = MuxLink::connect(host).await.unwrap();
    let flooded = link.open(Request::Ping).await.unwrap();
    for _ in 0..50 {
        let answer =
            tokio::time::timeout(TIMEOUT, async { link.open(Request::Ping).await?.finish().await });
        answer.await.expect("it hangs").unwrap();
    }
    let sent = sent.load(std::sync::atomic::Ordering::Relaxed);
    assert!(sent < 64 << 20, "{sent} bytes were taken from a call nobody reads");
    drop(flooded);
}

/// A link nobody holds any more is closed: a program that looks into many sessions keeps none of them.
#[tokio::test]
async fn is_left_alone_once_nobody_holds_the_link() {
    let (host, guest) = connection();
    let done = honest(Tag::End, &bastide_proto::encode(&End::Done).unwrap());
    let guest = tokio::spawn(answering(guest, [accepted(), done].concat()));
    let link = MuxLink::connect(host).await.unwrap();
    let open = link.open(Request::Ping).await.unwrap();
    drop(link);
    open.finish().await.unwrap();
    tokio::time::timeout(TIMEOUT, guest).await.expect("it is still connected").unwrap();
}
