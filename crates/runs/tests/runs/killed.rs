//! What is left of a run that was killed, and what a sweep makes of it.

use std::fs;
use std::path::Path;

use bastide_runs::RunHome;
use bastide_runs::workspace::{Workspace, WorkspaceMode, WorkspaceOptions};

use crate::repository::*;

fn options(branch: &str) -> WorkspaceOptions {
    WorkspaceOptions::default().mode(WorkspaceMode::Worktree).branch(branch)
}

/// As a process that is killed does: nothing is taken back, but the kernel lets go of locks.
fn kill(workspace: Workspace) {
    drop(workspace);
}

#[tokio::test]
async fn a_sweep_takes_back_what_a_killed_run_made() {
    let folder = Folder::on_disk();
    let work = folder.join("work");
    small_repository(&work);
    let home = RunHome::at(folder.join("home")).unwrap();
    let state = |work: &Path| (git(work, &["for-each-ref"]), git(work, &["worktree", "list"]));
    let before = state(&work);
    let killed =
        Workspace::prepare(&work, &options("one"), home.begin("killed").unwrap()).await.unwrap();
    let alive =
        Workspace::prepare(&work, &options("two"), home.begin("alive").unwrap()).await.unwrap();
    write(killed.folder(), "new", "x\n");
    kill(killed);
    // Killed in the middle of changing the branch.
    let own = work.join(".git/bastide-killed.lock");
    fs::write(&own, "").unwrap();
    fs::hard_link(&own, work.join(".git/refs/heads/one.lock")).unwrap();
    let swept = home.sweep().unwrap();
    assert_eq!(swept.running, 1, "{swept:?}");
    assert_eq!(swept.ended.len(), 1, "{swept:?}");
    assert_eq!(swept.removed.len(), 2, "{swept:?}");
    assert!(!work.join(".git/refs/heads/one.lock").exists() && !own.exists());
    assert!(git(&work, &["branch", "--list", "two"]).contains("two"));
    fs::remove_dir_all(alive.close().unwrap()).unwrap();
    assert_eq!(state(&work), before);
    git(&work, &["fsck", "--strict"]);
}

#[tokio::test]
async fn a_sweep_leaves_what_is_somebodys_work_and_what_nobody_can_tell() {
    let folder = Folder::on_disk();
    let work = folder.join("work");
    small_repository(&work);
    let home = RunHome::at(folder.join("home")).unwrap();
    let run = Workspace::prepare(&work, &options("mine"), home.begin("a").unwrap()).await.unwrap();
    kill(run);
    // Somebody committed to the branch, and another git holds a lock of its own on it.
    let tree = git(&work, &["write-tree"]);
    let commit = git(&work, &["commit-tree", &tree, "-p", "main", "-m", "by hand"]);
    git(&work, &["update-ref", "refs/heads/mine", &commit]);
    fs::create_dir_all(folder.join("home/runs/strange")).unwrap();
    let swept = home.sweep().unwrap();
    assert_eq!(git(&work, &["rev-parse", "mine"]), commit);
    assert!(swept.unclear.iter().any(|(path, _)| path.ends_with("strange")), "{swept:?}");
    assert!(folder.join("home/runs/strange").exists());
    let broken = folder.join("home/runs/a/run.json");
    fs::write(&broken, "{\"surprise\": 1}").unwrap();
    let swept = home.sweep().unwrap();
    assert!(swept.unclear.iter().any(|(path, _)| path.ends_with("runs/a")), "{swept:?}");
    let theirs = work.join(".git/refs/heads/mine.lock");
    fs::write(&theirs, "").unwrap();
    fs::write(&broken, format!(
        "{{\"repository\":\"{0}/.git\",\"worktree\":null,\"branch\":[\"refs/heads/mine\",null],\"is_kept\":false}}",
        work.display()
    )).unwrap();
    home.sweep().unwrap();
    assert!(theirs.exists());
}
