//! What is left of a run that was killed, and what a sweep makes of it.

use std::fs;
use std::path::Path;

use bastide::SessionId;
use bastide_local::LocalBackend;
use bastide_runs::workspace::{Workspace, WorkspaceMode, WorkspaceOptions};
use bastide_runs::{RunHome, RunSweep, Sandbox};

use crate::repository::*;

fn options(branch: &str) -> WorkspaceOptions {
    WorkspaceOptions::default().mode(WorkspaceMode::Worktree).branch(branch)
}

/// A sweep where no run has a session.
async fn sweep(folder: &Folder, home: &RunHome) -> RunSweep {
    let backend = LocalBackend::new(folder.join("sessions")).unwrap().without_spare();
    let nobody = async |_: &SessionId| Ok(false);
    Sandbox::sweep(&backend, home, nobody).await.unwrap()
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
    // Killed in the middle of making the work tree known: the file is there, and its line is not.
    fs::write(work.join(".git/worktrees/bastide-killed/gitdir"), "").unwrap();
    // Killed in the middle of changing the branch.
    let own = work.join(".git/bastide-killed.lock");
    fs::write(&own, "").unwrap();
    fs::hard_link(&own, work.join(".git/refs/heads/one.lock")).unwrap();
    let swept = sweep(&folder, &home).await;
    assert_eq!(swept.running, 1, "{swept:?}");
    assert_eq!(swept.ended.len(), 1, "{swept:?}");
    assert_eq!(swept.removed.len(), 2, "{swept:?}");
    assert!(!folder.join("home/runs/killed").exists());
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
    write(&folder.join("home/runs/strange"), "file", "x");
    let before = home.begin("before").unwrap();
    let broken = before.path().join("run.json");
    fs::write(&broken, "{\"surprise\": 1}").unwrap();
    drop(before);
    let swept = sweep(&folder, &home).await;
    assert_eq!(git(&work, &["rev-parse", "mine"]), commit);
    assert!(swept.unclear.iter().any(|(path, _)| path.ends_with("strange")), "{swept:?}");
    assert!(folder.join("home/runs/strange").exists());
    assert!(swept.unclear.iter().any(|(path, _)| path.ends_with("runs/before")), "{swept:?}");
    let theirs = work.join(".git/refs/heads/mine.lock");
    fs::write(&theirs, "").unwrap();
    fs::write(&broken, format!(
        "{{\"repository\":\"{0}/.git\",\"worktree\":null,\"branch\":[\"refs/heads/mine\",null]}}",
        work.display()
    )).unwrap();
    sweep(&folder, &home).await;
    assert!(theirs.exists());
}

/// What is kept of runs is bounded: the oldest goes, and that of a run that is not over stays.
#[test]
fn results_of_the_oldest_runs_make_room() {
    let folder = Folder::on_disk();
    let home = RunHome::at(folder.join("home")).unwrap();
    let results = folder.join("home/results");
    let old = std::time::SystemTime::UNIX_EPOCH;
    for number in 0..205_u64 {
        let kept = results.join(format!("run-{number:03}"));
        write(&kept, "log", "x\n");
        let at = old + std::time::Duration::from_secs(number);
        fs::File::open(&kept).unwrap().set_modified(at).unwrap();
    }
    let alive = home.begin("run-000").unwrap();
    drop(home.begin("next").unwrap());
    let left = fs::read_dir(&results).unwrap().count();
    assert!((199..=200).contains(&left), "{left}");
    assert!(results.join("run-000/log").exists() && results.join("run-204/log").exists());
    assert!(!results.join("run-001").exists());
    drop(alive);
}

#[tokio::test]
async fn a_sweep_removes_what_was_killed_before_its_lock_or_in_the_middle_of_its_removal() {
    let folder = Folder::on_disk();
    let home = RunHome::at(folder.join("home")).unwrap();
    fs::create_dir_all(folder.join("home/runs/begun")).unwrap();
    write(&folder.join("home/runs/.gone-x-1"), "scratch/file", "x");
    let looked = Sandbox::look_for_killed(&home).unwrap();
    assert_eq!(looked.ended.len(), 2, "{looked:?}");
    let swept = sweep(&folder, &home).await;
    assert_eq!((swept.ended.len(), swept.unclear.len()), (2, 0), "{swept:?}");
    assert_eq!(fs::read_dir(folder.join("home/runs")).unwrap().count(), 0);
}
