//! How a program is embedded: compressed, or as it is where something writes over a part of it.

use bastide_guest_bin::EmbeddedProgram;

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
