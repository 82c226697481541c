//! The patch of any change, applied to what was there before, gives what is there now.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bastide_runs::collect::{ChangeStatus, Changes};

use crate::repository::*;

/// Random numbers that are the same for the same seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn content(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => Vec::new(),
            1 => (0..self.below(3000)).map(|_| self.next() as u8).collect(),
            2 => b"no end of line".to_vec(),
            3 => b"with\r\nother\r\nends\r\n".to_vec(),
            4 => b"caf\xe9 in latin-1\n".to_vec(),
            5 => b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n\\ No newline\ndiff --git a/x b/x\n".to_vec(),
            _ => (0..self.below(60)).flat_map(|_| self.line()).collect(),
        }
    }

    fn line(&mut self) -> Vec<u8> {
        format!("{}\n", ["alpha", "beta", "gamma", "}", "", "\tdelta  "][self.below(6)])
            .into_bytes()
    }

    fn name(&mut self) -> Vec<u8> {
        const NAMES: [&[u8]; 18] = [
            b"a",
            b"A",
            b"b.txt",
            b"two words",
            b"new\nline",
            b"tab\tbed",
            b"quo\"te",
            b"back\\slash",
            b"\xff\xfe",
            "\u{fc}ml\u{e4}ut".as_bytes(),
            b"-dash",
            b" lead",
            b"trail ",
            b"a => b",
            b"dev null",
            b"b/",
            b"c/d",
            b"c/e/f",
        ];
        let folder: &[u8] = self.pick(&[&b""[..], b"dir/", b"dir/deep/", b"s p/", b"sub/"]);
        let mut name = [folder, self.pick(&NAMES)].concat();
        if name.ends_with(b"/") {
            name.push(b'z');
        }
        name
    }
}

fn path_in(folder: &Path, name: &[u8]) -> PathBuf {
    folder.join(Path::new(OsStr::from_bytes(name)))
}

/// Makes way for a file, whatever is there.
fn clear(path: &Path) {
    let mut around = path.parent();
    while let Some(folder) = around {
        if folder.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(folder).unwrap();
        }
        around = folder.parent();
    }
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
}

/// One thing an agent might do.
fn change(folder: &Path, dice: &mut Rng) {
    let files: Vec<Vec<u8>> = tree(folder).into_keys().collect();
    let some = |dice: &mut Rng| {
        (!files.is_empty()).then(|| path_in(folder, &files[dice.below(files.len())]))
    };
    match dice.below(13) {
        0 | 1 => {
            let path = path_in(folder, &dice.name());
            clear(&path);
            fs::write(path, dice.content()).unwrap();
        }
        2 | 3 => {
            let Some(path) = some(dice) else { return };
            if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                let mut content = fs::read(&path).unwrap();
                let at = dice.below(content.len() + 1);
                content.splice(at..at, dice.line());
                fs::write(path, content).unwrap();
            }
        }
        4 => {
            let Some(path) = some(dice) else { return };
            fs::remove_file(path).unwrap();
        }
        5 | 6 => {
            let Some(path) = some(dice) else { return };
            let to = path_in(folder, &dice.name());
            if path.starts_with(&to) || to.starts_with(&path) {
                return;
            }
            clear(&to);
            fs::rename(&path, &to).unwrap_or_default();
            if dice.below(2) == 0 && to.symlink_metadata().is_ok_and(|found| found.is_file()) {
                let content = [fs::read(&to).unwrap(), dice.line()].concat();
                fs::write(to, content).unwrap();
            }
        }
        7 => {
            let Some(path) = some(dice) else { return };
            if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                set_executable(&path, dice.below(2) == 0);
            }
        }
        8 => {
            let path = path_in(folder, &dice.name());
            clear(&path);
            symlink(
                OsStr::from_bytes(dice.pick(&[&b"a"[..], b"/etc/passwd", b"../..", b"\xff"])),
                path,
            )
            .unwrap();
        }
        9 => {
            let Some(path) = some(dice) else { return };
            clear(&path);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("inner"), dice.content()).unwrap();
        }
        10 => drop(try_git(folder, &["add", "-A"])),
        11 => drop(try_git(folder, &["commit", "-qam", "by the agent"])),
        _ => {
            let Some(path) = some(dice) else { return };
            if path.symlink_metadata().is_ok_and(|found| found.is_file()) {
                // Touched, and not changed.
                fs::write(&path, fs::read(&path).unwrap()).unwrap();
            }
        }
    }
}

/// A repository with a submodule, and everything git can keep.
fn template(folder: &Folder) -> PathBuf {
    let inner = folder.join("inner");
    small_repository(&inner);
    let outer = folder.join("outer");
    small_repository(&outer);
    write(&outer, "run.sh", "#!/bin/sh\n");
    set_executable(&outer.join("run.sh"), true);
    write(&outer, "data.bin", [0u8, 1, 2, 255].repeat(500));
    write(&outer, "dir/deep/text", "a\nb\nc\n".repeat(50));
    write(&outer, "two words", "x");
    symlink("README.md", outer.join("link")).unwrap();
    git(&outer, &["submodule", "--quiet", "add", inner.to_str().unwrap(), "sub"]);
    git(&outer, &["add", "-A"]);
    git(&outer, &["commit", "-qm", "all kinds"]);
    outer
}

#[test]
fn a_patch_gives_the_same_tree_for_any_change() {
    let rounds = if std::env::var_os("BASTIDE_TEST_FULL").is_some() { 5000 } else { 200 };
    let seed = std::env::var_os("BASTIDE_TEST_SEED")
        .and_then(|seed| seed.to_str()?.parse().ok())
        .unwrap_or(1u64);
    let folder = Folder::new();
    let template = template(&folder);
    for round in 0..rounds {
        let mut dice = Rng((seed << 20) + round + 1);
        for _ in 0..8 {
            dice.next();
        }
        let (scratch, place) = (Folder::new(), Folder::new());
        let work = place.join("work");
        match round % 2 {
            0 => copy(&template, &work),
            _ => {
                let (from, to) = (template.to_str().unwrap(), work.to_str().unwrap());
                git(&place.path(), &["clone", "-q", "--recurse-submodules", from, to]);
            }
        }
        if round % 3 == 0 {
            (0..dice.below(6)).for_each(|_| change(&work, &mut dice));
        }
        let fresh = place.join("fresh");
        copy(&work, &fresh);
        let base = record(&work, &scratch);
        (0..1 + dice.below(14)).for_each(|_| change(&work, &mut dice));
        let (changes, patch) = collect(&base, &scratch);
        let context = || format!("seed {seed}, round {round}: {changes:#?}");
        assert!(changes.left_out.is_empty(), "{}", context());
        assert!(std::str::from_utf8(&patch).is_ok());
        if let Err(said) = apply(&fresh, &patch) {
            let text = String::from_utf8_lossy(&patch);
            panic!("{}\n{said}\n{text}", context());
        }
        assert_eq!(tree(&work), tree(&fresh), "{}", context());
        assert_eq!(changes.files.is_empty(), patch.is_empty(), "{}", context());
    }
}

fn statuses(
    changes: &Changes,
) -> Vec<(&str, Option<&str>, ChangeStatus, Option<u64>, Option<u64>)> {
    let row = |file: &'_ bastide_runs::collect::ChangedFile| {
        (file.status, file.additions, file.deletions)
    };
    changes
        .files
        .iter()
        .map(|file| {
            let (status, more, less) = row(file);
            (file.path.as_str(), file.old_path.as_deref(), status, more, less)
        })
        .collect()
}

#[test]
fn says_what_became_of_each_file() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let long: String = (0..40).map(|line| format!("line {line}\n")).collect();
    for (name, content) in
        [("moved", &*long), ("gone", "x\ny\n"), ("typed", "t\n"), ("mode", "m\n")]
    {
        write(&work, name, content);
    }
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-qm", "more"]);
    let base = record(&work, &scratch);
    write(&work, "README.md", "one\n2\nthree\n");
    fs::remove_file(work.join("gone")).unwrap();
    fs::rename(work.join("moved"), work.join("elsewhere")).unwrap();
    write(&work, "elsewhere", long.replace("line 7\n", "seven\n"));
    fs::remove_file(work.join("typed")).unwrap();
    symlink("mode", work.join("typed")).unwrap();
    set_executable(&work.join("mode"), true);
    write(&work, "new.bin", [0u8; 10]);
    write(&work, "new.txt", "1\n2\n3\n");
    let (changes, _) = collect(&base, &scratch);
    use ChangeStatus::*;
    let want = [
        ("README.md", None, Modified, Some(1), Some(1)),
        ("elsewhere", Some("moved"), Renamed, Some(1), Some(1)),
        ("gone", None, Deleted, Some(0), Some(2)),
        ("mode", None, Modified, Some(0), Some(0)),
        ("new.bin", None, Added, None, None),
        ("new.txt", None, Added, Some(3), Some(0)),
        ("typed", None, TypeChanged, Some(1), Some(1)),
    ];
    assert_eq!(statuses(&changes), want);
    let json = serde_json::to_value(&changes.files[6]).unwrap();
    assert_eq!(json["status"], "type_changed");
}

#[test]
fn a_link_that_moved_away_may_leave_a_folder_in_its_place() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    symlink("README.md", work.join("place")).unwrap();
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-qm", "link"]);
    let fresh = folder.join("fresh");
    copy(&work, &fresh);
    let base = record(&work, &scratch);
    fs::rename(work.join("place"), work.join("elsewhere")).unwrap();
    write(&work, "place/inner", "new\n");
    let (_, patch) = collect(&base, &scratch);
    apply(&fresh, &patch).unwrap();
    assert_eq!(tree(&work), tree(&fresh));
}

#[test]
fn is_complete_in_a_folder_that_is_no_repository() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.make("work");
    write(&work, "a", "one\n");
    write(&work, ".gitignore", "*.log\n");
    let fresh = folder.join("fresh");
    copy(&work, &fresh);
    let base = record(&work, &scratch);
    write(&work, "a", "two\n");
    write(&work, "b.log", "kept, nobody ignores anything here\n");
    let (changes, patch) = collect(&base, &scratch);
    assert_eq!(changes.files.len(), 2);
    apply(&fresh, &patch).unwrap();
    assert_eq!(tree(&work), tree(&fresh));
}

#[test]
fn names_what_is_ignored_and_never_hides_what_was_there() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    write(&work, ".gitignore", "target/\n*.log\n");
    write(&work, "forced.log", "tracked in spite of the rule\n");
    git(&work, &["add", "-Af"]);
    git(&work, &["commit", "-qm", "rules"]);
    write(&work, "target/old", "built before\n");
    let base = record(&work, &scratch);
    write(&work, "target/new", "built\n");
    write(&work, "forced.log", "changed\n");
    write(&work, "other.log", "said\n");
    // Whoever can write these could hide files with them: they count as they were.
    write(&work, ".git/info/exclude", "*\n");
    // These are part of the change, and count as they are.
    write(&work, ".gitignore", "target/\n*.log\nhidden\nsrc/\n");
    write(&work, "hidden", "new\n");
    write(&work, "seen", "new\n");
    write(&work, "src/main.rs", "tracked\n");
    let (changes, _) = collect(&base, &scratch);
    let paths: Vec<_> = changes.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, [".gitignore", "forced.log", "seen", "src/main.rs"]);
    assert_eq!(changes.ignored, ["hidden", "other.log", "target/"]);
}

#[test]
fn knows_a_file_whose_times_were_set_back() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let path = work.join("README.md");
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let base = record(&work, &scratch);
    write(&work, "README.md", "eno\ntwo\nthree\n");
    fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    let (changes, _) = collect(&base, &scratch);
    assert_eq!(changes.files.len(), 1);
}

#[test]
fn leaves_out_what_no_patch_can_have_and_says_so() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let base = record(&work, &scratch);
    write(&work, "d/.GIT/config", "[core]\n");
    write(&work, "git~1/x", "x");
    let fifo = work.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    drop(std::os::unix::net::UnixListener::bind(work.join("socket")).unwrap());
    symlink("README.md", work.join(".gitmodules")).unwrap();
    write(&work, "fine", "x\n");
    fs::File::create(work.join("sparse")).unwrap().set_len(8 << 40).unwrap();
    let (changes, patch) = collect(&base, &scratch);
    let mut left: Vec<_> = changes.left_out.iter().map(|left| left.path.as_str()).collect();
    left.sort_unstable();
    assert_eq!(left, [".gitmodules", "d/.GIT", "git~1", "pipe", "socket", "sparse"]);
    assert_eq!(changes.files.len(), 1);
    assert!(patch.starts_with(b"diff --git a/fine b/fine\n"));
}

/// Tests of programs leave such files behind; the change around them is there all the same.
#[test]
fn leaves_out_what_cannot_be_read_and_says_so() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let base = record(&work, &scratch);
    write(&work, "closed/inner", "x\n");
    write(&work, "secret", "x\n");
    write(&work, "fine", "x\n");
    let close = |name: &str| fs::set_permissions(work.join(name), fs::Permissions::from_mode(0o0));
    close("closed").unwrap();
    close("secret").unwrap();
    let (changes, _) = collect(&base, &scratch);
    fs::set_permissions(work.join("closed"), fs::Permissions::from_mode(0o755)).unwrap();
    let found: Vec<_> = changes.files.iter().map(|file| file.path.as_str()).collect();
    let mut left: Vec<_> = changes.left_out.iter().map(|left| left.path.as_str()).collect();
    left.sort_unstable();
    match rustix::process::geteuid().is_root() {
        // Nothing is closed to root.
        true => assert_eq!(found, ["closed/inner", "fine", "secret"]),
        false => assert_eq!((found, left), (vec!["fine"], vec!["closed", "secret"])),
    }
}

#[test]
fn hides_what_was_put_there_for_the_agent() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let options = bastide_runs::collect::BaselineOptions::new(scratch.path())
        .hidden([PathBuf::from("AGENTS.md")]);
    let base = bastide_runs::collect::Baseline::record(&work, options).unwrap();
    write(&work, "AGENTS.md", "be nice\n");
    write(&work, "src/AGENTS.md", "not that one\n");
    let (changes, _) = collect(&base, &scratch);
    assert_eq!(changes.files.len(), 1);
    assert_eq!(changes.files[0].path, "src/AGENTS.md");
}

#[test]
fn survives_what_is_huge() {
    let (folder, scratch) = (Folder::new(), Folder::new());
    let work = folder.join("work");
    small_repository(&work);
    let is_full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    // Untracked before and changed after: only its name was kept.
    let megabytes = if is_full { 1024 } else { 40 };
    let file = fs::File::create(work.join("large")).unwrap();
    file.set_len(megabytes << 20).unwrap();
    let line = if is_full { 100 << 20 } else { 20 << 20 };
    write(&work, "line", vec![b'x'; line]);
    let fresh = folder.join("fresh");
    copy(&work, &fresh);
    let base = record(&work, &scratch);
    file.set_len((megabytes << 20) + 1).unwrap();
    write(&work, "line", vec![b'y'; line]);
    write(&work, "another", vec![b'z'; line]);
    let (changes, patch) = collect(&base, &scratch);
    assert_eq!(changes.files.len(), 3);
    assert!(changes.files.iter().all(|file| file.additions.is_none()));
    apply(&fresh, &patch).unwrap();
    assert_eq!(fs::metadata(fresh.join("large")).unwrap().len(), (megabytes << 20) + 1);
    for name in ["line", "another"] {
        assert!(fs::read(fresh.join(name)).unwrap() == fs::read(work.join(name)).unwrap());
    }
}

/// In a process of its own, whose memory nothing else uses.
const MEASURED: &str = "BASTIDE_TEST_MEASURED";

/// The most memory that this process ever held, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn much_that_is_untracked_takes_little_memory() {
    if std::env::var_os(MEASURED).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "changes::much_that_is_untracked_takes_little_memory"]);
        again.args(["--nocapture", "--test-threads=1"]).env(MEASURED, "1");
        assert!(again.status().unwrap().success());
        return;
    }
    let (folder, scratch) = (Folder::on_disk(), Folder::on_disk());
    let work = folder.join("work");
    small_repository(&work);
    let is_full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let files: u32 = if is_full { 1024 } else { 100 };
    let mut content = vec![0; 1 << 20];
    for number in 0..files {
        // No two are alike, and none is text.
        content[..4].copy_from_slice(&number.to_le_bytes());
        write(&work, format!("data/{number}"), &content);
    }
    let before = peak();
    let base = record(&work, &scratch);
    write(&work, "data/7", vec![b'x'; 1 << 20]);
    fs::remove_file(work.join("data/8")).unwrap();
    fs::rename(work.join("data/9"), work.join("data/moved")).unwrap();
    let (changes, _) = collect(&base, &scratch);
    let mut said: Vec<_> = changes.files.iter().map(|file| (&*file.path, file.status)).collect();
    said.sort_by_key(|(path, _)| *path);
    let wanted = [
        ("data/7", ChangeStatus::Modified),
        ("data/8", ChangeStatus::Deleted),
        ("data/moved", ChangeStatus::Renamed),
    ];
    assert_eq!(said, wanted);
    let grown = peak() - before;
    assert!(grown <= 64 << 10, "{grown} KiB for {files} MiB");
}
