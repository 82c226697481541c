//! Answers FUSE for the mounts of a session; its standard input is the channel to its warden.

use std::os::fd::AsFd;
use std::process::ExitCode;

use bastide_mount::{Channel, serve};

fn main() -> ExitCode {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else {
        return ExitCode::FAILURE;
    };
    // What went wrong the warden hears over the channel; there is nobody else to tell.
    match Channel::new(socket).and_then(serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
