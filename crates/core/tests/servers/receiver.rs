//! A server that keeps what it is sent.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    /// The body as it was before it was compressed.
    pub(crate) fn plain(&self) -> Vec<u8> {
        if self.headers.get("content-encoding").map(String::as_str) != Some("gzip") {
            return self.body.clone();
        }
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&self.body[..]).read_to_end(&mut plain).unwrap();
        plain
    }
}

/// Answers as it is told, and keeps what it was asked.
pub(crate) struct Receiver {
    pub(crate) address: String,
    received: Arc<Mutex<Vec<Received>>>,
    stopping: Arc<AtomicBool>,
}

impl Receiver {
    /// A server that answers the request of a number, counted from 0, with a status.
    pub(crate) fn start(answer: impl Fn(usize) -> u16 + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::new(Mutex::new(Vec::new()));
        let stopping = Arc::new(AtomicBool::new(false));
        let (kept, stop, answer) = (Arc::clone(&received), Arc::clone(&stopping), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                let Ok(stream) = stream else { return };
                std::thread::spawn(move || serve(&stream, &kept, answer.as_ref()));
            }
        });
        Self { address, received, stopping }
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Wakes it up to see that.
        drop(TcpStream::connect(&self.address));
    }
}

fn serve(
    stream: &TcpStream,
    kept: &Mutex<Vec<Received>>,
    answer: &(impl Fn(usize) -> u16 + ?Sized),
) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let number = {
            let mut kept = kept.lock().unwrap();
            kept.push(request);
            kept.len() - 1
        };
        let status = answer(number);
        let text = format!("HTTP/1.1 {status} Said\r\ncontent-length: 2\r\n\r\nok");
        if (&*stream).write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length")?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Received { path, headers, body })
}
