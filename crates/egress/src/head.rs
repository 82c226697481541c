//! What is taken for a request of HTTP/1: less than the grammar allows, so that no two readers understand it differently.
//!
//! Bytes are let through once their message has been looked at as far as them: heads as a whole, bodies as they come.

/// The longest head of a request.
const MAX_HEAD: usize = 64 << 10;

/// The most headers.
pub(crate) const MAX_HEADERS: usize = 256;

/// The longest line about a chunk, and of a trailer.
const MAX_LINE: usize = 4 << 10;

/// Looks at the bytes of a connection, request after request.
#[derive(Debug, Default)]
pub struct HeadCheck {
    state: State,
    held: Vec<u8>,
    /// How much of a head that is not whole has been looked at: whole lines.
    looked_at: usize,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body(u64),
    ChunkSize,
    Chunk(u64),
    Trailers,
    /// Something else than HTTP is spoken from here on.
    Raw,
}

/// How a message ends, as its head says.
enum BodyLength {
    After(u64),
    Chunked,
    Never,
}

impl HeadCheck {
    /// Takes bytes, and adds those to `out` that may be believed.
    ///
    /// # Errors
    ///
    /// Why the connection must end; whether a head was it, is told by [`is_in_head`](Self::is_in_head).
    pub fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            match self.state {
                State::Raw => {
                    out.extend_from_slice(bytes);
                    return Ok(());
                }
                State::Body(left) | State::Chunk(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    out.extend_from_slice(&bytes[..count]);
                    bytes = &bytes[count..];
                    let left = left - count as u64;
                    self.state = match self.state {
                        State::Body(_) if left == 0 => State::Head,
                        State::Body(_) => State::Body(left),
                        _ if left == 0 => State::ChunkSize,
                        _ => State::Chunk(left),
                    };
                }
                State::Head => bytes = self.feed_head(bytes, out)?,
                State::ChunkSize | State::Trailers => bytes = self.feed_line(bytes, out)?,
            }
        }
        Ok(())
    }

    /// Whether nothing of the message that is being read has been let through.
    #[must_use]
    pub fn is_in_head(&self) -> bool {
        self.state == State::Head
    }

    fn feed_head<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<&'a [u8], &'static str> {
        let from = self.held.len().saturating_sub(3);
        self.held.extend_from_slice(bytes);
        let end = self.held[from..].windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end.map(|at| from + at + 4) else {
            // Told early, so that nobody waits for the rest of something that is no head.
            let before = self.held.len() - bytes.len();
            if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
                let lines = before + at + 1;
                check_line_ends(&self.held[self.looked_at..lines])?;
                self.looked_at = lines;
            }
            if self.held.len() > MAX_HEAD {
                return Err("the head of the request is too long");
            }
            return Ok(&[]);
        };
        if end > MAX_HEAD {
            return Err("the head of the request is too long");
        }
        let ends = check_head(&self.held[..end])?;
        out.extend_from_slice(&self.held[..end]);
        let rest = self.held.len() - end;
        self.held.clear();
        self.looked_at = 0;
        self.state = match ends {
            BodyLength::After(0) => State::Head,
            BodyLength::After(length) => State::Body(length),
            BodyLength::Chunked => State::ChunkSize,
            BodyLength::Never => State::Raw,
        };
        Ok(&bytes[bytes.len() - rest..])
    }

    /// One line between chunks, or behind them.
    fn feed_line<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<&'a [u8], &'static str> {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        self.held.extend_from_slice(&bytes[..end]);
        if self.held.len() > MAX_LINE {
            return Err("a line of the body is too long");
        }
        let rest = &bytes[end..];
        let Some(line) = self.held.strip_suffix(b"\n") else { return Ok(rest) };
        let line = line.strip_suffix(b"\r").ok_or("a line ends without a carriage return")?;
        if line.contains(&b'\r') {
            return Err("a carriage return stands alone");
        }
        self.state = if self.state == State::Trailers {
            match line {
                [] => State::Head,
                line => {
                    check_header(line)?;
                    State::Trailers
                }
            }
        } else {
            match chunk_size(line)? {
                0 => State::Trailers,
                // The chunk and the end of its line.
                size => State::Chunk(size + 2),
            }
        };
        out.append(&mut self.held);
        Ok(rest)
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let wrong = "the size of a chunk is no number";
    // Extensions are understood by nobody alike.
    let text = std::str::from_utf8(line).map_err(|_| wrong)?;
    let is_number = !text.is_empty() && text.len() <= 15;
    if !is_number || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong);
    }
    u64::from_str_radix(text, 16).map_err(|_| wrong)
}

fn check_line_ends(head: &[u8]) -> Result<(), &'static str> {
    for (at, byte) in head.iter().enumerate() {
        match byte {
            b'\n' if at == 0 || head[at - 1] != b'\r' => {
                return Err("a line ends without a carriage return");
            }
            b'\r' if head.get(at + 1).is_some_and(|next| *next != b'\n') => {
                return Err("a carriage return stands alone");
            }
            0 => return Err("the head has a zero byte"),
            _ => {}
        }
    }
    Ok(())
}

/// Looks at a whole head, with the empty line at its end.
fn check_head(head: &[u8]) -> Result<BodyLength, &'static str> {
    check_line_ends(head)?;
    let body = head.strip_suffix(b"\r\n\r\n").ok_or("the head has no end")?;
    let mut lines =
        body.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let is_old = check_request_line(lines.next().unwrap_or_default())?;
    let (mut hosts, mut length, mut is_chunked) = (0, None, false);
    let (mut has_upgrade, mut is_upgrade) = (false, false);
    for (index, line) in lines.enumerate() {
        if index >= MAX_HEADERS {
            return Err("the request has too many headers");
        }
        let (name, value) = check_header(line)?;
        match name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "content-length" => {
                if length.is_some() {
                    return Err("the request has two lengths");
                }
                length = Some(content_length(value)?);
            }
            "transfer-encoding" => {
                if is_chunked || is_old || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err("the only transfer encoding is one `chunked`");
                }
                is_chunked = true;
            }
            "upgrade" => {
                if std::mem::replace(&mut has_upgrade, true) {
                    return Err("the request has two upgrades");
                }
                if value.eq_ignore_ascii_case(b"h2c") {
                    return Err("HTTP/2 is not begun by an upgrade");
                }
                is_upgrade |= value.eq_ignore_ascii_case(b"websocket");
            }
            _ => {}
        }
    }
    if hosts != 1 {
        return Err("the request does not have one host");
    }
    match (is_chunked, length) {
        (true, Some(_)) => Err("the request has a length and a transfer encoding"),
        (true, None) if is_upgrade => Err("an upgrade has no body"),
        (true, None) => Ok(BodyLength::Chunked),
        (false, Some(1..)) if is_upgrade => Err("an upgrade has no body"),
        (false, _) if is_upgrade => Ok(BodyLength::Never),
        (false, length) => Ok(BodyLength::After(length.unwrap_or(0))),
    }
}

/// Tells whether it is HTTP/1.0.
fn check_request_line(line: &[u8]) -> Result<bool, &'static str> {
    let wrong = "this is no request of HTTP/1.1";
    let mut fields = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(wrong);
    };
    if !is_token(method)
        || target.is_empty()
        || !target.iter().all(|byte| matches!(byte, 0x21..=0x7e))
    {
        return Err(wrong);
    }
    if method == b"CONNECT" {
        return Err("CONNECT is not allowed");
    }
    if !target.starts_with(b"/") {
        return Err("the target of a request begins with a slash");
    }
    match version {
        b"HTTP/1.1" => Ok(false),
        b"HTTP/1.0" => Ok(true),
        _ => Err(wrong),
    }
}

fn is_token(text: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(fits)
}

fn check_header(line: &[u8]) -> Result<(&str, &[u8]), &'static str> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or("a header has no colon")?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) {
        return Err("the name of a header is none, or a header goes on in a second line");
    }
    if !value.iter().all(|byte| matches!(byte, b'\t' | 0x20..=0x7e | 0x80..=0xff)) {
        return Err("a header has a control character");
    }
    let name = std::str::from_utf8(name).map_err(|_| "the name of a header is none")?;
    Ok((name, value.trim_ascii()))
}

fn content_length(value: &[u8]) -> Result<u64, &'static str> {
    let wrong = "the length of the body is no number";
    let text = std::str::from_utf8(value).map_err(|_| wrong)?;
    if text.is_empty() || text.len() > 18 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong);
    }
    text.parse().map_err(|_| wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is let through, however the bytes are cut.
    fn fed(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
        let whole = feed(bytes, bytes.len().max(1));
        for size in [1, 2, 3, 5, 7, 16, 33] {
            let cut = feed(bytes, size);
            assert_eq!(
                cut.is_ok(),
                whole.is_ok(),
                "{:?} by {size}",
                String::from_utf8_lossy(bytes)
            );
            assert!(whole.is_err() || cut == whole);
        }
        whole
    }

    fn feed(bytes: &[u8], size: usize) -> Result<Vec<u8>, &'static str> {
        let (mut check, mut out) = (HeadCheck::default(), Vec::new());
        for part in bytes.chunks(size) {
            check.feed(part, &mut out)?;
        }
        Ok(out)
    }

    #[test]
    fn lets_plain_requests_through() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n\n\0\rGET /b HTTP/1.0\r\nhost: a\r\n\r\n",
            "PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\0\r\n\n",
        ] {
            assert_eq!(fed(text.as_bytes()).unwrap(), text.as_bytes(), "{text:?}");
        }
        let partial = fed(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap();
        assert!(partial.is_empty());
    }

    #[test]
    fn refuses_what_is_read_in_two_ways() {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}\r\n\r\n", "y".repeat(65 << 10));
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "x: y\r\n".repeat(300));
        for text in [
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\nx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\rx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n x: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "CONNECT b:443 HTTP/1.1\r\nHost: a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nx: \0\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "SSH-2.0-OpenSSH_9.6\r\n\r\n",
            long.as_str(),
            many.as_str(),
        ] {
            assert!(fed(text.as_bytes()).is_err(), "{:?}", text.get(..80).unwrap_or(text));
        }
    }
}
