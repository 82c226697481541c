//! A guest that passes descriptors of all kinds: the host takes none but an ordinary file of a device
//! it knows, and only where a call waits for one.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::future::poll_fn;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::link::MuxLink;
use bastide::model::paths::WorkspacePathPolicy;
use bastide::{Connection, ErrorKind, Files, SideSocket};
use bastide_proto::files::{FileOp, FileRequest, Opened, WriteReady};
use bastide_proto::frame::Tag;
use bastide_proto::hello::{HELLO_BYTES, TOKEN_BYTES, Token, welcome};
use bastide_proto::{Accepted, End, Frame, FrameCodec, Request};
use futures::{SinkExt, StreamExt};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_util::codec::Framed;
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

/// Nothing here may take longer, whatever the guest does.
const TIMEOUT: Duration = Duration::from_secs(20);

const SIZE: usize = 3 << 20;

/// What a guest passes when a descriptor is asked for.
type Pass = dyn Fn(u64, &OwnedFd) + Send + Sync;

/// Makes a descriptor.
type Make = dyn Fn() -> OwnedFd + Send + Sync;

/// Passes something for a ticket that makes no sense.
type Forgery = dyn Fn(u64, &OwnedFd, &dyn Fn() -> OwnedFd) + Send + Sync;

/// A guest that has a large file to read or to write, and passes what `pass` says.
async fn guest(mut stream: DuplexStream, socket: OwnedFd, pass: Arc<Pass>) {
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await.unwrap();
    stream.write_all(&welcome()).await.unwrap();
    let config = yamux::Config::default();
    let mut connection = yamux::Connection::new(stream.compat(), config, yamux::Mode::Server);
    let socket = Arc::new(socket);
    while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
        let (socket, pass) = (Arc::clone(&socket), Arc::clone(&pass));
        tokio::spawn(async move {
            let mut call = Framed::new(stream.compat(), FrameCodec);
            let Some(Ok(frame)) = call.next().await else { return };
            let request = bastide_proto::decode(&frame.body).unwrap();
            let Request::Files(FileRequest { op, .. }) = request else { return };
            send(&mut call, Tag::Accepted, &Accepted::default()).await;
            match op {
                FileOp::Read(read) => {
                    pass(read.pass.unwrap().ticket, &socket);
                    let opened = Opened { size: SIZE as u64, passed: true };
                    send(&mut call, Tag::Item, &opened).await;
                }
                FileOp::Write(write) => {
                    pass(write.pass.unwrap(), &socket);
                    send(&mut call, Tag::Item, &WriteReady { passed: true }).await;
                    // Until the host says that it is done, or gives up.
                    while let Some(Ok(frame)) = call.next().await {
                        if frame.tag == Tag::InputEnd {
                            break;
                        }
                    }
                }
                _ => return,
            }
            send(&mut call, Tag::End, &End::Done).await;
            drop(call.close().await);
        });
    }
}

type Call = Framed<tokio_util::compat::Compat<yamux::Stream>, FrameCodec>;

async fn send<T: serde::Serialize>(call: &mut Call, tag: Tag, message: &T) {
    // The host may have given up already.
    drop(call.send(Frame::new(tag, bastide_proto::encode(message).unwrap())).await);
}

fn packet(socket: &OwnedFd, bytes: &[u8], descriptors: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    // A host that broke the channel off does not listen any more.
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
}

/// What the host makes of a guest that passes like this: the length of what it read, and how writing
/// went.
async fn receive_from(
    devices: Vec<u64>,
    pass: impl Fn(u64, &OwnedFd) + Send + Sync + 'static,
) -> (Result<usize, ErrorKind>, Result<(), ErrorKind>) {
    let (host, far) = duplex(1 << 20);
    let flags = SocketFlags::CLOEXEC;
    let (socket, far_socket) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    tokio::spawn(guest(far, far_socket, Arc::new(pass)));
    let side = Some(SideSocket { socket, devices });
    let connection = Connection {
        stream: Box::new(host),
        token: Token([7; TOKEN_BYTES]),
        side,
        greeted: false,
        outage: std::time::Duration::ZERO,
    };
    let link = MuxLink::connect(connection).await.unwrap();
    let policy = WorkspacePathPolicy::new("/workspace", Vec::new()).unwrap();
    let files = Files::new(&link, &policy, None);
    let calls = async {
        let read = files.read("file").await.map(|content| content.len());
        let written = files.write("file", vec![1; SIZE]).await;
        (read.map_err(|error| error.kind()), written.map_err(|error| error.kind()))
    };
    tokio::time::timeout(TIMEOUT, calls).await.expect("it hangs")
}

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// A file of that size, and its device.
fn file(folder: &Path) -> (std::path::PathBuf, u64) {
    let path = folder.join("file");
    File::create(&path).unwrap().set_len(SIZE as u64).unwrap();
    let device = std::fs::metadata(&path).unwrap().dev();
    (path, device)
}

#[tokio::test]
async fn an_ordinary_file_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = file(folder.path());
    let target = path.clone();
    // For reading the first time, for writing the second.
    let read = receive_from(vec![device], move |ticket, socket| {
        let flags = if ticket == 1 { OFlags::RDONLY } else { OFlags::WRONLY };
        packet(socket, &ticket.to_le_bytes(), &[open(&target, flags)]);
    })
    .await;
    assert_eq!(read, (Ok(SIZE), Ok(())));
    assert_eq!(std::fs::read(path).unwrap(), vec![1; SIZE]);
}

#[tokio::test]
async fn nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = file(folder.path());
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
        .unwrap();
    let folder = folder.path().to_owned();
    let (read_write, other) = (path.clone(), path.clone());
    let proc = std::fs::metadata("/proc/self/mem").unwrap().dev();
    let makers: Vec<(&str, Vec<u64>, Box<Make>)> = vec![
        ("a pipe with a name", vec![device], Box::new(move || open(&fifo, OFlags::RDWR))),
        ("a device", vec![device], Box::new(|| open(Path::new("/dev/zero"), OFlags::RDONLY))),
        ("a folder", vec![device], Box::new(move || open(&folder, OFlags::RDONLY))),
        (
            "a socket",
            vec![device],
            Box::new(|| std::os::unix::net::UnixStream::pair().unwrap().0.into()),
        ),
        ("a file only held", vec![device], Box::new(move || open(&path, OFlags::PATH))),
        ("a file open for both", vec![device], Box::new(move || open(&read_write, OFlags::RDWR))),
        (
            "memory of a process",
            vec![device, proc],
            Box::new(|| open(Path::new("/proc/self/mem"), OFlags::RDONLY)),
        ),
        (
            "a file of another device",
            vec![device + 1],
            Box::new(move || open(&other, OFlags::RDONLY)),
        ),
    ];
    for (what, devices, make) in makers {
        let met = receive_from(devices, move |ticket, socket| {
            packet(socket, &ticket.to_le_bytes(), &[make()]);
        })
        .await;
        assert_eq!(met, (Err(ErrorKind::AgentLost), Err(ErrorKind::AgentLost)), "{what}");
    }
}

#[tokio::test]
async fn a_file_that_is_cut_short_ends_where_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = file(folder.path());
    // It has the size that was said until the host holds it.
    let (read, _) = receive_from(vec![device], move |ticket, socket| {
        packet(socket, &ticket.to_le_bytes(), &[open(&path, OFlags::RDONLY)]);
        File::options().write(true).open(&path).unwrap().set_len(SIZE as u64 / 2).unwrap();
    })
    .await;
    // Nothing waits for the rest, and nothing is made up.
    assert_eq!(read, Ok(SIZE / 2));
}

#[tokio::test]
async fn packets_that_make_no_sense_break_the_channel_off() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = file(folder.path());
    let ordinary = move || open(&path, OFlags::RDONLY);
    let lies: Vec<Box<Forgery>> = vec![
        Box::new(|ticket, socket, _| packet(socket, &ticket.to_le_bytes(), &[])),
        Box::new(|_, socket, make| packet(socket, b"short", &[make()])),
        Box::new(|_, socket, make| packet(socket, &[0; 64], &[make()])),
        Box::new(|ticket, socket, make| {
            packet(socket, &ticket.to_le_bytes(), &[make(), make(), make()]);
        }),
        // One that nobody asked for, and none that somebody did.
        Box::new(|ticket, socket, make| {
            packet(socket, &(ticket + 7).to_le_bytes(), &[make()]);
            packet(socket, &(ticket + 8).to_le_bytes(), &[make()]);
        }),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let make = ordinary.clone();
        let (read, _) =
            receive_from(vec![device], move |ticket, socket| lie(ticket, socket, &make)).await;
        assert_eq!(read, Err(ErrorKind::AgentLost), "lie {number}");
    }
}

#[tokio::test]
async fn a_thousand_at_once_leave_nothing_open() {
    let folder = tempfile::tempdir().unwrap();
    let (path, device) = file(folder.path());
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    let (read, _) = receive_from(vec![device], move |ticket, socket| {
        let socket = socket.try_clone().unwrap();
        let path = path.clone();
        // It blocks when nobody takes them, and ends when the host has broken the channel off.
        drop(std::thread::spawn(move || {
            for number in 0..1000 {
                let descriptor = open(&path, OFlags::RDONLY);
                packet(&socket, &(ticket + 1000 + number).to_le_bytes(), &[descriptor]);
            }
        }));
    })
    .await;
    assert_eq!(read, Err(ErrorKind::AgentLost));
    let deadline = std::time::Instant::now() + TIMEOUT;
    while count() > before + 8 {
        assert!(std::time::Instant::now() < deadline, "{} descriptors are open", count());
        tokio::task::yield_now().await;
    }
}

/// A file system of this process with one file, which can be opened; nobody answers to anything after that.
/// `None` where this machine or this user may not have one.
fn silent_file(target: &Path) -> Option<OwnedFd> {
    const INIT: u32 = 26;
    const OPEN: u32 = 14;
    File::create(target).unwrap();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty()).ok()?;
    let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("silent", target, "fuse", none, options.as_c_str()).ok()?;
    let (path, opened) = (target.to_owned(), std::sync::mpsc::channel());
    std::thread::spawn(move || opened.0.send(open(&path, OFlags::RDONLY)));
    let mut request = vec![0; 1 << 16];
    loop {
        let length = rustix::io::read(&device, &mut request[..]).unwrap();
        assert!(length >= 40, "a request is longer than its header");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let body = match word(4) {
            // The version, and how much is written at a time; the rest may be 0.
            INIT => [
                &7_u32.to_ne_bytes()[..],
                &31_u32.to_ne_bytes(),
                &[0; 12],
                &[0, 16, 0, 0],
                &[0; 40],
            ]
            .concat(),
            OPEN => vec![0; 16],
            other => unreachable!("request {other} comes before the file is open"),
        };
        let size = u32::try_from(16 + body.len()).unwrap();
        let reply = [&size.to_ne_bytes()[..], &[0; 4], &request[8..16], &body].concat();
        rustix::io::write(&device, &reply).unwrap();
        if word(4) == OPEN {
            // Whoever asks anything from here on waits for as long as this process has the device open.
            Box::leak(Box::new(device));
            return Some(opened.1.recv().unwrap());
        }
    }
}

#[tokio::test]
async fn a_file_whose_file_system_never_answers_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    let Some(silent) = silent_file(&target) else {
        eprintln!("skipped: this user may not mount a file system of its own");
        return;
    };
    let device = std::fs::metadata(folder.path()).unwrap().dev();
    // Closing it would wait as well, so nobody here does.
    let silent: &'static OwnedFd = Box::leak(Box::new(silent));
    let (read, _) = receive_from(vec![device], move |ticket, socket| {
        let passed = std::mem::ManuallyDrop::new(silent.try_clone().unwrap());
        packet(socket, &ticket.to_le_bytes(), std::slice::from_ref(&*passed));
    })
    .await;
    // Ends everything that waits for an answer, then goes.
    let unmount = |how| rustix::mount::unmount(&target, how);
    let _still_busy = unmount(rustix::mount::UnmountFlags::FORCE);
    unmount(rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(read, Err(ErrorKind::AgentLost));
}
