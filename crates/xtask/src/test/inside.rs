//! The local suites inside a container that was given no privileges: what an agent in CI or in a pod has.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use bastide_test_servers::engine::docker;

use super::Settings;
use super::engine::Engine;
use crate::shell::{Outcome, run, say};

/// An image that is empty but for the folders everything is put into.
const IMAGE: &str = "bastide-test/inside";

/// Tells the test program that it runs in a container.
const INSIDE: &str = "BASTIDE_TEST_INSIDE";

/// Runs a test program as root and as an ordinary user of a container.
pub(crate) fn suites(program: &Path, engine: &Engine, settings: Settings<'_>) -> Outcome {
    let folder = tempfile::Builder::new().prefix("bastide-inside-").tempdir()?;
    let (_, host) = engine.variable();
    make_image(&host, &folder.path().join("image"))?;
    // Somebody else's container cannot look into the build folder.
    let copy = folder.path().join("trials");
    fs::copy(program, &copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    for user in ["0:0", "1000:1000"] {
        // Once more, as everywhere: what passes then is named, and is a bug to be fixed.
        inside(&host, user, &copy, settings).or_else(|why| {
            say(&format!("flaky?   in a container as {user} ({why}); once more"));
            inside(&host, user, &copy, settings)
        })?;
    }
    Ok(())
}

/// A container as `docker run` makes it, with the programs of this machine and nothing more.
fn inside(host: &str, user: &str, program: &Path, settings: Settings<'_>) -> Outcome {
    let skipped = settings.skipped.display();
    let mut command = Command::new("docker");
    command.args(["--host", host, "run", "--rm", "--network", "none", "--user", user]);
    for folder in ["/usr", "/etc/alternatives"].into_iter().filter(|path| Path::new(path).exists())
    {
        command.arg("--volume").arg(format!("{folder}:{folder}:ro"));
    }
    command.arg("--volume").arg(format!("{}:/trials:ro", program.display()));
    command.arg("--volume").arg(format!("{skipped}:{skipped}"));
    for (name, value) in settings.variables() {
        command.arg("--env").arg(format!("{name}={value}"));
    }
    command.arg("--env").arg(format!("{INSIDE}=1")).arg(IMAGE).arg("/trials");
    run(&mut command)
}

fn make_image(host: &str, top: &Path) -> io::Result<()> {
    for name in ["etc", "home", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr", "var/tmp"]
    {
        fs::create_dir_all(top.join(name))?;
    }
    for name in ["tmp", "var/tmp"] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(0o1777))?;
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), top.join(name))?;
    }
    fs::write(top.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nplain:x:1000:1000::/:/bin/sh\n")?;
    fs::write(top.join("etc/group"), "root:x:0:\nplain:x:1000:\n")?;
    let archive = top.with_extension("tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--numeric-owner", "--owner=0", "--group=0", "--file"]).arg(&archive);
    if !tar.arg("--directory").arg(top).arg(".").status()?.success() {
        return Err(io::Error::other("cannot pack the image of a container"));
    }
    docker(host, &["import", &archive.to_string_lossy(), IMAGE]).map(drop)
}
