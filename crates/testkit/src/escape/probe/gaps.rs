//! What a session does not hold, found out by trying. Each is named by the word of the receipt.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use super::sys;

pub(super) fn gaps(file: &str, pid: &str, port: &str, socket: &str) -> io::Result<Vec<String>> {
    let pid: i32 = pid.parse().map_err(io::Error::other)?;
    let holds_canary = |path: String| {
        fs::read(path).is_ok_and(|text| text.windows(14).any(|part| part == b"bastide-canary"))
    };
    let metadata = fs::metadata(file);
    let changed = metadata.as_ref().is_ok_and(|found| {
        let mode = fs::Permissions::from_mode(found.permissions().mode() | 0o100);
        fs::set_permissions(file, mode).is_ok()
    });
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let address = format!("127.0.0.1:{port}");
    let found = [
        ("file names", metadata.is_ok()),
        ("file contents", fs::read(file).is_ok() || fs::write(file, "").is_ok()),
        ("file metadata", changed),
        ("process list", line == b"sleep\x007111\x00"),
        ("process environment", holds_canary(format!("/proc/{pid}/environ"))),
        ("signals", line == b"sleep\x007111\x00" && sys::may_signal(pid)),
        ("network", TcpStream::connect(address).is_ok()),
        ("Unix sockets", UnixStream::connect(socket).is_ok()),
    ];
    Ok(found.iter().filter(|(_, open)| *open).map(|(word, _)| (*word).to_owned()).collect())
}
