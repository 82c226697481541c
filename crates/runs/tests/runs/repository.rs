//! Repositories to test with, and looking at trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bastide_runs::collect::{Baseline, BaselineOptions, Changes};

/// A folder that is on no trusted list of anybody: a test's own.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        // In memory where there is such a place: git waits for the disk again and again.
        let memory = Path::new("/dev/shm");
        let made = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Self(made.unwrap())
    }

    /// One that a sandbox can be given.
    pub(crate) fn on_disk() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().canonicalize().unwrap()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

/// Git as a user runs it in a folder, but for the user's own configuration.
pub(crate) fn git_in(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
        .args(["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"]);
    git
}

pub(crate) fn try_git(folder: &Path, arguments: &[&str]) -> Output {
    git_in(folder).args(arguments).output().unwrap()
}

#[track_caller]
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = try_git(folder, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

pub(crate) fn write(folder: &Path, name: impl AsRef<std::ffi::OsStr>, content: impl AsRef<[u8]>) {
    let path = folder.join(Path::new(name.as_ref()));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub(crate) fn set_executable(path: &Path, is_executable: bool) {
    let mode = if is_executable { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A repository with one commit.
pub(crate) fn small_repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    git(folder, &["init", "-q", "--template="]);
    write(folder, "README.md", "one\ntwo\nthree\n");
    write(folder, "src/main.rs", "fn main() {}\n");
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "first"]);
}

/// Everything in a folder but `.git` and empty folders: path, then what it is.
pub(crate) fn tree(folder: &Path) -> BTreeMap<Vec<u8>, (char, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(at) = waiting.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == ".git" {
                continue;
            }
            let kind = entry.file_type().unwrap();
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, ('l', target.as_os_str().as_bytes().to_vec()));
            } else if kind.is_file() {
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                let kind = if mode & 0o100 != 0 { 'x' } else { 'f' };
                found.insert(name, (kind, fs::read(&path).unwrap()));
            }
        }
    }
    found
}

pub(crate) fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

pub(crate) fn record(workspace: &Path, scratch: &Folder) -> Baseline {
    Baseline::record(workspace, BaselineOptions::new(scratch.path())).unwrap()
}

/// What changed, and the patch.
pub(crate) fn collect(base: &Baseline, scratch: &Folder) -> (Changes, Vec<u8>) {
    let patch = scratch.join("changes.patch");
    let changes = base.collect(&patch).unwrap();
    let text = fs::read(&patch).unwrap();
    fs::remove_file(&patch).unwrap();
    assert_eq!(changes.patch_bytes, text.len() as u64);
    (changes, text)
}

/// Has git apply a patch; what it said if it did not.
pub(crate) fn apply(folder: &Path, patch: &[u8]) -> Result<(), String> {
    if patch.is_empty() {
        return Ok(());
    }
    let file = folder.parent().unwrap().join("to-apply.patch");
    fs::write(&file, patch).unwrap();
    let file = file.to_str().unwrap();
    let output = try_git(folder, &["apply", "--whitespace=nowarn", file]);
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
