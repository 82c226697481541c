use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;

use super::*;

/// A stream that breaks after so many bytes in each direction.
struct Fragile {
    inner: DuplexStream,
    reads: usize,
    writes: usize,
}

impl AsyncRead for Fragile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let mut part = buffer.take(self.reads);
        let polled = Pin::new(&mut self.inner).poll_read(context, &mut part);
        let read = part.filled().len();
        // The part is the beginning of what is free in the buffer, and was written to.
        let bytes = part.filled().to_vec();
        buffer.put_slice(&bytes);
        self.reads -= read;
        polled
    }
}

impl AsyncWrite for Fragile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.writes == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let most = bytes.len().min(self.writes);
        let polled = Pin::new(&mut self.inner).poll_write(context, &bytes[..most]);
        if let Poll::Ready(Ok(written)) = &polled {
            self.writes -= written;
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Where streams are brought to, and how each of them breaks.
#[derive(Clone)]
struct Network {
    streams: mpsc::UnboundedSender<DuplexStream>,
    cuts: Arc<Vec<(usize, usize)>>,
    dialled: Arc<AtomicUsize>,
}

impl Network {
    fn new(cuts: Vec<(usize, usize)>) -> (Self, mpsc::UnboundedReceiver<DuplexStream>) {
        let (streams, arriving) = mpsc::unbounded_channel();
        (Self { streams, cuts: Arc::new(cuts), dialled: Arc::default() }, arriving)
    }

    fn stream(&self) -> io::Result<Fragile> {
        let number = self.dialled.fetch_add(1, Relaxed);
        let (reads, writes) = self.cuts.get(number).copied().unwrap_or((usize::MAX, usize::MAX));
        let (near, far) = tokio::io::duplex(8 * 1024);
        self.streams.send(far).map_err(|_| io::ErrorKind::NotFound)?;
        Ok(Fragile { inner: near, reads, writes })
    }

    async fn dial(&self) -> io::Result<Conduit> {
        let first = self.stream()?;
        let network = self.clone();
        super::dial(first, move || std::future::ready(network.stream())).await
    }
}

/// Both ends of a conduit over a network.
async fn pair(cuts: Vec<(usize, usize)>) -> (Conduit, Conduit, Network) {
    let (network, mut arriving) = Network::new(cuts);
    let (conduits, mut served) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let known = Conduits::default();
        while let Some(stream) = arriving.recv().await {
            if let Ok(Some(conduit)) = known.accept(stream, || {}).await {
                conduits.send(conduit).unwrap();
            }
        }
    });
    let near = network.dial().await.unwrap();
    (near, served.recv().await.unwrap(), network)
}

fn bytes(count: usize, salt: usize) -> Vec<u8> {
    (0..count).map(|number| (number * 31 + number / 251 + salt).to_le_bytes()[0]).collect()
}

async fn send(conduit: &mut tokio::io::WriteHalf<Conduit>, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        conduit.write_all(piece).await.unwrap();
    }
}

async fn expect(conduit: &mut tokio::io::ReadHalf<Conduit>, expected: &[u8]) {
    let mut expect = vec![0; expected.len()];
    conduit.read_exact(&mut expect).await.unwrap();
    assert!(expect == expected, "something was lost, or came twice");
}

fn paused() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// How the greeting of a stream is counted: a cut within the first one is a conduit that was never there.
const GREETING: usize = 100;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn loses_nothing_wherever_streams_break(
        up in 0_usize..200_000,
        down in 0_usize..200_000,
        piece in 1_usize..20_000,
        first in (0_usize..20_000, 0_usize..20_000),
        cuts in vec((0_usize..60_000, 0_usize..60_000), 0..12),
    ) {
        let mut all = vec![(first.0 + GREETING, first.1 + GREETING)];
        all.extend(cuts);
        paused().block_on(async {
            let (near, far, network) = pair(all).await;
            let (mut near_read, mut near_write) = tokio::io::split(near);
            let (mut far_read, mut far_write) = tokio::io::split(far);
            let (up, down) = (bytes(up, 1), bytes(down, 2));
            tokio::join!(
                send(&mut near_write, &up, piece),
                send(&mut far_write, &down, piece),
                expect(&mut far_read, &up),
                expect(&mut near_read, &down),
            );
            near_write.shutdown().await.unwrap();
            assert_eq!(far_read.read(&mut [0]).await.unwrap(), 0, "goodbye is no failure");
            drop(network);
        });
    }
}

#[test]
fn keeps_no_more_than_it_may_and_goes_on_when_it_is_used() {
    paused().block_on(async {
        let (near, far, _network) = pair(vec![]).await;
        let (_, mut near) = tokio::io::split(near);
        let much = bytes(3 * MOST, 3);
        let writing = near.write_all(&much);
        tokio::pin!(writing);
        assert!(timeout_now(&mut writing).await, "nobody reads");
        let shared = Arc::clone(&far.0);
        assert!(shared.state().inbox.len() <= MOST);
        let (mut far, _) = tokio::io::split(far);
        tokio::join!(async { writing.await.unwrap() }, expect(&mut far, &much));
        assert!(shared.state().inbox.capacity() <= 2 * IDLE, "memory is given back");
    });
}

/// Whether something does not end by itself.
async fn timeout_now(future: &mut (impl Future + Unpin)) -> bool {
    tokio::time::timeout(Duration::from_secs(60), future).await.is_err()
}

#[test]
fn is_lost_when_no_stream_comes() {
    paused().block_on(async {
        let (network, mut arriving) = Network::new(vec![(2000, 2000)]);
        let known = Conduits::default();
        let (near, far) = tokio::join!(network.dial(), async {
            known.accept(arriving.recv().await.unwrap(), || {}).await.unwrap().unwrap()
        });
        let (mut near, mut far) = (near.unwrap(), far);
        // Whoever comes now is not listened to.
        near.write_all(&bytes(5000, 0)).await.unwrap();
        let before = tokio::time::Instant::now();
        assert_eq!(near.read(&mut [0]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        let mut rest = Vec::new();
        assert!(far.read_to_end(&mut rest).await.is_err());
        assert!(before.elapsed() >= KEPT - LATE && before.elapsed() < 2 * KEPT);
        assert_eq!(known.count(), 0, "it is forgotten");
    });
}

const LATE: Duration = Duration::from_secs(5);

#[test]
fn belongs_to_whoever_knows_its_key() {
    paused().block_on(async {
        let known = Conduits::default();
        let say = |mode: &'static [u8], id: u8, key: u8| {
            let words = [mode, &[id; 16], &[key; 32], &[0; 8]].concat();
            let known = &known;
            async move {
                let (mut near, far) = tokio::io::duplex(1024);
                near.write_all(&words).await.unwrap();
                let accepted = known.accept(far, || {}).await.unwrap();
                (near.read_u8().await.unwrap(), accepted, near)
            }
        };
        let (answer, conduit, _stream) = say(b"N", 1, 1).await;
        assert!(answer == b'K' && conduit.is_some());
        assert_eq!(say(b"R", 1, 2).await.0, b'N', "another key");
        assert_eq!(say(b"R", 2, 1).await.0, b'N', "another conduit");
        assert_eq!(say(b"N", 1, 3).await.0, b'N', "one that is there already");
        assert_eq!(say(b"R", 1, 1).await.0, b'K');
        drop(conduit);
    });
}

#[test]
fn ends_with_whoever_breaks_the_rules() {
    let wrong: [&[u8]; 5] = [
        b"?",
        b"D\xff\xff\xff\xff",
        b"U\x01\0\0\0\0\0\0\0",
        b"U\xff\xff\xff\xff\xff\xff\xff\xff",
        b"AAAAX",
    ];
    for wrong in wrong {
        paused().block_on(async {
            let known = Conduits::default();
            let (mut near, far) = tokio::io::duplex(1024);
            near.write_all(&[b"N".as_slice(), &[7; 48], &[0; 8]].concat()).await.unwrap();
            let mut conduit = known.accept(far, || {}).await.unwrap().unwrap();
            near.write_all(wrong).await.unwrap();
            let error = conduit.read(&mut [0]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{wrong:?}");
        });
    }
}
