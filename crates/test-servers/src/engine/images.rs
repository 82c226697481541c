//! Images for tests, made of programs of this machine.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::docker;

/// A shell and the usual tools, with the C library: what the trials need.
pub const BASE: &str = "bastide-test/base";

/// One static program under many names.
pub const BUSYBOX: &str = "bastide-test/busybox";

/// Nothing at all.
pub const EMPTY: &str = "bastide-test/empty";

/// [`BASE`] with a user, a folder, a variable and volumes of its own.
pub const SETTINGS: &str = "bastide-test/settings";

/// [`BASE`] with Python, and the word of this machine on which system it is: stands for what pages pull.
pub const PYTHON: &str = "bastide-test/python";

/// A minimal Debian.
pub const DEBIAN: &str = "bastide-test/debian";

/// What trials run.
const TOOLS: &[&str] = &[
    "sh",
    "bash",
    "cat",
    "chmod",
    "chown",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "dpkg",
    "dpkg-deb",
    "dpkg-split",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "find",
    "grep",
    "head",
    "id",
    "install",
    "kill",
    "ln",
    "ls",
    "mkdir",
    "mkfifo",
    "mktemp",
    "mount",
    "mv",
    "nproc",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setsid",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "stty",
    "sync",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tty",
    "umount",
    "uname",
    "uniq",
    "wc",
    "xargs",
    "yes",
    "awk",
    "getent",
];

/// Makes every image, unless the daemon has them.
///
/// # Errors
///
/// Fails if something of this machine cannot be read, or the daemon does not take it.
pub fn make(host: &str) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    for Tree { name, path, .. } in trees(folder.path())? {
        let changes: &[&str] = match name {
            SETTINGS => &[
                "USER app",
                "WORKDIR /srv",
                "ENV GREETING=hello",
                "ENV PATH=/opt/own:/bin",
                "VOLUME /data",
            ],
            _ => &[],
        };
        import(host, &path, name, changes)?;
    }
    make_python(host, &folder.path().join("python"))
}

/// Makes [`PYTHON`], with the standard library of this machine's Python, where it has one.
fn make_python(host: &str, top: &Path) -> io::Result<()> {
    let Some(program) = find("python3") else { return Ok(()) };
    lay_out_base(top)?;
    put_program(&program, "python3", top)?;
    let ask = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let said = Command::new(&program).args(["-I", "-c", ask]).stdin(Stdio::null()).output()?;
    let library = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    let to = top.join(library.strip_prefix("/").map_err(io::Error::other)?);
    fs::create_dir_all(&to)?;
    let excluded = ["__pycache__", "dist-packages", "site-packages", "test"];
    let mut tar = Command::new("tar");
    tar.args(excluded.map(|name| format!("--exclude={name}"))).arg("--create").arg("--file=-");
    let mut packing =
        tar.arg("--directory").arg(&library).arg(".").stdout(Stdio::piped()).spawn()?;
    let mut unpack = Command::new("tar");
    unpack.arg("--extract").arg("--directory").arg(&to);
    let unpacked = unpack.stdin(packing.stdout.take().map_or(Stdio::null(), Stdio::from)).status();
    if !packing.wait()?.success() || !unpacked?.success() {
        return Err(io::Error::other(format!("cannot copy {}", library.display())));
    }
    fs::copy("/etc/os-release", top.join("etc/os-release"))?;
    import(host, top, PYTHON, &[])
}

/// Puts a program of this machine, and what it is loaded with, into the files of an image.
fn put_program(program: &Path, called: &str, top: &Path) -> io::Result<()> {
    for library in libraries_of(program)? {
        let to = top.join(library.strip_prefix("/").map_err(io::Error::other)?);
        fs::create_dir_all(to.parent().unwrap_or(top))?;
        fs::copy(fs::canonicalize(&library)?, to)?;
    }
    fs::copy(program, top.join("bin").join(called))?;
    Ok(())
}

/// The files of an image, and what it says about itself, as an engine has it.
pub(crate) struct Tree {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) config: Value,
}

/// Lays out the files of every image in a folder.
pub(crate) fn trees(folder: &Path) -> io::Result<Vec<Tree>> {
    let [base, empty, busybox] = ["base", "empty", "busybox"].map(|name| folder.join(name));
    lay_out_base(&base)?;
    fs::create_dir(&empty)?;
    let settings = json!({
        "User": "app", "WorkingDir": "/srv", "Env": ["GREETING=hello", "PATH=/opt/own:/bin"],
        "Volumes": {"/data": {}},
    });
    let mut trees = vec![
        Tree { name: BASE, path: base.clone(), config: json!({}) },
        Tree { name: SETTINGS, path: base, config: settings },
        Tree { name: EMPTY, path: empty, config: json!({}) },
    ];
    if lay_out_busybox(&busybox)? {
        trees.push(Tree { name: BUSYBOX, path: busybox, config: json!({}) });
    }
    Ok(trees)
}

/// Makes [`BASE`] with further programs of this machine in it, each as what it shall be called there; and
/// scripts, each with its text.
///
/// # Errors
///
/// Fails if something of this machine cannot be read, or the daemon does not take it.
pub fn make_with(
    host: &str,
    name: &str,
    programs: &[(&Path, &str)],
    scripts: &[(&str, &str)],
) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let top = folder.path().join("base");
    lay_out_base(&top)?;
    // Where `mount` looks for its helpers.
    symlink("bin", top.join("sbin"))?;
    for (program, called) in programs {
        put_program(&fs::canonicalize(program)?, called, &top)?;
    }
    for (called, text) in scripts {
        let script = top.join("bin").join(called);
        fs::write(&script, text)?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    import(host, &top, name, &[])
}

/// Makes a minimal Debian, and a package to install in it; `None` where that cannot be done here.
///
/// # Errors
///
/// Fails if the daemon does not take the image.
pub fn make_debian(host: &str) -> io::Result<Option<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    let kept = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/debian.tar"));
    if !kept.exists() {
        let top = folder.path().join("debian");
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", "stable"]).arg(&top).stdin(Stdio::null());
        if !debootstrap.output().is_ok_and(|output| output.status.success()) {
            return Ok(None);
        }
        // It takes a minute or two: the next run finds it here, whole or not at all.
        let unfinished = kept.with_extension(std::process::id().to_string());
        pack(&top, &unfinished)?;
        fs::rename(&unfinished, kept)?;
    }
    docker(host, &["import", &kept.to_string_lossy(), DEBIAN])?;
    let tree = folder.path().join("package");
    fs::create_dir_all(tree.join("DEBIAN"))?;
    fs::create_dir_all(tree.join("usr/bin"))?;
    let control = "Package: bastide-own\nVersion: 1\nArchitecture: all\nMaintainer: nobody\n\
                   Description: a package of one's own\n";
    fs::write(tree.join("DEBIAN/control"), control)?;
    let program = tree.join("usr/bin/bastide-own");
    fs::write(&program, "#!/bin/sh\necho it is installed\n")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let package = folder.path().join("own.deb");
    let mut build = Command::new("dpkg-deb");
    let built = build.arg("--build").arg(&tree).arg(&package).output()?;
    if !built.status.success() {
        return Ok(None);
    }
    fs::read(package).map(Some)
}

/// A package of this machine's distribution, as its package manager fetches it; `None` where it cannot.
///
/// # Errors
///
/// Fails if there is no room to keep it.
pub fn fetch_package(name: &str) -> io::Result<Option<Vec<u8>>> {
    let folder = tempfile::tempdir()?;
    // It does that as somebody else where it can.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777))?;
    let mut fetch = Command::new("apt-get");
    fetch.args(["download", name]).current_dir(folder.path()).stdin(Stdio::null());
    if !fetch.output().is_ok_and(|output| output.status.success()) {
        return Ok(None);
    }
    let fetched = fs::read_dir(folder.path())?.flatten().map(|entry| entry.path());
    let mut packages = fetched.filter(|path| path.extension().is_some_and(|end| end == "deb"));
    packages.next().map(fs::read).transpose()
}

fn skeleton(top: &Path) -> io::Result<()> {
    for name in ["bin", "etc", "home", "root", "tmp", "usr", "var", "srv", "opt/own"] {
        fs::create_dir_all(top.join(name))?;
    }
    fs::set_permissions(top.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    if rustix::process::geteuid().is_root() {
        // As in images that people make: the home of a user is that user's.
        std::os::unix::fs::chown(top.join("home"), Some(1000), Some(1001))?;
    }
    let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home:/bin/sh\n\
                  nobody:x:65534:65534::/:/bin/false\n";
    fs::write(top.join("etc/passwd"), passwd)?;
    let group = "root:x:0:\napp:x:1001:\nextra:x:2000:app\nnogroup:x:65534:\n";
    fs::write(top.join("etc/group"), group)
}

fn lay_out_base(top: &Path) -> io::Result<()> {
    skeleton(top)?;
    let own = std::env::current_exe()?;
    let mut libraries = libraries_of(&own)?;
    for tool in TOOLS {
        let Some(found) = find(tool) else { continue };
        libraries.extend(libraries_of(&found)?);
        fs::copy(&found, top.join("bin").join(tool))?;
    }
    for library in libraries {
        let to = top.join(library.strip_prefix("/").map_err(io::Error::other)?);
        fs::create_dir_all(to.parent().unwrap_or(top))?;
        fs::copy(fs::canonicalize(&library)?, to)?;
    }
    Ok(())
}

/// Where a program of this machine is, links followed.
fn find(tool: &str) -> Option<PathBuf> {
    ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(tool))
        .find_map(|path| fs::canonicalize(path).ok())
}

/// What a program is loaded with.
fn libraries_of(program: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).filter(|path| path.is_file()).collect())
}

/// False where this machine has no static busybox.
fn lay_out_busybox(top: &Path) -> io::Result<bool> {
    let Some(program) = find("busybox") else { return Ok(false) };
    if !libraries_of(&program)?.is_empty() {
        return Ok(false);
    }
    skeleton(top)?;
    let listed = Command::new(&program).arg("--list").output()?;
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        if name != "busybox" {
            symlink("busybox", top.join("bin").join(name))?;
        }
    }
    fs::copy(program, top.join("bin/busybox"))?;
    Ok(true)
}

fn import(host: &str, top: &Path, name: &str, changes: &[&str]) -> io::Result<()> {
    let archive = top.with_extension("tar");
    pack(top, &archive)?;
    let path = archive.to_string_lossy().into_owned();
    let mut arguments = vec!["import"];
    for change in changes {
        arguments.extend(["--change", change]);
    }
    docker(host, &[arguments, vec![path.as_str(), name]].concat())?;
    Ok(())
}

pub(crate) fn pack(top: &Path, archive: &Path) -> io::Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--numeric-owner").arg("--file").arg(archive);
    if !tar.arg("--directory").arg(top).arg(".").status()?.success() {
        return Err(io::Error::other(format!("cannot pack {}", top.display())));
    }
    Ok(())
}
