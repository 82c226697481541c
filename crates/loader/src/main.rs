//! The first program of a pod; see README.md.
#![no_std]
#![no_main]
#![deny(unsafe_code)]

extern crate alloc;

mod sys;

use alloc::format;
use core::ffi::CStr;

use bastide_loader::{Failure, open};

/// Runs until it is another program, or says why it cannot become one.
fn run(arguments: &[*const u8], environment: *const *const u8) -> i32 {
    let failure = match start(arguments, environment) {
        Err(failure) => failure,
        Ok(never) => match never {},
    };
    let line = format!("bastide: {failure}\n");
    sys::say(&line);
    failure.code()
}

fn start(
    arguments: &[*const u8],
    environment: *const *const u8,
) -> Result<core::convert::Infallible, Failure> {
    let word = |number: usize| sys::argument(arguments, number).and_then(text);
    let (Some(loader), Some(hash), Some(_)) = (word(0), word(1), word(2)) else {
        return Err(Failure::Usage);
    };
    let guest = open(loader, hash)?;
    // The hash makes room for the name of the program.
    let errno = sys::execute(&guest.file, &guest.path, &arguments[1..], environment);
    Err(guest.failed(errno))
}

fn text(word: &'static CStr) -> Option<&'static str> {
    word.to_str().ok()
}
