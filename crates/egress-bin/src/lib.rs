#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use bastide_guest_bin::EmbeddedProgram;

/// The egress program.
pub static EGRESS: EmbeddedProgram = EmbeddedProgram::new(
    "egress",
    include_bytes!(concat!(env!("OUT_DIR"), "/bastide-egress.zst")),
    env!("BASTIDE_EGRESS_LENGTH"),
    env!("BASTIDE_EGRESS_HASH"),
);
