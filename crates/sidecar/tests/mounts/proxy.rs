//! What may stand between a mount and its store: a proxy that spoils requests, or a store of ours
//! that says what it is told to.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::servers::DEADLINE;

/// Numbers that look random and are the same each time.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A port where each connection, one request long, is handled by a function.
pub(crate) struct Listener {
    pub(crate) port: u16,
    ended: Arc<AtomicBool>,
    pub(crate) connections: Arc<AtomicU64>,
}

impl Listener {
    pub(crate) fn new(
        handle: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ended = Arc::new(AtomicBool::new(false));
        let connections = Arc::new(AtomicU64::new(0));
        let (end, count, handle) = (Arc::clone(&ended), Arc::clone(&connections), Arc::new(handle));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                count.fetch_add(1, Ordering::SeqCst);
                let handle = Arc::clone(&handle);
                // A connection that breaks is what some of them are for.
                thread::spawn(move || drop(handle(stream)));
            }
        });
        Self { port, ended, connections }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

/// The head of a request, without the empty line at its end.
pub(crate) fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    head.truncate(head.len() - 2);
    String::from_utf8(head).map_err(io::Error::other)
}

fn content_length(head: &str) -> u64 {
    let line = head.lines().find_map(|line| {
        line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned)
    });
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Answers one request, and closes.
pub(crate) fn reply(
    stream: &mut TcpStream,
    status: &str,
    headers: &str,
    body: &[u8],
) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
    )?;
    stream.write_all(body)
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyAction {
    Pass,
    Unavailable,
    /// Broken off after so many bytes of the answer.
    CutAnswer(u64),
    /// Broken off after so many bytes of the request's body.
    CutRequest(u64),
    Delay(Duration),
    /// Taken, and never answered.
    Silence,
}

/// Stands before a server; `decide` says what becomes of each request.
pub(crate) fn proxy(
    port: u16,
    decide: impl Fn() -> ProxyAction + Send + Sync + 'static,
) -> Listener {
    Listener::new(move |mut client| {
        client.set_read_timeout(Some(DEADLINE))?;
        let head = read_head(&mut client)?;
        let fate = decide();
        let length = content_length(&head);
        match fate {
            ProxyAction::Unavailable => {
                io::copy(&mut Read::by_ref(&mut client).take(length), &mut io::sink())?;
                return reply(
                    &mut client,
                    "503 Slow Down",
                    "",
                    b"<Error><Code>SlowDown</Code></Error>",
                );
            }
            ProxyAction::Silence => {
                io::copy(&mut client, &mut io::sink())?;
                return Ok(());
            }
            ProxyAction::Delay(time) => {
                let (_keep, never) = mpsc::channel::<()>();
                let _ = never.recv_timeout(time);
            }
            ProxyAction::Pass | ProxyAction::CutAnswer(_) | ProxyAction::CutRequest(_) => {}
        }
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        server.set_read_timeout(Some(DEADLINE))?;
        write!(server, "{head}Connection: close\r\n\r\n")?;
        let passed =
            if let ProxyAction::CutRequest(bytes) = fate { length.min(bytes) } else { length };
        io::copy(&mut Read::by_ref(&mut client).take(passed), &mut server)?;
        if passed < length {
            server.shutdown(Shutdown::Both)?;
            return client.shutdown(Shutdown::Both);
        }
        let limit = if let ProxyAction::CutAnswer(bytes) = fate { bytes } else { u64::MAX };
        io::copy(&mut server.take(limit), &mut client)?;
        client.shutdown(Shutdown::Both)
    })
}

/// Spoils three requests of ten.
pub(crate) fn bad_proxy(port: u16, seed: u64) -> Listener {
    let chance = Mutex::new(Rng::new(seed));
    proxy(port, move || {
        let mut chance = chance.lock().unwrap();
        match chance.below(20) {
            0 | 1 => ProxyAction::Unavailable,
            2 => ProxyAction::CutAnswer(chance.below(3000)),
            3 => ProxyAction::CutRequest(chance.below(100_000)),
            4 | 5 => ProxyAction::Delay(Duration::from_millis(chance.below(50))),
            _ => ProxyAction::Pass,
        }
    })
}
