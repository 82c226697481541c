//! Where an agent works, what comes back, and what a repository can be like.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind};
use bastide_runs::workspace::{Uncommitted, Workspace, WorkspaceMode, WorkspaceOptions};
use bastide_runs::{RunFolder, RunHome};

use crate::repository::*;

struct Setting {
    folder: Folder,
    home: RunHome,
    work: PathBuf,
}

impl Setting {
    fn new() -> Self {
        let folder = Folder::on_disk();
        let work = folder.join("work");
        small_repository(&work);
        Self { home: RunHome::at(folder.join("home")).unwrap(), work, folder }
    }

    fn run(&self) -> RunFolder {
        self.home.begin("r1").unwrap()
    }

    async fn prepare(&self, options: &WorkspaceOptions) -> Result<Workspace, Error> {
        Workspace::prepare(&self.work, options, self.run()).await
    }

    /// All that git keeps of a repository, but for objects nobody leads to.
    fn state(&self) -> Vec<String> {
        let mut all = vec![
            git(&self.work, &["for-each-ref"]),
            git(&self.work, &["worktree", "list", "--porcelain"]),
            git(&self.work, &["status", "--porcelain=v2", "--branch"]),
            fs::read_to_string(self.work.join(".git/config")).unwrap(),
        ];
        all.extend(locks(&self.work.join(".git")));
        all
    }

    fn patch(&self, workspace: &Workspace) -> Vec<u8> {
        let path = self.folder.join("p.patch");
        workspace.collect(&path).unwrap();
        let text = fs::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        text
    }
}

fn locks(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(locks(&path));
        } else if path.extension().is_some_and(|end| end == "lock") {
            found.push(path.display().to_string());
        }
    }
    found
}

fn options(mode: WorkspaceMode, branch: Option<&str>) -> WorkspaceOptions {
    let mut options = WorkspaceOptions::default();
    options.mode = mode;
    options.branch = branch.map(str::to_owned);
    options
}

#[tokio::test]
async fn a_change_in_a_work_tree_comes_back_on_its_branch() {
    let setting = Setting::new();
    write(&setting.work, "dirty", "of the user\n");
    let before = setting.state();
    let wanted = options(WorkspaceMode::Worktree, Some("agents/fix"));
    let workspace = setting.prepare(&wanted).await.unwrap();
    let inside = workspace.folder().to_owned();
    assert_eq!(git(&inside, &["status", "--porcelain"]), "");
    assert_eq!(git(&inside, &["branch", "--show-current"]), "agents/fix");
    assert!(!inside.join("dirty").exists());
    write(&inside, "README.md", "changed\n");
    write(&inside, "deep/new", "new\n");
    fs::remove_file(inside.join("src/main.rs")).unwrap();
    let staged = workspace.stage("What the agent did").unwrap().unwrap();
    assert_eq!(workspace.commit(staged).await.unwrap().as_deref(), Some("agents/fix"));
    let path = workspace.close().unwrap();
    fs::remove_dir_all(path).unwrap();
    assert_eq!(git(&setting.work, &["show", "agents/fix:README.md"]), "changed");
    assert_eq!(
        git(&setting.work, &["log", "-1", "--format=%s", "agents/fix"]),
        "What the agent did"
    );
    let names = git(&setting.work, &["ls-tree", "-r", "--name-only", "agents/fix"]);
    assert_eq!(names, "README.md\ndeep/new");
    let parent = git(&setting.work, &["rev-parse", "agents/fix^"]);
    assert_eq!(parent, git(&setting.work, &["rev-parse", "main"]));
    git(&setting.work, &["fsck", "--strict"]);
    git(&setting.work, &["branch", "-D", "agents/fix"]);
    assert_eq!(setting.state(), before);
}

#[tokio::test]
async fn a_run_without_a_change_leaves_the_repository_as_it_was() {
    let setting = Setting::new();
    let before = setting.state();
    for wanted in [
        options(WorkspaceMode::InPlace, None),
        options(WorkspaceMode::Worktree, None),
        options(WorkspaceMode::Clone, Some("b")),
        options(WorkspaceMode::Clone, None),
    ] {
        let workspace = setting.prepare(&wanted).await.unwrap();
        assert!(workspace.stage("nothing").unwrap().is_none());
        assert_eq!(setting.patch(&workspace), b"");
        let path = workspace.close().unwrap();
        fs::remove_dir_all(path).unwrap();
        assert_eq!(setting.state(), before, "{wanted:?}");
    }
}

fn inodes(folder: &Path, found: &mut Vec<(u64, u64)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        found.push((metadata.dev(), metadata.ino()));
        if metadata.is_dir() {
            inodes(&path, found);
        }
    }
}

#[tokio::test]
async fn a_clone_shares_no_inode_and_knows_no_other_branch() {
    let setting = Setting::new();
    git(&setting.work, &["branch", "secret-plans"]);
    let workspace = setting.prepare(&options(WorkspaceMode::Clone, None)).await.unwrap();
    let inside = workspace.folder().to_owned();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    inodes(&setting.work, &mut ours);
    inodes(&inside, &mut theirs);
    assert!(theirs.iter().all(|inode| !ours.contains(inode)));
    assert!(!inside.join(".git/objects/info/alternates").exists());
    assert_eq!(git(&inside, &["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    assert_eq!(git(&inside, &["status", "--porcelain"]), "");
    git(&inside, &["fsck", "--strict"]);
    assert!(workspace.grants().is_empty());
}

#[tokio::test]
async fn uncommitted_work_is_carried_over_or_refused_and_never_lost() {
    let setting = Setting::new();
    write(&setting.work, "README.md", "of the user\n");
    write(&setting.work, "untracked", "also\n");
    fs::remove_file(setting.work.join("src/main.rs")).unwrap();
    std::os::unix::fs::symlink("untracked", setting.work.join("src/main.rs")).unwrap();
    git(&setting.work, &["add", "README.md"]);
    let before = tree(&setting.work);
    let mut wanted = options(WorkspaceMode::Clone, Some("result"));
    let workspace = setting.prepare(&wanted).await.unwrap();
    let inside = workspace.folder().to_owned();
    assert_eq!(tree(&inside), before);
    // Only what the agent does is its change.
    assert_eq!(setting.patch(&workspace), b"");
    write(&inside, "README.md", "of the user\nand the agent\n");
    let staged = workspace.stage("x").unwrap().unwrap();
    workspace.commit(staged).await.unwrap();
    let changed = git(&setting.work, &["diff", "--name-only", "main", "result"]);
    assert_eq!(changed, "README.md");
    fs::remove_dir_all(workspace.close().unwrap()).unwrap();
    assert_eq!(tree(&setting.work), before);
    wanted.uncommitted = Uncommitted::Refused;
    wanted.branch = Some("another".to_owned());
    let error = Workspace::prepare(&setting.work, &wanted, setting.home.begin("r2").unwrap()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(tree(&setting.work), before);
}

#[tokio::test]
async fn a_branch_that_exists_is_refused_before_anything_is_made() {
    let setting = Setting::new();
    git(&setting.work, &["branch", "taken"]);
    git(&setting.work, &["branch", "folder/of/refs"]);
    let before = setting.state();
    for packed in [false, true] {
        if packed {
            git(&setting.work, &["pack-refs", "--all"]);
        }
        for name in ["taken", "main", "folder/of", "taken/inner", "bad name", "../x"] {
            for mode in [WorkspaceMode::Worktree, WorkspaceMode::Clone] {
                let wanted = options(mode, Some(name));
                let error = setting.prepare(&wanted).await.unwrap_err();
                let kinds = [ErrorKind::Conflict, ErrorKind::InvalidInput];
                assert!(kinds.contains(&error.kind()), "{name}: {error}");
                fs::remove_dir_all(setting.folder.join("home/runs/r1")).unwrap();
            }
        }
        assert_eq!(setting.state(), before);
    }
}

#[tokio::test]
async fn a_branch_that_somebody_makes_meanwhile_is_not_overwritten() {
    let setting = Setting::new();
    let workspace = setting.prepare(&options(WorkspaceMode::Clone, Some("b"))).await.unwrap();
    write(workspace.folder(), "new", "x\n");
    git(&setting.work, &["branch", "b"]);
    let theirs = git(&setting.work, &["rev-parse", "b"]);
    let staged = workspace.stage("x").unwrap().unwrap();
    let error = workspace.commit(staged).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    workspace.close().unwrap();
    assert_eq!(git(&setting.work, &["rev-parse", "b"]), theirs);
    assert_eq!(locks(&setting.work.join(".git")), Vec::<String>::new());
}

/// What each kind of repository gets in each mode.
#[tokio::test]
async fn odd_repositories_work_or_are_refused_with_what_would() {
    let folder = Folder::on_disk();
    let plain = folder.make("plain");
    write(&plain, "file", "x\n");
    let empty = folder.make("empty");
    git(&empty, &["init", "-q"]);
    write(&empty, "file", "x\n");
    let full = folder.join("full");
    small_repository(&full);
    write(&full, "two", "2\n");
    git(&full, &["add", "-A"]);
    git(&full, &["commit", "-qm", "second"]);
    let from = format!("file://{}", full.display());
    let path = folder.path();
    git(&path, &["clone", "-q", "--bare", &from, "bare"]);
    git(&path, &["clone", "-q", "--depth", "1", &from, "shallow"]);
    git(&path, &["clone", "-q", &from, "detached"]);
    git(&folder.join("detached"), &["checkout", "-q", "HEAD^"]);
    git(&path, &["clone", "-q", "--shared", full.to_str().unwrap(), "shared"]);
    git(&full, &["worktree", "add", "-q", folder.join("linked").to_str().unwrap()]);
    git(&path, &["init", "-q", "--object-format=sha256", "sha256"]);
    write(&folder.join("sha256"), "file", "x\n");
    git(&folder.join("sha256"), &["add", "-A"]);
    git(&folder.join("sha256"), &["commit", "-qm", "x"]);
    use WorkspaceMode::{Clone, InPlace, Worktree};
    let table = [
        ("plain", [true, false, false]),
        ("empty", [true, false, true]),
        ("full", [true, true, true]),
        ("bare", [false, false, true]),
        ("shallow", [true, true, true]),
        ("detached", [true, true, true]),
        ("shared", [true, true, true]),
        ("linked", [true, true, true]),
        ("sha256", [true, true, true]),
    ];
    let home = RunHome::at(folder.join("home")).unwrap();
    for (name, works) in table {
        for (mode, works) in [InPlace, Worktree, Clone].into_iter().zip(works) {
            let id = format!("{name}-{}", format!("{mode:?}").to_lowercase());
            let wanted = options(mode.clone(), None);
            let source = folder.join(name);
            let before = if name == "bare" { Default::default() } else { tree(&source) };
            match Workspace::prepare(&source, &wanted, home.begin(&id).unwrap()).await {
                Ok(workspace) => {
                    assert!(works, "{id}");
                    if name != "bare" {
                        assert_eq!(tree(workspace.folder()), before, "{id}");
                    }
                    write(workspace.folder(), "added", "x\n");
                    let patch = folder.join(&format!("{id}.patch"));
                    let changes = workspace.collect(&patch).unwrap();
                    assert_eq!(changes.files.len(), 1, "{id}: {changes:?}");
                    if let Some(staged) = workspace.stage("x").unwrap() {
                        let branch = workspace.commit(staged).await.unwrap().unwrap();
                        let shown = git(&source, &["show", &format!("{branch}:added")]);
                        assert_eq!(shown, "x", "{id}");
                    }
                    workspace.close().unwrap();
                    drop(fs::remove_file(source.join("added")));
                }
                Err(error) => {
                    assert!(!works, "{id}: {error}");
                    let hint = error.hint().unwrap_or_default();
                    assert!(!hint.is_empty(), "{id}: {error}");
                    // What is advised is possible.
                    assert!(name != "bare" || !hint.contains("in place"), "{id}: {hint}");
                }
            }
        }
    }
}

#[tokio::test]
async fn what_is_advised_where_git_is_elsewhere_is_possible() {
    let folder = Folder::on_disk();
    small_repository(&folder.join("real"));
    let [linked, separate] = ["linked", "separate"].map(|name| folder.make(name));
    std::os::unix::fs::symlink("../real/.git", linked.join(".git")).unwrap();
    write(&separate, ".git", format!("gitdir: {}\n", folder.join("real/.git").display()));
    let home = RunHome::at(folder.join("home")).unwrap();
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Worktree, WorkspaceMode::Clone] {
        let run = |name: &str| home.begin(&format!("{name}-{mode:?}")).unwrap();
        let wanted = options(mode.clone(), None);
        let error = Workspace::prepare(&linked, &wanted, run("linked")).await.unwrap_err();
        let hint = error.hint().unwrap_or_default();
        assert!(!hint.contains("mode") && !hint.contains("in place"), "{mode:?}: {hint}");
        match Workspace::prepare(&separate, &wanted, run("separate")).await {
            Ok(workspace) => {
                assert_eq!(mode, WorkspaceMode::InPlace);
                drop(workspace.close().unwrap());
            }
            Err(error) => {
                assert_ne!(mode, WorkspaceMode::InPlace, "{error}");
                assert!(error.message().contains("no repository that leads back"), "{error}");
                assert!(error.hint().is_some_and(|hint| hint.contains("in place")), "{error:?}");
            }
        }
    }
}

#[tokio::test]
async fn pointers_of_large_files_stay_what_they_are() {
    let setting = Setting::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    write(&setting.work, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    write(&setting.work, "a.bin", pointer);
    git(&setting.work, &["add", "-A"]);
    git(&setting.work, &["commit", "-qm", "pointer"]);
    for mode in [WorkspaceMode::Worktree, WorkspaceMode::Clone] {
        let workspace = setting.prepare(&options(mode, None)).await.unwrap();
        assert_eq!(fs::read_to_string(workspace.folder().join("a.bin")).unwrap(), pointer);
        assert_eq!(setting.patch(&workspace), b"");
        fs::remove_dir_all(workspace.close().unwrap()).unwrap();
    }
}

#[tokio::test]
async fn what_git_would_run_is_closed_wherever_that_is_written() {
    let setting = Setting::new();
    let inner = setting.work.join("inner");
    small_repository(&inner);
    write(&setting.work, ".gitconfig", "[core] hooksPath = .githooks\n");
    write(&setting.work, ".githooks/pre-commit", "");
    write(&inner, ".husky/pre-commit", "");
    git(&setting.work, &["config", "include.path", "../.gitconfig"]);
    git(&inner, &["config", "core.hooksPath", ".husky"]);
    let workspace = setting.prepare(&options(WorkspaceMode::InPlace, None)).await.unwrap();
    for name in [".git", ".gitconfig", ".githooks", "inner/.git", "inner/.husky"] {
        let path = setting.work.join(name);
        let is_it = |grant: &&bastide::model::PathGrant| Path::new(&grant.path) == path;
        let found = workspace.grants().iter().find(is_it);
        assert!(found.is_some_and(|grant| grant.read_only), "{name}: {:?}", workspace.grants());
    }
    workspace.close().unwrap();
}
