//! `cargo xtask dist`: what is shipped: a static program, the wheel, checksums, and what they are made of.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::check::guest::tells_nothing_of_its_builder;
use crate::shell::{Outcome, cargo, cargo_home, read, run as run_command, say, step, top};

/// The machine it is built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where everything is put.
const OUT: &str = "target/dist-out";

/// The largest the program may be.
const MOST_BYTES: u64 = 15_000_000;

/// What SQLite is built without: searches of text and of space, which the index of sessions has none of.
const SQLITE_FLAGS: &str = "-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS \
    -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE -USQLITE_ENABLE_DBSTAT_VTAB";

/// What zstd is built without: ways of compressing that no level has which is used.
const ZSTD_FLAGS: &str = "-DZSTD_EXCLUDE_GREEDY_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_LAZY_BLOCK_COMPRESSOR \
    -DZSTD_EXCLUDE_LAZY2_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_BTLAZY2_BLOCK_COMPRESSOR \
    -DZSTD_EXCLUDE_BTOPT_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_BTULTRA_BLOCK_COMPRESSOR";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Build the program twice, in two folders, and fail if the two differ
    #[arg(long)]
    pub(crate) twice: bool,
    /// Leave the wheel out
    #[arg(long)]
    pub(crate) no_wheel: bool,
}

/// Builds everything that is shipped.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let out = top().join(OUT);
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    step("the static program");
    let program = program()?;
    check_static(&program)?;
    check_anonymous(&program)?;
    let name = format!("bastide-{}-x86_64-linux", env!("CARGO_PKG_VERSION"));
    let shipped = out.join(&name);
    fs::copy(&program, &shipped)?;
    fs::set_permissions(&shipped, fs::Permissions::from_mode(0o755))?;
    if arguments.twice {
        step("the same once more, to compare");
        let again = build(&top().join("target/dist-again"))?;
        if fs::read(&program)? != fs::read(&again)? {
            let (one, other) = (program.display(), again.display());
            return Err(format!("two builds differ: {one} and {other}").into());
        }
        say("both builds are the same, byte by byte");
    }
    step("what it is made of");
    fs::write(out.join("COMPONENTS.txt"), components()?)?;
    if !arguments.no_wheel {
        step("the wheel");
        run_command(&mut cargo(&["xtask", "python", "--wheel", "--no-upstream"]))?;
        for wheel in fs::read_dir(top().join("target/python/wheels"))? {
            let wheel = wheel?;
            fs::copy(wheel.path(), out.join(wheel.file_name()))?;
        }
    }
    step("checksums");
    let sums = checksums(&out)?;
    fs::write(out.join("SHA256SUMS"), &sums)?;
    say(sums.trim_end());
    say(&format!("all of it is in {OUT}"));
    Ok(())
}

/// The program that is shipped, built.
pub(crate) fn program() -> Outcome<PathBuf> {
    build(&top().join("target/dist"))
}

/// Builds the program in a folder of its own. Nothing of where it was built is in it.
fn build(folder: &Path) -> Outcome<PathBuf> {
    let top = top().canonicalize()?;
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned(), remap(&top, "/bastide")];
    flags.push(remap(&cargo_home()?, "/cargo"));
    flags.push(remap(folder, "/target"));
    // Half a megabyte of relocations in a few kilobytes (DT_RELR); functions that are the same, once.
    flags.push("-Clink-arg=-Wl,-z,pack-relative-relocs,--icf=all".to_owned());
    // Nothing unwinds where a panic aborts: the compiler makes no tables for it, and the linker leaves out what others made.
    flags.push("-Cforce-unwind-tables=no".to_owned());
    let script = top.join("crates/guest-bin/no_unwind_tables.ld");
    flags.push(format!("-Clink-arg=-Wl,--no-eh-frame-hdr,-T,{}", script.display()));
    // Code that stands in many places is called instead.
    flags.push("-Cllvm-args=-enable-machine-outliner=always".to_owned());
    let build =
        ["build", "--locked", "--profile", "dist", "--package", "bastide-cli", "--target", TARGET];
    let mut command = cargo(&build);
    command.arg("--target-dir").arg(folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    command.env("LIBSQLITE3_FLAGS", SQLITE_FLAGS).env("CFLAGS", ZSTD_FLAGS);
    run_command(&mut command)?;
    Ok(folder.join(TARGET).join("dist/bastide"))
}

/// Fails on a program that needs another file to start.
fn check_static(program: &Path) -> Outcome {
    let headers = read(Command::new("readelf").args(["--program-headers", "--wide"]).arg(program))?;
    if headers.contains("INTERP") {
        return Err(format!("{} is not static", program.display()).into());
    }
    let size = fs::metadata(program)?.len();
    if size > MOST_BYTES {
        return Err(
            format!("{} has {size} bytes, more than {MOST_BYTES}", program.display()).into()
        );
    }
    say(&format!("static, {:.1} MB", size as f64 / 1e6));
    Ok(())
}

/// Fails where the program, or one that is embedded in it, says where it was built.
fn check_anonymous(program: &Path) -> Outcome {
    let embedded =
        top().join("target/dist").join(TARGET).join("guest").join(TARGET).join("release");
    let embedded =
        ["bastide-guest", "bastide-loader", "bastide-sidecar"].map(|name| embedded.join(name));
    for program in [program.to_owned()].iter().chain(&embedded) {
        tells_nothing_of_its_builder(program, &fs::read(program)?)?;
    }
    say("neither it nor what is embedded says where it was built");
    Ok(())
}

/// Every package that is linked into the program, with its version and licence.
fn components() -> Outcome<String> {
    let mut all = BTreeMap::new();
    for package in ["bastide-cli", "bastide-guest", "bastide-loader", "bastide-sidecar"] {
        let tree =
            ["tree", "--locked", "--edges", "normal", "--prefix", "none", "--target", TARGET];
        let mut tree = cargo(&tree);
        tree.args(["--package", package, "--format", "{p}\t{l}"]);
        for line in read(&mut tree)?.lines() {
            let (package, licence) = line.split_once('\t').unwrap_or((line, ""));
            let mut words = package.split(' ');
            let (name, version) =
                (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let licence = licence.trim_end_matches(" (*)").trim();
            all.insert((name.to_owned(), version.to_owned()), licence.to_owned());
        }
    }
    let lines =
        all.iter().map(|((name, version), licence)| format!("{name} {version}: {licence}\n"));
    let head = "Packages in the program `bastide`, its guest, the loader of that and its sidecar, with their licences.\n\n";
    Ok(lines.fold(head.to_owned(), |text, line| text + &line))
}

fn checksums(out: &Path) -> Outcome<String> {
    let mut names: Vec<_> = fs::read_dir(out)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_, std::io::Error>>()?;
    names.sort();
    let output = Command::new("sha256sum").args(&names).current_dir(out).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("sha256sum: {}", output.status).into()),
    }
}
