//! Attempts to get out of a network that has a policy. Each says what became of it.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

/// How long anything may take here that is not to be waited for.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to a place by its name, and says what it is greeted with; or the error.
pub(super) fn dial(host: &str, port: &str) -> Vec<String> {
    let said = || -> io::Result<String> {
        let addresses = format!("{host}:{port}").to_socket_addrs()?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(mut stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    let mut greeting = [0; 64];
                    let count = stream.read(&mut greeting)?;
                    return Ok(String::from_utf8_lossy(&greeting[..count]).into_owned());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    vec![match said() {
        Ok(greeting) => format!("heard {:?}", greeting.trim_end()),
        Err(error) => outcome(&error),
    }]
}

/// Sends a text to a place, in which `\\r`, `\\n` and `\\0` stand for what they mean, and says the first line that comes back.
pub(super) fn talk(host: &str, port: &str, text: &str) -> Vec<String> {
    let text = text.replace("\\r", "\r").replace("\\n", "\n").replace("\\0", "\0");
    let said = || -> io::Result<String> {
        let address = format!("{host}:{port}").to_socket_addrs()?.next();
        let address = address.ok_or(io::ErrorKind::NotFound)?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.write_all(text.as_bytes())?;
        let mut line = String::new();
        io::BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    vec![match said() {
        Ok(line) => format!("heard {:?}", line.trim_end()),
        Err(error) => outcome(&error),
    }]
}

/// Opens as many connections to a place as asked for, and says how many are open at once and how many of those are greeted.
pub(super) fn crowd(host: &str, port: &str, count: &str) -> io::Result<Vec<String>> {
    let count: usize = count.parse().map_err(io::Error::other)?;
    let address = format!("{host}:{port}").to_socket_addrs()?.next();
    let address = address.ok_or(io::ErrorKind::NotFound)?;
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    let mut open = Vec::new();
    while open.len() < count {
        // Whoever is not accepted in a moment waits in front of a full queue of the kernel's.
        match TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            Ok(stream) => open.push(stream),
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => break,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => break,
            Err(error) => return Err(error),
        }
    }
    open.iter().try_for_each(|stream| stream.set_nonblocking(true))?;
    let (mut greeted, mut since) = (0, Instant::now());
    // Until nobody was greeted for a while.
    while since.elapsed() < Duration::from_secs(2) {
        let is_greeted = |stream: &&TcpStream| stream.peek(&mut [0]).is_ok_and(|count| count == 1);
        let now = open.iter().filter(is_greeted).count();
        if now > greeted {
            (greeted, since) = (now, Instant::now());
        }
        // Nothing is waited for but the time itself.
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(vec![format!("{} open, {greeted} greeted", open.len())])
}

/// Sends a datagram, and says what came back.
pub(super) fn datagram(address: &str) -> io::Result<Vec<String>> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let any: SocketAddr = match address.is_ipv4() {
        true => ([0, 0, 0, 0], 0).into(),
        false => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    let sent = socket.connect(address).and_then(|()| socket.send(b"bastide-canary"));
    let mut answer = [0; 64];
    let received = sent.and_then(|_| socket.recv(&mut answer));
    Ok(vec![match received {
        Ok(count) => format!("heard {count} bytes"),
        Err(error) => outcome(&error),
    }])
}

/// Asks a name server for the address of a name, and says the code of its answer.
pub(super) fn ask_name(server: &str, name: &str) -> io::Result<Vec<String>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send_to(&question(name), format!("{server}:53"))?;
    let mut answer = [0; 512];
    let (count, from) = socket.recv_from(&mut answer)?;
    let code = answer.get(3).map_or(0, |flags| flags & 0xf);
    let answers = u16::from_be_bytes([answer[6], answer[7]]);
    Ok(vec![format!("code {code}, {answers} answers, {count} bytes, from {}", from.ip())])
}

/// Asks for the addresses of so many names below `domain`, waiting for no answer, and says how many answers came.
pub(super) fn ask_many(domain: &str, many: &str) -> io::Result<Vec<String>> {
    let many: u32 = many.parse().map_err(io::Error::other)?;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("198.18.0.1:53")?;
    socket.set_nonblocking(true)?;
    let (mut answer, mut answers) = ([0; 512], 0);
    for number in 0..many {
        // A full queue is the other side's way of not answering.
        if let Err(error) = socket.send(&question(&format!("n{number}.{domain}")))
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Err(error);
        }
        while socket.recv(&mut answer).is_ok() {
            answers += 1;
        }
    }
    Ok(vec![format!("{many} asked, {answers} answered")])
}

/// A question for the address of a name.
fn question(name: &str) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap_or(0));
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Kills whatever it may.
pub(super) fn kill_everybody() -> io::Result<Vec<String>> {
    let own = rustix::process::getpid();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw)
            && pid != own
        {
            // Most of it is not allowed, which is the point.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    Ok(Vec::new())
}

fn outcome(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => "refused".to_owned(),
        Some(libc::ENETUNREACH) => "unreachable".to_owned(),
        Some(libc::ECONNRESET) => "reset".to_owned(),
        _ => format!("{:?}", error.kind()),
    }
}
