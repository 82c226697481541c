//! `cargo xtask dist`: what is shipped: a static program, the wheel, checksums, and what they are made of.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, cargo, read, run as run_command, say, step, top};

/// The machine it is built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where everything is put.
const OUT: &str = "target/dist-out";

/// What SQLite is built without: searches of text and of space, which the index of sessions has none of.
const SQLITE_FLAGS: &str = "-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS \
    -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE -USQLITE_ENABLE_DBSTAT_VTAB";

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
    let registry = read(Command::new("sh").args(["-c", "echo ${CARGO_HOME:-$HOME/.cargo}"]))?;
    flags.push(remap(Path::new(registry.trim()), "/cargo"));
    flags.push(remap(folder, "/target"));
    // Half a megabyte of relocations in a few kilobytes (DT_RELR).
    flags.push("-Clink-arg=-Wl,-z,pack-relative-relocs".to_owned());
    let build =
        ["build", "--locked", "--profile", "dist", "--package", "bastide-cli", "--target", TARGET];
    let mut command = cargo(&build);
    command.arg("--target-dir").arg(folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    command.env("LIBSQLITE3_FLAGS", SQLITE_FLAGS);
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
    say(&format!("static, {:.1} MB", size as f64 / 1e6));
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
