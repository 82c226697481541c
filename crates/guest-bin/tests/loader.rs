//! The loader as a pod runs it: from a folder with the parts of the guest, in an empty environment.

#![expect(clippy::unwrap_used, reason = "a test that cannot be prepared fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bastide_guest_bin::{HASH, pod_files};

fn lay_out(top: &Path) {
    for folder in ["bin", "run"] {
        fs::create_dir(top.join(folder)).unwrap();
    }
    // As a cluster gives it.
    fs::set_permissions(top, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(top.join("run"), fs::Permissions::from_mode(0o777)).unwrap();
    for file in pod_files(1_000_000).unwrap().into_iter().flatten() {
        let path = top.join("bin").join(file.name);
        fs::write(&path, file.content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    }
}

fn loader(top: &Path, hash: &str, word: &str) -> Command {
    let mut command = Command::new(top.join("bin/loader"));
    command.env_clear().arg(hash).arg(word).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn becomes_the_guest_as_anybody() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let mut command = loader(folder.path(), HASH, "remove");
    // Only root can be somebody else.
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        command.uid(1000).gid(1000);
    }
    for _ in 0..2 {
        let output = command.output().unwrap();
        // The guest itself says no more than that where it is told to remove nothing.
        assert_eq!((output.status.code(), said(&output)), (Some(1), String::new()));
    }
    let guest = folder.path().join(format!("run/guest-{HASH}"));
    assert_eq!(fs::metadata(guest).unwrap().permissions().mode() & 0o7777, 0o555);
}

#[test]
fn says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path());
    let output = loader(folder.path(), &"0".repeat(64), "dial").output().unwrap();
    assert_eq!(output.status.code(), Some(65));
    assert!(said(&output).ends_with(&format!("another guest than was asked for: {HASH}\n")));
    let output = loader(folder.path(), HASH, "dial").arg0("loader").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    fs::remove_file(folder.path().join("bin/part-1")).unwrap();
    let output = loader(folder.path(), HASH, "dial").output().unwrap();
    assert_eq!(output.status.code(), Some(66));
    assert!(said(&output).contains("bin/part-1"), "{}", said(&output));
    assert_eq!(fs::read_dir(folder.path().join("run")).unwrap().count(), 0);
}
