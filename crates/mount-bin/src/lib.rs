#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use bastide_guest_bin::EmbeddedProgram;

/// The mount program.
pub static MOUNT: EmbeddedProgram = EmbeddedProgram::new(
    "mount",
    include_bytes!(concat!(env!("OUT_DIR"), "/bastide-mount.zst")),
    env!("BASTIDE_MOUNT_LENGTH"),
    env!("BASTIDE_MOUNT_HASH"),
);
