//! The half of an escape trial that runs inside. It tries, and says what it reached.
//!
//! The test program carries itself into the session and starts itself there with [`FLAG`], so a trial
//! needs nothing that an image may not have.

mod egress;
mod gaps;
mod set_id;
mod swap;
mod sys;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, setrlimit};

pub(super) use sys::Segment;

use gaps::gaps;

/// The argument that makes a test program a probe.
pub const FLAG: &str = "--bastide-probe";

/// Runs as a probe if the arguments say so; test programs call this first.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != FLAG {
        return None;
    }
    let name = arguments.next().unwrap_or_default();
    let rest: Vec<_> = arguments.collect();
    let reached = attempt(&name, &rest);
    Some(match reached {
        Ok(lines) => {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let said = io::stdout().write_all(text.as_bytes());
            ExitCode::from(u8::from(said.is_err()))
        }
        Err(error) => {
            drop(writeln!(io::stderr(), "{error}"));
            ExitCode::FAILURE
        }
    })
}

fn attempt(name: &str, arguments: &[String]) -> io::Result<Vec<String>> {
    let argument = |index: usize| arguments.get(index).map_or("", String::as_str);
    match name {
        "mounts" => Ok(sys::not_refused(&sys::mounts())),
        "calls" => Ok(sys::not_refused(&sys::reaching_calls())),
        "terminal" => {
            // Where no terminal can be had, the request alone is refused.
            let file = fs::File::open("/dev/ptmx").or_else(|_| fs::File::open("/dev/null"))?;
            Ok(sys::not_refused(&sys::terminal_requests(&file)))
        }
        "unknown-call" => Ok(vec![sys::unknown_call()]),
        "processes" => processes(),
        "descriptors" => descriptors(),
        "connect" => Ok(connect(argument(0), argument(1))),
        "dial" => Ok(egress::dial(argument(0), argument(1))),
        "crowd" => egress::crowd(argument(0), argument(1), argument(2)),
        "talk" => Ok(egress::talk(argument(0), argument(1), argument(2))),
        "datagram" => egress::datagram(argument(0)),
        "ask-name" => egress::ask_name(argument(0), argument(1)),
        "ask-many" => egress::ask_many(argument(0), argument(1)),
        "kill-everybody" => egress::kill_everybody(),
        "raw-sockets" => Ok(sys::not_refused(&sys::raw_sockets())),
        "loopback" => loopback(),
        "sockets" => sockets(argument(0), argument(1), argument(2)),
        "families" => Ok(sys::not_refused(&sys::sockets())),
        "gaps" => gaps(argument(0), argument(1), argument(2), argument(3)),
        "lasting" => set_id::lasting(),
        "segment" => Ok(sys::find_segment(argument(0))),
        "read" => Ok(fs::read(argument(0)).map(|_| "read".to_owned()).into_iter().collect()),
        "echo" => echo(argument(0)),
        "guest" => Ok(guest(argument(0))),
        "listen" => listen(argument(0)),
        "bind" => std::os::unix::net::UnixListener::bind(argument(0)).map(|_| Vec::new()),
        "swap" => swap::forever(argument(0)),
        "family" => family(argument(0)),
        "storm" => storm(argument(0)),
        "room" => Ok(vec![sys::family(number(argument(0))?).to_string()]),
        "processors" => Ok(vec![sys::all_processors().to_string()]),
        "share" => sys::share(number(argument(0))?).map(|()| vec!["had it".to_owned()]),
        "work" => work(argument(0), argument(1), argument(2)),
        "map" => map(argument(0), argument(1), argument(2)),
        _ => Err(io::Error::other(format!("unknown probe {name:?}"))),
    }
}

fn number(text: &str) -> io::Result<usize> {
    text.parse().map_err(io::Error::other)
}

/// Uses so many seconds of a processor, so much memory at once, and writes so many bytes.
fn work(seconds: &str, memory: &str, written: &str) -> io::Result<Vec<String>> {
    let wrong = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let seconds: f64 = seconds.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (memory, written): (usize, usize) =
        (memory.parse().map_err(wrong)?, written.parse().map_err(wrong)?);
    // A page that nobody wrote to is none of the memory's.
    let mut block = vec![0_u8; memory];
    block.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let mut file = fs::File::create("work.bin")?;
    for part in block.get(..written.min(memory)).unwrap_or_default().chunks(1 << 20) {
        io::Write::write_all(&mut file, part)?;
    }
    let spent = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        std::time::Duration::try_from(now).unwrap_or_default()
    };
    let mut sum = 0_u64;
    while spent().as_secs_f64() < seconds {
        sum = (0..10_000_u64).fold(sum, |sum, number| sum.wrapping_add(number * number));
    }
    fs::remove_file("work.bin")?;
    Ok(vec![std::hint::black_box(sum & 1).to_string(), block.len().to_string()])
}

/// Forks many children, says how many, and stays.
fn family(wanted: &str) -> io::Result<Vec<String>> {
    let many = sys::family(number(wanted)?);
    io::stdout().write_all(format!("{many}\n").as_bytes())?;
    sys::forever()
}

/// A fork storm of so many processes of this user at most.
fn storm(most: &str) -> io::Result<Vec<String>> {
    let most = Some(u64::try_from(number(most)?).map_err(io::Error::other)?);
    let limit = Rlimit { current: most, maximum: most };
    // Where less is given already, that holds.
    let _ = setrlimit(Resource::Nproc, limit);
    sys::storm()
}

/// Stores each letter that comes in by one pipe at the front of a file through a shared mapping, and says so
/// on another. The mapping has no descriptor; a plus makes it, a minus takes it away, a dot is the end.
fn map(file: &str, orders: &str, answers: &str) -> io::Result<Vec<String>> {
    let mut mapping = None;
    loop {
        let order = fs::read(orders)?;
        match (order.first(), &mapping) {
            (Some(b'+'), _) => {
                let file = fs::File::options().read(true).write(true).open(file)?;
                mapping = Some(sys::Mapping::new(&file)?);
            }
            (Some(b'-'), _) => mapping = None,
            (Some(b'.') | None, _) => return Ok(Vec::new()),
            (Some(letter), Some(mapping)) => mapping.store(*letter),
            (Some(_), None) => return Err(io::Error::other("nothing is mapped")),
        }
        fs::write(answers, b"done\n")?;
    }
}

/// Everything between this process and the first one, and that one's other children: the launcher, the
/// guest, init. Where the host's processes can be seen the first one is known by its name, and the
/// warden is its parent.
fn protected_pids() -> io::Result<Vec<i32>> {
    let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    let name = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let above = std::iter::successors(parent(own), |pid| parent(*pid));
    // What it forked has its name too.
    let first = above.take(64).filter(|pid| name(*pid) == "bastide-init\n").last().unwrap_or(1);
    let mut found = vec![first];
    if first != 1 {
        found.extend(parent(first));
    }
    for entry in fs::read_dir("/proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        if parent(pid) == Some(first) {
            found.push(pid);
        }
    }
    Ok(found)
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn processes() -> io::Result<Vec<String>> {
    let mut reached = Vec::new();
    for pid in protected_pids()? {
        for (what, answer) in sys::attack(pid) {
            // The kernel accepts a signal to the first process and then drops it.
            let dropped = pid == 1 && what.starts_with("kill");
            if answer.is_ok() && !dropped {
                reached.push(format!("{what} {pid}"));
            }
        }
        for file in ["mem", "environ", "fd/0", "root/etc"] {
            if fs::File::open(format!("/proc/{pid}/{file}")).is_ok() {
                reached.push(format!("open /proc/{pid}/{file}"));
            }
        }
    }
    if sys::kill_everybody().is_ok() {
        reached.push("kill -1".to_owned());
    }
    Ok(reached)
}

fn descriptors() -> io::Result<Vec<String>> {
    let mut open: Vec<u32> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The listing itself needs one.
        if !target.to_string_lossy().ends_with("/fd") {
            open.extend(entry.file_name().to_string_lossy().parse::<u32>());
        }
    }
    open.sort_unstable();
    Ok(open.iter().map(ToString::to_string).collect())
}

fn connect(host: &str, port: &str) -> Vec<String> {
    let Ok(address) = format!("{host}:{port}").parse() else {
        return vec!["bad address".to_owned()];
    };
    match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
        Ok(_) => vec![format!("connected to {address}")],
        Err(_) => Vec::new(),
    }
}

fn loopback() -> io::Result<Vec<String>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.write_all(b"hello")?;
    let mut received = [0; 5];
    server.read_exact(&mut received)?;
    Ok(if &received == b"hello" { vec!["talked over loopback".to_owned()] } else { Vec::new() })
}

/// Sends everything back to whoever connects, until it is ended.
fn echo(address: &str) -> io::Result<Vec<String>> {
    let listener = TcpListener::bind(address)?;
    io::stdout().write_all(b"listening\n")?;
    for client in listener.incoming() {
        let mut from = client?;
        let mut to = from.try_clone()?;
        std::thread::spawn(move || {
            io::copy(&mut from, &mut to)?;
            to.shutdown(std::net::Shutdown::Write)
        });
    }
    Ok(Vec::new())
}

/// Talks to the guest as somebody who knows everything but the token.
fn guest(path: &str) -> Vec<String> {
    let Ok(mut guest) = UnixStream::connect(path) else {
        return vec!["cannot connect".to_owned()];
    };
    let greeting = bastide_proto::hello::hello(&bastide_proto::hello::Token([0; 32]));
    let said = guest.write_all(&greeting).and_then(|()| guest.write_all(&[0; 64]));
    let mut received = Vec::new();
    // A guest that closes the connection while we speak is one that does not listen.
    let read = said.and_then(|()| guest.read_to_end(&mut received).map(drop));
    let refused = read.as_ref().err().map(io::Error::kind);
    match refused {
        None | Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            vec!["connected".to_owned(), format!("heard {} bytes", received.len())]
        }
        Some(kind) => vec![format!("connected, then {kind}")],
    }
}

/// Listens in somebody's place, and says what it hears from the first who comes.
fn listen(path: &str) -> io::Result<Vec<String>> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    io::stdout().write_all(b"listening\n")?;
    let mut received = Vec::new();
    listener.accept()?.0.read_to_end(&mut received)?;
    Ok(vec![format!("heard {} bytes", received.len())])
}

fn sockets(path: &str, name: &str, datagrams: &str) -> io::Result<Vec<String>> {
    let mut reached = Vec::new();
    if UnixStream::connect(path).is_ok() {
        reached.push(format!("connected to {path}"));
    }
    if UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?).is_ok() {
        reached.push(format!("connected to @{name}"));
    }
    // A socket for datagrams can be connected anew, also one of a pair.
    if let Ok((one, _other)) = UnixDatagram::pair()
        && (one.connect(datagrams).is_ok() || one.send_to(b"x", datagrams).is_ok())
    {
        reached.push(format!("connected one of a pair to {datagrams}"));
    }
    if UnixDatagram::unbound().is_ok_and(|socket| socket.connect(datagrams).is_ok()) {
        reached.push(format!("connected to {datagrams}"));
    }
    Ok(reached)
}
