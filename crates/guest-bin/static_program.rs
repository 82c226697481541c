// Builds a program of this workspace statically, and compresses it for a crate that embeds it.

use std::error::Error;
use std::ffi::OsStr;
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

/// How variables begin by which cargo tells a build script about its own crate.
const OWN: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CFG_", "CARGO_FEATURE_"];

/// Names a program that has the others in it: what is built is installed with that one, and has none itself.
const CARRIER: &str = "BASTIDE_CARRIER";

/// How hard a program is compressed: it takes seconds, once for each build of it.
const LEVEL: i32 = 19;

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
        let bytes = fs::read(&program)?;
        let mut compressed = match position(&bytes, LIST_OF_WALLS) {
            Some(_) => bytes.clone(),
            None => zstd::bulk::compress(&bytes, LEVEL)?,
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
        fs::write(out.join(format!("{package}.zst")), compressed)?;
        println!("cargo::rustc-env={variable}_PLACE={place}");
        println!("cargo::rustc-env={variable}_LENGTH={}", bytes.len());
        println!("cargo::rustc-env={variable}_HASH={}", blake3::hash(&bytes).to_hex());
        Ok(())
    }

    fn build(&self, out: &Path, flags: &[&str], words: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
        let workspace = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..");
        for source in self.sources.iter().chain(&["Cargo.toml", "Cargo.lock"]) {
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
        // Flags are kept apart by this.
        let flags = [&["-Ctarget-feature=+crt-static"], flags].concat().join("\u{1f}");
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

/// Whether a variable is about the outer build alone. What cargo tells build scripts counts too: some of a program's
/// dependencies (`ring`) are built anew whenever one of those variables changes, as it does from one crate to the next.
fn is_outer(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    OUTER.contains(&name) || OWN.iter().any(|prefix| name.starts_with(prefix))
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
