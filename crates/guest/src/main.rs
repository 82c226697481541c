//! The one program of every sandbox. Hosts start it; people do not.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use bastide_guest::warden::Removed;
use bastide_guest::{container, dial, warden};

fn main() -> ExitCode {
    // The first word tells it who it is.
    let mut words = std::env::args_os().skip(1);
    let served = match words.next().as_deref().and_then(OsStr::to_str) {
        Some("warden") => match words.next() {
            None => warden::run(),
            Some(word) if word == "nursery" => warden::nursery::run(),
            Some(_) => Err(io::ErrorKind::InvalidInput.into()),
        },
        Some("container") => container::run(),
        Some("container-warden") => warden::container::run(),
        Some("dial") => dial::run(),
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
