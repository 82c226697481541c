//! The one program of every sandbox. Hosts start it; people do not.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bastide_guest::warden;

fn main() -> ExitCode {
    // Exactly one word tells it who it is.
    let served = match std::env::args().nth(1).as_deref() {
        Some("warden") => warden::run(),
        _ => Err(std::io::ErrorKind::InvalidInput.into()),
    };
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
