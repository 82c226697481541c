//! How a program is embedded: compressed, or as it is where something writes over a part of it.

use std::fs;

use bastide_guest_bin::{EmbeddedProgram, GuestBinary};

const PROGRAM: &[u8] = b"a program, a program, a program";

#[test]
fn gives_a_program_that_is_embedded_as_it_is() {
    let program = EmbeddedProgram::new("guest", PROGRAM, "31", "", "");
    assert_eq!(program.bytes().unwrap(), PROGRAM);
}

#[test]
fn refuses_one_that_is_damaged() {
    let program = EmbeddedProgram::new("guest", PROGRAM, "32", "", "");
    assert!(program.bytes().is_err());
}

#[test]
fn says_nothing_of_who_built_it_and_has_nothing_that_no_kernel_loads() {
    let cache = tempfile::tempdir().unwrap();
    let guest = fs::read(GuestBinary::install(cache.path()).unwrap().path()).unwrap();
    let has = |part: &[u8]| guest.windows(part.len()).any(|window| window == part);
    assert!(has(b"/cargo/registry/src/"), "it does not say where panics come from");
    assert!(!has(b"/.cargo/registry/"), "it names a folder of whoever built it");
    assert_eq!(&guest[0x3c..0x40], [0; 4], "it has a table of sections");
}
