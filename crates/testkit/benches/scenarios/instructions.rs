//! How many instructions the paths take that everything else runs over. Unlike time, that is the same on a
//! busy machine, so a path that grew is found however small the growth.
//!
//! This program counts itself: it runs under callgrind once with few rounds and once with more, and what
//! the further rounds took is what a round takes.

use std::future::poll_fn;
use std::io;
use std::process::Command;

use bastide::Connection;
use bastide::SessionId;
use bastide::events::{
    EventOptions, EventSource, JsonlOutbox, Operation as EventOf, OperationResult, SinkOptions,
};
use bastide::link::{Incoming, Link, MuxLink};
use bastide_proto::frame::{Frame, FrameCodec, ROOM, Tag};
use bastide_proto::hello::{HELLO_BYTES, TOKEN_BYTES, Token, welcome};
use bastide_proto::{Accepted, End, Request};
use bytes::BytesMut;
use clap::ValueEnum;
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_util::codec::{Decoder, Encoder, Framed};
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

/// What counts the instructions, for `--without`.
pub(crate) const COUNTER: &str = "callgrind";

/// How many rounds are counted, and how many come before them.
const ROUNDS: u32 = 200;
const BEFORE: u32 = 50;

/// A path that must not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Path {
    /// A call over a link and its answer, both ends together.
    LinkRoundTrip,
    /// A frame of 1 KiB of output, decoded.
    FrameDecode,
    /// One operation told to an outbox: a start and a finish.
    EventEmit,
}

impl Path {
    const ALL: [Self; 3] = [Self::LinkRoundTrip, Self::FrameDecode, Self::EventEmit];

    fn title(self) -> &'static str {
        match self {
            Self::LinkRoundTrip => "instructions: link round trip",
            Self::FrameDecode => "instructions: frame decode",
            Self::EventEmit => "instructions: event emit",
        }
    }

    /// The most instructions of one round: what it took when this was written, and a twentieth more.
    fn most(self) -> u64 {
        match self {
            Self::LinkRoundTrip => 45_500,
            Self::FrameDecode => 740,
            Self::EventEmit => 117_000,
        }
    }

    /// Walks the path so many times.
    pub(crate) async fn walk(self, rounds: u32) -> io::Result<()> {
        match self {
            Self::LinkRoundTrip => round_trips(rounds).await,
            Self::FrameDecode => decode(rounds),
            Self::EventEmit => emit(rounds).await,
        }
    }
}

/// What was counted on one path; nothing where there is nobody to count.
#[derive(Debug)]
pub(crate) struct Counted {
    path: Path,
    pub(crate) instructions: Option<u64>,
}

impl Counted {
    /// Counts every path whose title holds this.
    pub(crate) fn all(only: Option<&str>) -> Vec<Self> {
        let chosen = |path: &Path| only.is_none_or(|part| path.title().contains(part));
        let count = |path| Self { path, instructions: count(path).ok() };
        Path::ALL.into_iter().filter(chosen).map(count).collect()
    }

    /// Whether it is as short as promised, if that is known.
    pub(crate) fn holds(&self) -> Option<bool> {
        self.instructions.map(|counted| counted <= self.path.most())
    }

    pub(crate) fn text(&self) -> String {
        let (title, most) = (self.path.title(), self.path.most());
        match (self.instructions, self.holds()) {
            (Some(counted), Some(true)) => format!("{title:<32} {counted}\n  ✓ ≤ {most} holds\n"),
            (Some(counted), _) => format!("{title:<32} {counted}\n  ✗ ≤ {most} does not hold\n"),
            (None, _) => format!("{title:<32}\n  ? ≤ {most} was not measured: no valgrind\n"),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let (title, most) = (self.path.title(), self.path.most());
        json!({"scenario": title, "instructions": self.instructions, "most": most})
    }
}

fn count(path: Path) -> io::Result<u64> {
    let (few, many) = (collected(path, BEFORE)?, collected(path, BEFORE + ROUNDS)?);
    Ok(many.saturating_sub(few) / u64::from(ROUNDS))
}

/// The instructions of a whole run of this program that walks a path so many times.
fn collected(path: Path, rounds: u32) -> io::Result<u64> {
    let name = path.to_possible_value().ok_or(io::ErrorKind::InvalidInput)?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(["--walk", name.get_name(), "--rounds", &rounds.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| io::Error::other(said.into_owned()))
}

async fn round_trips(rounds: u32) -> io::Result<()> {
    let (host, guest) = duplex(1 << 16);
    let answering = tokio::spawn(answer(guest));
    let token = Token([0; TOKEN_BYTES]);
    let connection = Connection {
        stream: Box::new(host),
        token,
        side: None,
        greeted: false,
        outage: std::time::Duration::ZERO,
    };
    let link = MuxLink::connect(connection).await.map_err(io::Error::other)?;
    for _ in 0..rounds {
        let mut call = link.open(Request::Ping).await.map_err(io::Error::other)?;
        while !matches!(call.from_guest.next().await.map_err(io::Error::other)?, Incoming::End(_)) {
        }
    }
    answering.abort();
    Ok(())
}

/// A guest that says yes to everything.
async fn answer(mut guest: DuplexStream) -> io::Result<()> {
    guest.read_exact(&mut [0; HELLO_BYTES]).await?;
    guest.write_all(&welcome()).await?;
    let config = yamux::Config::default();
    let mut connection = yamux::Connection::new(guest.compat(), config, yamux::Mode::Server);
    while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        tokio::spawn(async move {
            let mut frames = Framed::with_capacity(stream.compat(), FrameCodec, ROOM);
            frames.next().await;
            let said = [
                (Tag::Accepted, bastide_proto::encode(&Accepted::default())),
                (Tag::End, bastide_proto::encode(&End::Done)),
            ];
            for (tag, body) in said {
                // The host may be gone; there is nobody to tell.
                if let Ok(body) = body {
                    drop(frames.send(Frame::new(tag, body)).await);
                }
            }
        });
    }
    Ok(())
}

fn decode(rounds: u32) -> io::Result<()> {
    let mut codec = FrameCodec;
    let mut bytes = BytesMut::new();
    let frame = Frame::new(Tag::Stdout, vec![b'x'; 1024]);
    codec.encode(frame, &mut bytes).map_err(io::Error::other)?;
    for _ in 0..rounds {
        let decoded = codec.decode(&mut bytes.clone()).map_err(io::Error::other)?;
        std::hint::black_box(decoded);
    }
    Ok(())
}

async fn emit(rounds: u32) -> io::Result<()> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let outbox = JsonlOutbox::new(folder.path().join("outbox")).options(SinkOptions::sync());
    let options = EventOptions::new().sink(outbox);
    let source = EventSource::new(&options, &SessionId::random()).map_err(io::Error::other)?;
    for _ in 0..rounds {
        let reported = source.observe(EventOf::Running, async { Ok(true) }, |alive| {
            OperationResult::Running { alive: *alive }
        });
        reported.await.map_err(io::Error::other)?;
    }
    source.flush().await;
    Ok(())
}
