//! Builds the sidecar program statically.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything through its environment"
)]

#[path = "../guest-bin/static_program.rs"]
mod static_program;

use static_program::{Program, is_debug};

/// Most of what passes through it passes through the kernel or a cipher. No unwinding: another one goes on where it ended.
const RELEASE: &[&str] = &[
    "profile.release.opt-level=\"z\"",
    "profile.release.package.ring.opt-level=3",
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
    let is_debug = is_debug();
    let sidecar = Program {
        package: "bastide-sidecar",
        variable: "BASTIDE_SIDECAR",
        sources: &[
            "crates/sidecar",
            "crates/mount",
            "crates/egress",
            "crates/model",
            "crates/proto",
        ],
        folder: if is_debug { "sidecar-debug" } else { "guest" },
        profile: if is_debug { DEBUG } else { RELEASE },
    };
    sidecar.embed()
}
