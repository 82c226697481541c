//! A repository that an agent filled with programs: nothing of it runs, and nothing of the host is told.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use bastide_runs::RunHome;
use bastide_runs::workspace::{Workspace, WorkspaceMode, WorkspaceOptions};

use crate::repository::*;

/// Where planted programs leave their marks, and the program.
struct Traps {
    folder: Folder,
}

impl Traps {
    fn new() -> Self {
        Self { folder: Folder::on_disk() }
    }

    /// A program that marks that it ran, by a name of its own.
    fn program(&self, name: &str) -> String {
        let path = self.folder.join(&format!("{name}.sh"));
        let mark = self.folder.join(&format!("{name}.mark"));
        fs::write(&path, format!("#!/bin/sh\necho ran > {}\ncat\n", mark.display())).unwrap();
        set_executable(&path, true);
        path.to_str().unwrap().to_owned()
    }

    /// The marks that are there.
    fn marks(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let mut marks: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
            .filter_map(|name| name.strip_suffix(".mark").map(str::to_owned))
            .collect();
        marks.sort();
        marks
    }
}

/// Everything that git can be made to run, in the repository at `folder`.
fn plant(folder: &Path, traps: &Traps) {
    let git_dir = folder.join(".git");
    fs::create_dir_all(git_dir.join("hooks")).unwrap();
    for hook in [
        "post-checkout",
        "post-index-change",
        "pre-commit",
        "reference-transaction",
        "post-commit",
        "pre-auto-gc",
        "post-rewrite",
        "fsmonitor-watchman",
    ] {
        fs::copy(traps.program(hook), git_dir.join("hooks").join(hook)).unwrap();
    }
    let included = folder.join(".git/included");
    write(folder, ".git/included", format!("[core]\n\tfsmonitor = {}\n", traps.program("include")));
    let elsewhere = folder.join("own-hooks");
    fs::create_dir_all(&elsewhere).unwrap();
    for hook in ["post-checkout", "post-index-change"] {
        fs::copy(traps.program("hooks-path"), elsewhere.join(hook)).unwrap();
    }
    let mut config = fs::read_to_string(git_dir.join("config")).unwrap();
    config.push_str(&format!(
        "[core]\n\tfsmonitor = {}\n\thooksPath = {}\n\tpager = {}\n\tsshCommand = {}\n\
         [filter \"evil\"]\n\tclean = {}\n\tsmudge = {}\n\
         [diff \"evil\"]\n\ttextconv = {}\n\tcommand = {}\n[diff]\n\texternal = {}\n\
         [alias]\n\tdiff = !{}\n\tfast-import = !{}\n[gpg]\n\tprogram = {}\n[commit]\n\tgpgSign = true\n\
         [credential]\n\thelper = !{}\n[include]\n\tpath = {}\n[uploadpack]\n\tpackObjectsHook = {}\n",
        traps.program("fsmonitor"),
        elsewhere.display(),
        traps.program("pager"),
        traps.program("ssh"),
        traps.program("clean"),
        traps.program("smudge"),
        traps.program("textconv"),
        traps.program("diff-command"),
        traps.program("external"),
        traps.program("alias"),
        traps.program("alias-import"),
        traps.program("gpg"),
        traps.program("credential"),
        included.display(),
        traps.program("pack-objects"),
    ));
    fs::write(git_dir.join("config"), config).unwrap();
    write(folder, ".gitattributes", "* filter=evil diff=evil\n");
    fs::create_dir_all(git_dir.join("info")).unwrap();
    write(folder, ".git/info/attributes", "* filter=evil diff=evil\n");
}

/// A repository as it was, then everything planted and changed.
fn hostile(work: &Path, traps: &Traps) {
    let inner = work.parent().unwrap().join("inner");
    small_repository(&inner);
    small_repository(work);
    git(work, &["submodule", "--quiet", "add", inner.to_str().unwrap(), "sub"]);
    // Part of the tree, so that every checkout meets it.
    write(work, ".gitattributes", "* filter=evil diff=evil\n");
    git(work, &["add", "-A"]);
    git(work, &["commit", "-qm", "sub"]);
    plant(work, traps);
    // A submodule with a configuration of its own.
    let modules = work.join(".git/modules/sub/config");
    let mut config = fs::read_to_string(&modules).unwrap();
    config.push_str(&format!("[core]\n\tfsmonitor = {}\n", traps.program("sub-fsmonitor")));
    fs::write(modules, config).unwrap();
}

/// Without our protection the traps do spring: the reference's way, and what users do.
#[test]
fn planted_programs_would_run() {
    let (folder, traps) = (Folder::on_disk(), Traps::new());
    let work = folder.join("work");
    hostile(&work, &traps);
    write(&work, "README.md", "changed\n");
    for arguments in [
        &["diff", "--no-ext-diff"][..],
        &["--no-pager", "diff"],
        &["status"],
        &["add", "-A"],
        &["worktree", "add", "-q", "../tree"],
        &["commit", "-m", "x"],
        &["checkout", "-q", "-b", "other"],
    ] {
        try_git(&work, arguments);
    }
    let marks = traps.marks();
    for expected in ["clean", "textconv", "hooks-path", "gpg", "smudge", "sub-fsmonitor"] {
        assert!(marks.contains(&expected.to_owned()), "{expected} not in {marks:?}");
    }
    assert!(marks.iter().any(|mark| mark == "fsmonitor" || mark == "include"), "{marks:?}");
    assert!(marks.iter().any(|mark| mark == "diff-command" || mark == "external"), "{marks:?}");
}

#[test]
fn nothing_planted_before_or_after_runs_when_a_change_is_collected() {
    for is_planted_before in [true, false] {
        let (folder, scratch, traps) = (Folder::on_disk(), Folder::new(), Traps::new());
        let work = folder.join("work");
        if is_planted_before {
            hostile(&work, &traps);
        } else {
            small_repository(&work);
        }
        let base = record(&work, &scratch);
        if !is_planted_before {
            plant(&work, &traps);
        }
        write(&work, "README.md", "changed\n");
        write(&work, "new", "new\n");
        let (changes, patch) = collect(&base, &scratch);
        assert!(changes.files.iter().any(|file| file.path == "README.md"));
        assert!(String::from_utf8(patch).unwrap().contains("+changed"));
        assert_eq!(traps.marks(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn nothing_planted_runs_in_any_mode() {
    for mode in [WorkspaceMode::InPlace, WorkspaceMode::Worktree, WorkspaceMode::Clone] {
        let (folder, runs, traps) = (Folder::on_disk(), Folder::on_disk(), Traps::new());
        let work = folder.join("work");
        hostile(&work, &traps);
        let home = RunHome::at(runs.join("home")).unwrap();
        let mut options = WorkspaceOptions::default();
        if mode != WorkspaceMode::InPlace {
            options.branch = Some("result".to_owned());
        }
        options.mode = mode.clone();
        let workspace =
            Workspace::prepare(&work, &options, home.begin("r").unwrap()).await.unwrap();
        let inside = workspace.folder().to_owned();
        // In a clone the agent can write everything, and does.
        if mode == WorkspaceMode::Clone {
            plant(&inside, &traps);
        }
        write(&inside, "README.md", "changed\n");
        let patch = runs.join("p.patch");
        workspace.collect(&patch).unwrap();
        if let Some(staged) = workspace.stage("a change").unwrap() {
            assert_eq!(workspace.commit(staged).await.unwrap().as_deref(), Some("result"));
        }
        workspace.close().unwrap();
        assert_eq!(traps.marks(), Vec::<String>::new(), "{mode:?}");
        if mode != WorkspaceMode::InPlace {
            // As data, with the traps out of the way.
            fs::remove_file(work.join(".git/config")).unwrap();
            git(&work, &["fsck", "--strict"]);
            let there = git(&work, &["show", "result:README.md"]);
            assert_eq!(there, "changed", "{mode:?}");
        }
    }
}

/// A host's file must not come out with a change, whatever leads to it.
#[test]
fn nothing_of_the_host_is_told() {
    let (folder, scratch) = (Folder::on_disk(), Folder::new());
    let secret = folder.join("secret");
    small_repository(&secret);
    write(&secret, "key", "s3cr3t-content\n");
    git(&secret, &["add", "-A"]);
    git(&secret, &["commit", "-qm", "key"]);
    let plants: [(&str, Box<dyn Fn(&Path, &Path)>); 7] = [
        (
            "a link to a file",
            Box::new(|work, secret| {
                fs::remove_file(work.join("README.md")).unwrap();
                symlink(secret.join("key"), work.join("README.md")).unwrap();
            }),
        ),
        (
            "a link to a folder",
            Box::new(|work, secret| {
                fs::remove_dir_all(work.join("src")).unwrap();
                symlink(secret, work.join("src")).unwrap();
            }),
        ),
        (
            "a linked repository",
            Box::new(|work, secret| {
                fs::remove_dir_all(work.join(".git")).unwrap();
                symlink(secret.join(".git"), work.join(".git")).unwrap();
            }),
        ),
        (
            "a file that leads elsewhere",
            Box::new(|work, secret| {
                fs::remove_dir_all(work.join(".git")).unwrap();
                let line = format!("gitdir: {}\n", secret.join(".git").display());
                fs::write(work.join(".git"), line).unwrap();
            }),
        ),
        (
            "alternates",
            Box::new(|work, secret| {
                fs::create_dir_all(work.join(".git/objects/info")).unwrap();
                let line = format!("{}\n", secret.join(".git/objects").display());
                fs::write(work.join(".git/objects/info/alternates"), line).unwrap();
                // The index says that a file had that content.
                fs::copy(secret.join(".git/index"), work.join(".git/index")).unwrap();
            }),
        ),
        (
            "objects of another repository",
            Box::new(|work, secret| {
                fs::remove_dir_all(work.join(".git/objects")).unwrap();
                symlink(secret.join(".git/objects"), work.join(".git/objects")).unwrap();
                fs::copy(secret.join(".git/index"), work.join(".git/index")).unwrap();
            }),
        ),
        (
            "a common folder elsewhere",
            Box::new(|work, secret| {
                let line = format!("{}\n", secret.join(".git").display());
                fs::write(work.join(".git/commondir"), line).unwrap();
            }),
        ),
    ];
    for (what, plant) in &plants {
        for is_planted_before in [true, false] {
            let name = format!("{}-{is_planted_before}", what.replace(' ', "-"));
            let work: PathBuf = folder.join(&name);
            small_repository(&work);
            if is_planted_before {
                plant(&work, &secret);
            }
            let base = record(&work, &scratch);
            if !is_planted_before {
                plant(&work, &secret);
            }
            write(&work, "new", "new\n");
            write(&work, "key", "another\n");
            let (changes, patch) = collect(&base, &scratch);
            let patch = String::from_utf8(patch).unwrap();
            assert!(!patch.contains("s3cr3t-content"), "{what}: {patch}");
            assert!(changes.files.iter().any(|file| file.path == "new"), "{what}: {changes:?}");
        }
    }
}

/// An index that says of a file that it has the content of somebody else's object, with alternates that
/// lead there.
#[test]
fn a_forged_index_tells_nothing_of_another_repository() {
    use std::os::unix::fs::MetadataExt;
    let (folder, scratch) = (Folder::on_disk(), Folder::new());
    let (secret, work) = (folder.join("secret"), folder.join("work"));
    small_repository(&secret);
    write(&secret, "key", "s3cr3t-content\n");
    let oid = git(&secret, &["hash-object", "-w", "key"]);
    small_repository(&work);
    write(&work, "key", "as-long-as-it.\n");
    git(&work, &["read-tree", "--empty"]);
    git(&work, &["update-index", "--add", "--cacheinfo", &format!("100644,{oid},key")]);
    let found = fs::metadata(work.join("key")).unwrap();
    let mut index = fs::read(work.join(".git/index")).unwrap();
    let words = [
        (12, found.ctime()),
        (16, found.ctime_nsec()),
        (20, found.mtime()),
        (24, found.mtime_nsec()),
        (32, found.ino().cast_signed()),
        (48, found.size().cast_signed()),
    ];
    for (at, word) in words {
        index[at..at + 4].copy_from_slice(&(word as u32).to_be_bytes());
    }
    fs::write(work.join(".git/index"), index).unwrap();
    let later = found.modified().unwrap() + std::time::Duration::from_secs(5);
    let file = fs::File::options().write(true).open(work.join(".git/index")).unwrap();
    file.set_modified(later).unwrap();
    fs::create_dir_all(work.join(".git/objects/info")).unwrap();
    let line = format!("{}\n", secret.join(".git/objects").display());
    write(&work, ".git/objects/info/alternates", line);
    let base = record(&work, &scratch);
    write(&work, "key", "another\n");
    let (changes, patch) = collect(&base, &scratch);
    let patch = String::from_utf8(patch).unwrap();
    assert!(patch.contains("-as-long-as-it.\n+another"), "{changes:?}\n{patch}");
}

/// Repositories that the agent makes are named: whoever runs git there runs what they say.
#[test]
fn says_where_new_repositories_are() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let base = record(&work, &scratch);
    small_repository(&work.join("planted"));
    write(&work, "pointer/.git", "gitdir: ../planted/.git\n");
    fs::create_dir_all(work.join("nothing/.git")).unwrap();
    // A folder that is a repository itself, and hides itself.
    fs::create_dir_all(work.join("src/objects")).unwrap();
    fs::create_dir_all(work.join("src/refs")).unwrap();
    write(&work, "src/HEAD", "ref: refs/heads/main\n");
    write(&work, "src/.gitignore", "*\n");
    let (changes, _) = collect(&base, &scratch);
    let mut found = changes.new_repositories.clone();
    found.sort();
    assert_eq!(found, ["planted", "pointer", "src"]);
}

/// Names that only differ in case, or hold what ends lines, come through as they are.
#[test]
fn keeps_names_apart() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let fresh = folder.join("fresh");
    copy(&work, &fresh);
    let base = record(&work, &scratch);
    for (number, name) in
        ["Case", "case", "CASE", "new\nline", "\"quoted\"", "a\tb"].iter().enumerate()
    {
        write(&work, name, format!("{number}\n"));
    }
    let (_, patch) = collect(&base, &scratch);
    apply(&fresh, &patch).unwrap();
    assert_eq!(tree(&work), tree(&fresh));
}
