//! Builds the guest as one static program; see README.md for what is easy to get wrong here.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script is told everything through its environment"
)]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What the outer cargo or a tool around it says that must not reach the inner one.
const OUTER: [&str; 7] = [
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTFLAGS",
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CARGO_BUILD_TARGET",
    "CARGO_TARGET_DIR",
];

/// Small and quick to start, and no unwinding: a guest that panics is a guest that ended.
const PROFILE: [&str; 5] = [
    "profile.release.opt-level=\"s\"",
    "profile.release.lto=true",
    "profile.release.codegen-units=1",
    "profile.release.panic=\"abort\"",
    "profile.release.strip=\"debuginfo\"",
];

/// How hard the guest is compressed: it takes two seconds, once for each guest.
const LEVEL: i32 = 19;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=BASTIDE_GUEST");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let guest = match env::var_os("BASTIDE_GUEST") {
        Some(given) => {
            let given = PathBuf::from(given);
            println!("cargo::rerun-if-changed={}", given.display());
            given
        }
        // A program this script writes itself is always newer than the script's last run: watched, it
        // would be built again every time.
        None => build(&out)?,
    };
    let bytes = fs::read(&guest)?;
    let compressed = zstd::bulk::compress(&bytes, LEVEL)?;
    fs::write(out.join("bastide-guest.zst"), compressed)?;
    println!("cargo::rustc-env=BASTIDE_GUEST_LENGTH={}", bytes.len());
    println!("cargo::rustc-env=BASTIDE_GUEST_HASH={}", blake3::hash(&bytes).to_hex());
    Ok(())
}

/// One folder for all profiles and features of the outer build, beside them: the guest is the same for
/// each, and its dependencies are compiled once. `OUT_DIR` is `target/PROFILE/build/NAME/out`.
fn target_dir(out: &Path) -> PathBuf {
    let outer = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    outer.unwrap_or(out).join("guest")
}

fn build(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
    for source in ["crates/guest", "crates/proto", "crates/wire", "Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let target = env::var("TARGET")?;
    let target_dir = target_dir(out);
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&workspace);
    for name in OUTER {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    cargo.args(["build", "--quiet", "--locked", "--release", "--package", "bastide-guest"]);
    cargo.arg("--target").arg(&target).arg("--target-dir").arg(&target_dir);
    for setting in PROFILE {
        cargo.arg("--config").arg(setting);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the guest failed: {status}").into());
    }
    Ok(target_dir.join(target).join("release/bastide-guest"))
}
