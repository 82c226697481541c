//! The one program of every sandbox. Hosts start it; people do not.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use bastide_guest::container::{self, HostWait, Rendezvous};
use bastide_guest::warden::Removed;
use bastide_guest::{deliver, dial, warden};
use bastide_proto::container::CALLS;
use bastide_proto::pod::{DELIVER, POD, POOL};

fn main() -> ExitCode {
    // The first word tells it who it is.
    let mut words = std::env::args_os().skip(1);
    let served = match words.next().as_deref().and_then(OsStr::to_str) {
        // After that comes the folder it was started from, for whoever looks at its command line.
        Some("warden") => match words.next() {
            Some(word) if word == "zygote" => warden::zygote::run(),
            Some(_) | None => warden::run(),
        },
        Some("container") => match words.next() {
            None => container::run(Rendezvous::Waits),
            Some(word) if word == CALLS => container::run(Rendezvous::Calls),
            Some(word) if word == POD => container::run(Rendezvous::Pod(HostWait::Short)),
            Some(word) if word == POOL => container::run(Rendezvous::Pod(HostWait::Endless)),
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
        },
        Some("container-warden") => warden::container::run(),
        Some("dial") => dial::run(),
        Some(word) if word == DELIVER => match (words.next(), words.next()) {
            (Some(from), Some(to)) => deliver::run(Path::new(&from), Path::new(&to)),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        },
        Some("remove") => remove(words.next(), Removed::Session),
        Some("remove-tree") => remove(words.next(), Removed::Tree),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn remove(folder: Option<OsString>, what: Removed) -> io::Result<()> {
    let folder = folder.ok_or(io::ErrorKind::InvalidInput)?;
    warden::remove(Path::new(&folder), what)
}
