// Builds a program of this workspace statically, and compresses it for a crate that embeds it.

use std::error::Error;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use lzma_rust2::{FilterType, XzOptions, XzWriter};

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

/// How variables begin by which cargo tells a build script about its own crate.
const OWN: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CFG_", "CARGO_FEATURE_"];

/// Names a program that has the others in it: what is built is installed with that one, and has none itself.
const CARRIER: &str = "BASTIDE_CARRIER";

/// Flags of the compiler. Nothing unwinds where a panic aborts, and tables for it are a tenth of a program: the compiler
/// makes none, and the linker leaves out those of what was compiled before.
const FLAGS: [&str; 3] = [
    "-Ctarget-feature=+crt-static",
    "-Cforce-unwind-tables=no",
    "-Clink-arg=-Wl,--no-eh-frame-hdr",
];

/// What the linker leaves out, by the path in the workspace.
const LINKER_SCRIPT: &str = "crates/guest-bin/no_unwind_tables.ld";

/// How hard a program is compressed in builds that are to be quick.
const LEVEL: i32 = 3;

/// What a guest has in it that can do without walls. `cargo xtask walls` writes over what follows in programs that embed
/// the guest, so it is embedded as it is.
const LIST_OF_WALLS: &[u8] = b"bastide-without:";

/// A program to embed.
pub(crate) struct Program {
    /// The crate, and the program of it.
    pub(crate) package: &'static str,
    /// The variable that names one built elsewhere, and how the variables of what is embedded begin.
    pub(crate) variable: &'static str,
    /// What it is made of, besides the workspace's own files.
    pub(crate) sources: &'static [&'static str],
    /// The folder it is built in, among those of the outer build.
    pub(crate) folder: &'static str,
    /// Settings of the profile.
    pub(crate) profile: &'static [&'static str],
}

impl Program {
    /// Builds and compresses it, and tells the crate where it is.
    pub(crate) fn embed(&self) -> Result<(), Box<dyn Error>> {
        self.embed_with(&[], &[])
    }

    /// As [`embed`](Self::embed), with further flags of the compiler and further words for cargo.
    pub(crate) fn embed_with(&self, flags: &[&str], words: &[&str]) -> Result<(), Box<dyn Error>> {
        let Self { package, variable, .. } = self;
        println!("cargo::rerun-if-env-changed={variable}");
        println!("cargo::rerun-if-env-changed={CARRIER}");
        let out = PathBuf::from(env::var("OUT_DIR")?);
        let program = match env::var_os(variable) {
            Some(given) => {
                let given = PathBuf::from(given);
                println!("cargo::rerun-if-changed={}", given.display());
                given
            }
            // A program this script writes itself is always newer than the script's last run: watched, it
            // would be built again every time.
            None => self.build(&out, flags, words)?,
        };
        let mut bytes = fs::read(&program)?;
        truncate_to_segments(&mut bytes);
        let mut compressed = match position(&bytes, LIST_OF_WALLS) {
            Some(_) => bytes.clone(),
            None => compress(&bytes)?,
        };
        let mut place = String::new();
        if let Some(carrier) = env::var_os(CARRIER) {
            let carrier = PathBuf::from(carrier);
            println!("cargo::rerun-if-changed={}", carrier.display());
            let offset = position(&fs::read(&carrier)?, &compressed);
            let offset = offset.ok_or_else(|| {
                format!("{} has no {package} of this build in it", carrier.display())
            })?;
            place = format!("{offset}:{}", compressed.len());
            compressed.clear();
        }
        fs::write(out.join(format!("{package}.packed")), compressed)?;
        println!("cargo::rustc-env={variable}_PLACE={place}");
        println!("cargo::rustc-env={variable}_LENGTH={}", bytes.len());
        println!("cargo::rustc-env={variable}_HASH={}", blake3::hash(&bytes).to_hex());
        Ok(())
    }

    fn build(&self, out: &Path, flags: &[&str], words: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
        let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
        for source in self.sources.iter().chain(&["Cargo.toml", "Cargo.lock", LINKER_SCRIPT]) {
            // Relative to the package: a tree that moved, or a second checkout over the same target folder, builds nothing anew.
            println!("cargo::rerun-if-changed=../../{source}");
        }
        let target = env::var("TARGET")?;
        let target_dir = outer_target_dir(out).join(self.folder);
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&workspace);
        for (name, _) in env::vars_os().filter(|(name, _)| is_outer(name)) {
            cargo.env_remove(name);
        }
        // Whoever has the program is told nothing of who built it; two who build the same get the same.
        let remap = format!("--remap-path-prefix={}=/cargo", cargo_home().display());
        // Flags are kept apart by this.
        let script = workspace.canonicalize()?.join(LINKER_SCRIPT);
        let script = format!("-Clink-arg=-Wl,-T,{}", script.display());
        let flags = [&FLAGS[..], &[remap.as_str(), &script], flags].concat().join("\u{1f}");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
        cargo
            .args(["build", "--quiet", "--locked", "--release", "--package", self.package])
            .args(words);
        cargo.arg("--target").arg(&target).arg("--target-dir").arg(&target_dir);
        for setting in self.profile {
            cargo.arg("--config").arg(setting);
        }
        let status = cargo.status()?;
        if !status.success() {
            return Err(format!("building {} failed: {status}", self.package).into());
        }
        Ok(target_dir.join(target).join("release").join(self.package))
    }
}

/// Compresses a program: as small as can be, once for each build of it, where it is to be shipped.
fn compress(bytes: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    if is_debug() {
        return Ok(zstd::bulk::compress(bytes, LEVEL)?);
    }
    let mut options = XzOptions::with_preset(9);
    options.prepend_pre_filter(FilterType::BcjX86, 0);
    let mut writer = XzWriter::new(Vec::new(), options)?;
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// Whether this is a build to try something out, which nobody wants to wait for.
pub(crate) fn is_debug() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "debug")
}

/// Where cargo keeps the sources of dependencies. Our own are known to the compiler by paths within the tree.
fn cargo_home() -> PathBuf {
    env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    )
}

/// Whether a variable is about the outer build alone. What cargo tells build scripts counts too: some of a program's
/// dependencies (`ring`) are built anew whenever one of those variables changes, as it does from one crate to the next.
fn is_outer(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    OUTER.contains(&name) || OWN.iter().any(|prefix| name.starts_with(prefix))
}

/// Takes away what no kernel loads: symbols, which `cargo xtask check` wants of what was built, and the table of sections.
/// What is no program of 64 bits stays as it is.
fn truncate_to_segments(bytes: &mut Vec<u8>) {
    let read = |at: usize, length: usize| {
        let field = bytes.get(at..at + length)?;
        usize::try_from(field.iter().rev().fold(0_u64, |all, byte| (all << 8) | u64::from(*byte)))
            .ok()
    };
    let end = || {
        // The table of segments: where it is, how long each entry is, and how many there are.
        let (table, each, count) = (read(0x20, 8)?, read(0x36, 2)?, read(0x38, 2)?);
        let ends = (0..count).map(|entry| {
            let at = table + entry * each;
            Some(read(at + 0x08, 8)? + read(at + 0x20, 8)?)
        });
        ends.collect::<Option<Vec<_>>>()?.into_iter().max()
    };
    if !bytes.starts_with(b"\x7fELF\x02") {
        return;
    }
    if let Some(end) = end().filter(|end| (0x40..bytes.len()).contains(end)) {
        bytes.truncate(end);
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
    }
}

/// Where in `all` the bytes `part` begin.
fn position(all: &[u8], part: &[u8]) -> Option<usize> {
    let (first, _) = part.split_first()?;
    let starts = all.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.map(|(at, _)| at).find(|at| all[*at..].starts_with(part))
}

/// The folder of the outer build; `OUT_DIR` is `target/PROFILE/build/NAME/out`. Programs are built beside its
/// profiles: one for all of its features, with dependencies that are compiled once.
fn outer_target_dir(out: &Path) -> PathBuf {
    let outer = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    outer.unwrap_or(out).to_owned()
}
