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
        ("ids", is_root_of_the_host()?),
    ];
    Ok(found.iter().filter(|(_, open)| *open).map(|(word, _)| (*word).to_owned()).collect())
}

/// Whether this is uid 0 with any power, in no user namespace but the first.
fn is_root_of_the_host() -> io::Result<bool> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let is_first = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    let status = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_ascii_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    let has_power = field("CapEff:").bytes().any(|digit| digit != b'0');
    Ok(is_first && has_power && field("Uid:") == "0")
}
