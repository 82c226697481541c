//! The stand-in for Docker's `sbx`, as a program. It gives no microVM.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bastide_sbx_stand_in::main(std::env::args().skip(1).collect())
}
