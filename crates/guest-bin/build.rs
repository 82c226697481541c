//! Builds the guest and its loader, each as one static program; see README.md for what is easy to get wrong here.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything through its environment"
)]

mod static_program;

use static_program::Program;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=static_program.rs");
    let guest = Program {
        package: "bastide-guest",
        variable: "BASTIDE_GUEST",
        sources: &["crates/guest", "crates/proto", "crates/wire"],
        folder: "guest",
        // Small and quick to start, and no unwinding: a guest that panics is a guest that ended.
        profile: &[
            "profile.release.opt-level=\"s\"",
            "profile.release.lto=true",
            "profile.release.codegen-units=1",
            "profile.release.panic=\"abort\"",
            "profile.release.strip=\"debuginfo\"",
        ],
    };
    guest.embed()?;
    let loader = Program {
        package: "bastide-loader",
        variable: "BASTIDE_LOADER",
        sources: &["crates/loader"],
        folder: "guest",
        profile: &[
            "profile.release.opt-level=\"s\"",
            "profile.release.lto=true",
            "profile.release.codegen-units=1",
            "profile.release.panic=\"abort\"",
            "profile.release.strip=true",
        ],
    };
    // Nothing is there that could move a program to where it was loaded.
    loader.embed_with(&["-Crelocation-model=static"], &["--features", "bare"])
}
