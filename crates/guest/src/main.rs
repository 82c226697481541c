//! The one program of every sandbox. Hosts start it; people do not.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use bastide_guest::container::{self, Way};
use bastide_guest::{dial, warden};
use bastide_proto::container::CALLS;

fn main() -> ExitCode {
    // The first word tells it who it is.
    let mut words = std::env::args_os().skip(1);
    let served = match words.next().as_deref().and_then(OsStr::to_str) {
        // After that comes the folder it was started from, for whoever looks at its command line.
        Some("warden") => match words.next() {
            Some(word) if word == "nursery" => warden::nursery::run(),
            Some(_) | None => warden::run(),
        },
        Some("container") => match words.next() {
            None => container::run(Way::Waits),
            Some(word) if word == CALLS => container::run(Way::Calls),
            Some(_) => Err(std::io::ErrorKind::InvalidInput.into()),
        },
        Some("container-warden") => warden::container::run(),
        Some("dial") => dial::run(),
        Some("remove") => match words.next() {
            Some(folder) => warden::remove(Path::new(&folder)),
            None => Err(std::io::ErrorKind::InvalidInput.into()),
        },
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
