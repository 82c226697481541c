//! Builds the egress program statically.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything through its environment"
)]

#[path = "../guest-bin/static_program.rs"]
mod static_program;

use static_program::Program;

/// Every byte that is read passes through it. No unwinding: the warden starts another one.
const RELEASE: &[&str] = &[
    "profile.release.opt-level=\"s\"",
    "profile.release.lto=\"fat\"",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.strip=true",
];

const DEBUG: &[&str] = &[
    "profile.release.opt-level=1",
    "profile.release.lto=\"off\"",
    "profile.release.codegen-units=64",
    "profile.release.panic=\"abort\"",
    "profile.release.strip=\"debuginfo\"",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../guest-bin/static_program.rs");
    // It has a client and a server of HTTPS in it: whoever builds to try something out does not wait for its optimization.
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let egress = Program {
        package: "bastide-egress",
        variable: "BASTIDE_EGRESS",
        sources: &["crates/egress", "crates/model", "crates/proto"],
        folder: if is_debug { "mount-debug" } else { "guest" },
        profile: if is_debug { DEBUG } else { RELEASE },
    };
    egress.embed()
}
