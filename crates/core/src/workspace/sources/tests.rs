//! Sources that try to lead elsewhere.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

use super::*;

struct Tree {
    _folder: tempfile::TempDir,
    base: PathBuf,
}

fn tree() -> Tree {
    let folder = tempfile::tempdir().unwrap();
    // The temporary folder itself may lie behind a link.
    let top = fs::canonicalize(folder.path()).unwrap();
    let base = top.join("base");
    fs::create_dir_all(base.join("src/sub/empty")).unwrap();
    fs::write(base.join("src/a"), "1").unwrap();
    fs::write(base.join("src/sub/b"), "2").unwrap();
    fs::create_dir(top.join("out")).unwrap();
    fs::write(top.join("out/secret"), "s").unwrap();
    Tree { _folder: folder, base }
}

fn sources(tree: &Tree) -> Sources {
    Sources::new(&tree.base, Vec::new())
}

fn reason(error: &Error) -> (Option<&str>, Option<&str>) {
    let text = |key: &str| error.context().get(key).and_then(|value| value.as_str());
    (text("reason"), text("child"))
}

fn read(opened: Result<File>) -> String {
    let mut text = String::new();
    opened.unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn lists_folders_with_empty_ones_and_without_what_is_no_file() {
    let tree = tree();
    rustix::fs::mknodat(
        CWD,
        tree.base.join("src/pipe"),
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let mut held = sources(&tree).open_dir(&PosixPath::new("src")).unwrap();
    let listed = held.list().unwrap();
    let names: Vec<_> = listed.iter().map(|entry| (lossy(&entry.path), entry.is_dir)).collect();
    let want = [("a", false), ("sub", true), ("sub/b", false), ("sub/empty", true)];
    assert_eq!(names, want.map(|(name, is_dir)| (name.to_owned(), is_dir)));
    assert_eq!(read(held.open(b"sub/b")), "2");
    assert_eq!(read(held.open(b"a")), "1");
    let pipe = held.open(b"pipe").unwrap_err();
    assert_eq!(reason(&pipe), (Some("path_changed_during_copy"), Some("pipe")));
}

#[test]
fn refuses_what_is_elsewhere_by_its_name() {
    let tree = tree();
    let secret = tree.base.parent().unwrap().join("out/secret");
    let absolute = PosixPath::new(secret.to_str().unwrap());
    for src in [PosixPath::new("../out/secret"), absolute.clone()] {
        let error = sources(&tree).open_file(&src).unwrap_err();
        assert_eq!(error.class(), Some(crate::ErrorClass::LocalFileReadError));
        assert_eq!(reason(&error).0, Some("outside_base_dir"), "{src}");
        let grant = SourceGrant {
            path: "/mnt/g".to_owned(),
            host: tree.base.parent().unwrap().join("out"),
        };
        let granted = Sources::new(&tree.base, vec![grant]);
        assert_eq!(read(granted.open_file(&src)), "s", "{src}");
    }
    assert_eq!(read(sources(&tree).open_file(&PosixPath::new("src/../src/a"))), "1");
}

#[test]
fn refuses_links_on_the_way_and_in_the_folder() {
    let tree = tree();
    symlink("src", tree.base.join("l")).unwrap();
    symlink("../../out/secret", tree.base.join("src/s")).unwrap();
    let sources = sources(&tree);
    let through = sources.open_file(&PosixPath::new("l/a")).unwrap_err();
    assert_eq!(reason(&through), (Some("symlink_not_supported"), Some("l")));
    let leaf = sources.open_file(&PosixPath::new("src/s")).unwrap_err();
    assert_eq!(reason(&leaf), (Some("symlink_not_supported"), Some("s")));
    let listed = sources.open_dir(&PosixPath::new("src")).unwrap().list().unwrap_err();
    assert_eq!(reason(&listed), (Some("symlink_not_supported"), Some("s")));
    let missing = sources.open_dir(&PosixPath::new("none")).unwrap_err();
    assert_eq!(reason(&missing), (Some("path_not_found"), None));
    let leaf = sources.open_file(&PosixPath::new("src/none")).unwrap_err();
    assert_eq!(reason(&leaf), (Some("path_changed_during_copy"), Some("none")));
}

#[test]
fn what_is_swapped_later_changes_nothing_that_is_held() {
    let tree = tree();
    let mut held = sources(&tree).open_dir(&PosixPath::new("src")).unwrap();
    assert_eq!(read(held.open(b"sub/b")), "2");
    // The folder is replaced by a link to somewhere else: what is held is still the folder.
    fs::rename(tree.base.join("src"), tree.base.join("moved")).unwrap();
    symlink("../out", tree.base.join("src")).unwrap();
    assert_eq!(read(held.open(b"sub/b")), "2");
    assert_eq!(read(held.open(b"a")), "1");
    // What lies in it is replaced by a link: that is refused.
    fs::remove_file(tree.base.join("moved/a")).unwrap();
    symlink("../../out/secret", tree.base.join("moved/a")).unwrap();
    let swapped = held.open(b"a").unwrap_err();
    assert_eq!(reason(&swapped), (Some("symlink_not_supported"), Some("a")));
}
