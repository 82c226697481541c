//! A way to a server on which a tenth of the requests is refused, and another tenth breaks off.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

use super::servers::DEADLINE;

/// How many bytes of an answer come before it breaks off.
const CUT: u64 = 500;

/// The port of a way to a server's port. It is there until this program ends.
pub(super) fn to(server: u16) -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        let number = AtomicU64::new(0);
        for client in listener.incoming().flatten() {
            let number = number.fetch_add(1, Ordering::Relaxed);
            // A connection that fails is what this is for.
            std::thread::spawn(move || drop(pass(client, server, number)));
        }
    });
    Ok(port)
}

/// Passes one request on and its answer back, or not.
fn pass(mut client: TcpStream, server: u16, number: u64) -> io::Result<()> {
    client.set_read_timeout(Some(DEADLINE))?;
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    head.truncate(head.len() - 2);
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    if number % 10 == 3 {
        io::copy(&mut Read::by_ref(&mut client).take(length), &mut io::sink())?;
        let answer = "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return client.write_all(answer.as_bytes());
    }
    let mut server = TcpStream::connect(("127.0.0.1", server))?;
    server.set_read_timeout(Some(DEADLINE))?;
    server.write_all(&head)?;
    server.write_all(b"Connection: close\r\n\r\n")?;
    io::copy(&mut Read::by_ref(&mut client).take(length), &mut server)?;
    let limit = if number % 10 == 7 { CUT } else { u64::MAX };
    io::copy(&mut server.take(limit), &mut client)?;
    client.shutdown(Shutdown::Both)
}
