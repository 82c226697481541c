//! Builds the mount program statically.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything through its environment"
)]

#[path = "../guest-bin/static_program.rs"]
mod static_program;

use static_program::Program;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../guest-bin/static_program.rs");
    let mount = Program {
        package: "bastide-mount",
        variable: "BASTIDE_MOUNT",
        sources: &["crates/mount", "crates/proto"],
        // Every byte that is read passes through it. No unwinding: another one goes on where it ended.
        profile: &[
            "profile.release.opt-level=2",
            "profile.release.lto=\"thin\"",
            "profile.release.panic=\"abort\"",
            "profile.release.strip=\"debuginfo\"",
        ],
    };
    mount.embed()
}
