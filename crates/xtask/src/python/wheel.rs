//! The wheel: built, examined, and used by every interpreter there is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, cargo, read, run as run_command, say, step, top, works};

/// What it takes: a linker for the C library of older systems, and what judges wheels.
const TOOLS: [&str; 3] = ["ziglang", "cargo-zigbuild", "auditwheel"];

/// The oldest C library that it is for.
const LIBC: &str = "2.28";

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What it may weigh.
const MOST_BYTES: u64 = 24 << 20;

/// What a wheel has to do in an environment that has nothing else.
const USE: &str = "
import os, shutil, subprocess, sys, sysconfig, tempfile
import bastide
from bastide import sync
program = sysconfig.get_path('scripts') + '/bastide'
assert open(program, 'rb').read(4) == b'\\x7fELF', 'the command is no native program'
os.rename(program, program + '.away')
try:
    sync.Sandbox.create()
    raise SystemExit('the extension has a guest of its own: it is in the wheel twice')
except bastide.BastideError as error:
    assert program in str(error), error
os.rename(program + '.away', program)
with sync.Sandbox.create() as box:
    assert box.run('echo hi').stdout == b'hi\\n'
with sync.Sandbox.create(allow=['example.org']) as box:
    assert box.receipt['network'] == 'policy'
assert sync.doctor()['rungs']
with tempfile.TemporaryDirectory() as folder:
    # Alone, with nothing beside it.
    alone = shutil.copy(program, folder)
    run = [alone, 'run', '--', 'echo', 'hi']
    environment = {'BASTIDE_HOME': folder + '/home', 'PATH': os.environ['PATH']}
    assert subprocess.run(run, env=environment, check=True, capture_output=True).stdout == b'hi\\n'
print(sys.version.split()[0], 'uses it')
";

/// Builds the wheel, examines it, tries it with every interpreter, and installs it.
pub(super) fn install(folder: &Path, python: &Path, profile: &str) -> Outcome {
    step("the wheel");
    let wheel = build(folder, python, profile)?;
    examine(&wheel, python, profile)?;
    step("the wheel, with every interpreter");
    for interpreter in interpreters() {
        use_with(folder, &wheel, &interpreter)?;
    }
    let installed = super::site_packages(python)?.join("bastide");
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    pip(python, &["--force-reinstall", "--no-deps"], &wheel)
}

fn pip(python: &Path, options: &[&str], what: &Path) -> Outcome {
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run_command(Command::new(python).args(install).args(options).arg(what))
}

fn build(folder: &Path, python: &Path, profile: &str) -> Outcome<PathBuf> {
    let tools = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run_command(Command::new(python).args(tools).args(TOOLS))?;
    let bin = python.parent().ok_or("an interpreter is in a folder")?;
    let search = std::env::var_os("PATH").unwrap_or_default();
    let search = format!("{}:{}", bin.display(), search.display());
    // What is embedded is linked statically, which that linker cannot: it is built first.
    let release = if profile == "dev" { None } else { Some("--release") };
    let embedded = ["bastide-guest-bin", "bastide-sidecar-bin"];
    let packages = embedded.iter().flat_map(|name| ["-p", name]);
    run_command(cargo(&["build", "--locked"]).args(release).args(packages))?;
    let statics = |folder: &str, name: &str| {
        top().join("target").join(folder).join(TARGET).join("release").join(name)
    };
    let others = if profile == "dev" { "sidecar-debug" } else { "guest" };
    let settings = [
        ("PATH", PathBuf::from(search)),
        ("BASTIDE_GUEST", statics("guest", "bastide-guest")),
        ("BASTIDE_LOADER", statics("guest", "bastide-loader")),
        ("BASTIDE_SIDECAR", statics(others, "bastide-sidecar")),
    ];
    let target = format!("{TARGET}.{LIBC}");
    let zigbuild = ["zigbuild", "--locked", "--profile", profile, "-p", "bastide-cli", "--target"];
    run_command(cargo(&zigbuild).arg(target).envs(settings.clone()))?;
    let scripts = folder.join("data/scripts");
    fs::create_dir_all(&scripts)?;
    let built = if profile == "dev" { "debug" } else { profile };
    let built = top().join("target").join(TARGET).join(built).join("bastide");
    let program = scripts.join("bastide");
    run_command(Command::new("strip").arg("-o").arg(&program).arg(built))?;
    let wheels = folder.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)?;
    }
    let compatibility = format!("manylinux_{}", LIBC.replace('.', "_"));
    let mut maturin = Command::new(python);
    maturin
        .args(["-m", "maturin", "build", "--locked", "--zig", "--target", TARGET])
        .args(["--profile", profile, "--compatibility", &compatibility])
        .args(["-m", "crates/python/Cargo.toml", "--out"])
        .arg(&wheels)
        .envs(settings)
        // What the program has in it, the extension reads from there.
        .env("BASTIDE_CARRIER", program);
    run_command(&mut maturin)?;
    let wheel = fs::read_dir(&wheels)?.next().ok_or("maturin built nothing")??;
    Ok(wheel.path())
}

/// What it weighs, what systems it is for, and what is in it.
fn examine(wheel: &Path, python: &Path, profile: &str) -> Outcome {
    let size = fs::metadata(wheel)?.len();
    let name = wheel.file_name().unwrap_or_default().display();
    say(&format!("{name}: {:.1} MiB", size as f64 / f64::from(1 << 20)));
    if profile != "dev" && size > MOST_BYTES {
        return Err(format!("it may weigh {} MiB", MOST_BYTES >> 20).into());
    }
    let audit = read(Command::new(python).args(["-m", "auditwheel", "show"]).arg(wheel))?;
    say(audit.trim());
    let tag = format!("manylinux_{}_x86_64", LIBC.replace('.', "_"));
    // Where an older one would do as well, that is what it says.
    let is_for = audit.split("following platform tag:").nth(1).unwrap_or(&audit);
    if !is_for.contains(&tag) && !is_for.contains("manylinux_2_17") {
        return Err(format!("it is not for {tag}").into());
    }
    Ok(())
}

/// Every interpreter of a version that it is for.
fn interpreters() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for minor in 10..=13 {
        let name = format!("python3.{minor}");
        let probe = |path: &Path| works(Command::new(path).args(["-c", "import venv"]));
        let versions = std::env::var_os("PYENV_ROOT").map_or_else(
            || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".pyenv"),
            PathBuf::from,
        );
        let managed = fs::read_dir(versions.join("versions")).into_iter().flatten().flatten();
        let managed = managed.map(|version| version.path().join("bin").join(&name));
        let mut all = [PathBuf::from(&name)].into_iter().chain(managed);
        match all.find(|path| probe(path)) {
            Some(path) => found.push(path),
            None => say(&format!("{name} is not here, and not tried")),
        }
    }
    found
}

/// Installs it into a fresh environment, and uses it there.
fn use_with(folder: &Path, wheel: &Path, interpreter: &Path) -> Outcome {
    let venv = folder.join("fresh");
    run_command(Command::new(interpreter).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let python = venv.join("bin/python");
    pip(&python, &[], wheel)?;
    let home = tempfile::tempdir()?;
    run_command(Command::new(&python).args(["-c", USE]).env("BASTIDE_HOME", home.path()))
}
