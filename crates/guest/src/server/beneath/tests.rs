//! Both ways to follow a path, held against each other, against the system, and against somebody
//! who changes the tree meanwhile.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rustix::fs::fstat;

use super::*;

const BOTH: [Resolver; 2] = [Resolver::Kernel, Resolver::Walk];

fn guest_path(path: &Path) -> UnresolvedPath {
    path.to_str().unwrap().parse().unwrap()
}

/// A folder with a workspace and something beside it that is nobody's business.
struct Fixture {
    _folder: tempfile::TempDir,
    top: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("ws")).unwrap();
        fs::create_dir_all(top.join("out/deep")).unwrap();
        fs::write(top.join("out/secret"), "secret").unwrap();
        Self { _folder: folder, top }
    }

    fn ws(&self, path: &str) -> PathBuf {
        self.top.join("ws").join(path)
    }

    fn roots(&self, resolver: Resolver) -> Roots {
        let ws = self.ws("").to_str().unwrap().trim_end_matches('/').to_owned();
        Roots::open(&[ws], &[], &[], resolver).unwrap()
    }
}

fn why(result: Result<Opened, PathError>) -> Option<PathErrorKind> {
    result.err().map(|error| error.why)
}

#[test]
fn follows_links_that_stay_and_refuses_those_that_leave() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.ws("d")).unwrap();
    fs::write(fixture.ws("d/f"), "inside").unwrap();
    let inside_absolute = fixture.ws("d/f");
    let secret = fixture.top.join("out/secret");
    for (link, target) in [
        ("near", Path::new("d/f")),
        ("absolute", inside_absolute.as_path()),
        ("around", Path::new("../ws/d/f")),
        ("d/up", Path::new("..")),
        ("out", Path::new("../out/secret")),
        ("out_absolute", secret.as_path()),
        ("top", Path::new("/")),
        ("loop", Path::new("loop")),
        ("dangling", Path::new("none")),
    ] {
        symlink(target, fixture.ws(link)).unwrap();
    }
    for resolver in BOTH {
        let roots = fixture.roots(resolver);
        let open = |path: &str| {
            let path = guest_path(&fixture.ws(path));
            roots.open_at(&path, OFlags::RDONLY, TrailingSymlink::Target)
        };
        let around = ["d/up/../ws/near", "../ws/d/f", "d/up/d/../d/f"];
        for path in
            ["d/f", "near", "absolute", "around", "d/up/d/f", "d/up/near"].iter().chain(&around)
        {
            let opened = open(path).unwrap();
            assert_eq!(opened.path, inside_absolute.to_str().unwrap().as_bytes(), "{path}");
        }
        for path in ["out", "out_absolute", "top", "top/etc/passwd", "d/up/..", "../out/secret"] {
            assert_eq!(why(open(path)), Some(PathErrorKind::Outside), "{path}");
        }
        let cases = [
            ("loop", Errno::LOOP),
            ("dangling", Errno::NOENT),
            ("none/x", Errno::NOENT),
            ("d/f/x", Errno::NOTDIR),
        ];
        for (path, errno) in cases {
            assert_eq!(why(open(path)), Some(PathErrorKind::Os(errno)), "{path} by {resolver:?}");
        }
        let outside = guest_path(&secret);
        let opened = roots.open_at(&outside, OFlags::RDONLY, TrailingSymlink::Target);
        assert_eq!(why(opened), Some(PathErrorKind::Outside));
    }
}

#[test]
fn finds_the_innermost_root_and_goes_from_one_to_another() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.top.join("grant/sub")).unwrap();
    fs::create_dir_all(fixture.ws("cache")).unwrap();
    fs::write(fixture.top.join("grant/sub/f"), "granted").unwrap();
    symlink(fixture.top.join("grant/sub"), fixture.ws("link")).unwrap();
    symlink(fixture.ws("cache"), fixture.top.join("grant/back")).unwrap();
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    for resolver in BOTH {
        let writable = [text(fixture.top.join("ws")), text(fixture.ws("cache"))];
        let readable = [text(fixture.top.join("grant"))];
        let roots = Roots::open(&writable, &readable, &[], resolver).unwrap();
        let open = |path: PathBuf| {
            roots.open_at(&guest_path(&path), OFlags::PATH, TrailingSymlink::Target).unwrap()
        };
        let granted = open(fixture.ws("link/f"));
        assert_eq!(granted.path, text(fixture.top.join("grant/sub/f")).as_bytes());
        assert!(!granted.attributes.writable);
        let cache = open(fixture.top.join("grant/back"));
        assert_eq!(cache.path, text(fixture.ws("cache")).as_bytes());
        assert!(cache.attributes.writable);
        let refused = roots.locate(
            &names_of(&guest_path(&fixture.ws("link/new/file"))),
            TrailingSymlink::Target,
            MissingParents::IsMade,
        );
        assert_eq!(refused.err().map(|error| error.why), Some(PathErrorKind::ReadOnly));
    }
}

#[test]
fn a_root_can_be_a_file() {
    let fixture = Fixture::new();
    let file = fixture.top.join("file");
    fs::write(&file, "granted").unwrap();
    let text = file.to_str().unwrap().to_owned();
    for resolver in BOTH {
        let roots = Roots::open(std::slice::from_ref(&text), &[], &[], resolver).unwrap();
        let opened =
            roots.open_at(&guest_path(&file), OFlags::RDONLY, TrailingSymlink::Target).unwrap();
        assert_eq!(opened.regular().unwrap().size, 7);
        let below =
            roots.open_at(&guest_path(&file.join("x")), OFlags::RDONLY, TrailingSymlink::Target);
        assert_eq!(why(below), Some(PathErrorKind::Os(Errno::NOTDIR)));
    }
}

/// One thing of a random tree.
#[derive(Debug, Clone)]
enum Node {
    Dir(String),
    File(String),
    Link(String, String),
}

fn path_of_names() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof!["a", "b", "c"], 1..4).prop_map(|names| names.join("/"))
}

fn target() -> impl Strategy<Value = String> {
    let name = prop_oneof![4 => prop_oneof!["a", "b", "c"], 2 => Just("..".to_owned()), 1 => Just(".".to_owned())];
    let relative = proptest::collection::vec(name, 1..5).prop_map(|names| names.join("/"));
    let prefix =
        prop_oneof![6 => Just(""), 2 => Just("TOP/ws/"), 1 => Just("TOP/out/"), 1 => Just("/")];
    (prefix, relative).prop_map(|(prefix, relative)| format!("{prefix}{relative}"))
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        path_of_names().prop_map(Node::Dir),
        path_of_names().prop_map(Node::File),
        (path_of_names(), target()).prop_map(|(path, target)| Node::Link(path, target)),
    ]
}

fn build(fixture: &Fixture, nodes: &[Node]) {
    let top = fixture.top.to_str().unwrap();
    for node in nodes {
        let (Node::Dir(path) | Node::File(path) | Node::Link(path, _)) = node;
        // Nothing is made through a link: it may lead anywhere on this machine.
        let mut above = Path::new(path).ancestors();
        if above.any(|path| fixture.ws(path.to_str().unwrap()).is_symlink()) {
            continue;
        }
        // What does not fit with what is there already is left out.
        drop(match node {
            Node::Dir(path) => fs::create_dir_all(fixture.ws(path)),
            Node::File(path) => fs::write(fixture.ws(path), path),
            Node::Link(path, target) => symlink(target.replace("TOP", top), fixture.ws(path)),
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn both_ways_and_the_system_agree(
        nodes in proptest::collection::vec(node(), 0..12),
        paths in proptest::collection::vec(path_of_names(), 1..8),
    ) {
        let fixture = Fixture::new();
        build(&fixture, &nodes);
        let [kernel, walk] = BOTH.map(|resolver| fixture.roots(resolver));
        for path in &paths {
            let full = fixture.ws(path);
            let open = |roots: &Roots| roots.open_at(&guest_path(&full), OFlags::PATH, TrailingSymlink::Target);
            let (by_kernel, by_walk) = (open(&kernel), open(&walk));
            let seen = |opened: &Result<Opened, PathError>| match opened {
                Ok(opened) => Ok((fstat(&opened.file).unwrap().st_ino, opened.path.clone())),
                Err(error) => Err(error.why),
            };
            prop_assert_eq!(seen(&by_kernel), seen(&by_walk), "{}", path);
            if let Ok(opened) = &by_walk {
                let really = fs::read_link(held_path(&opened.file)).unwrap();
                prop_assert!(really.starts_with(fixture.top.join("ws")), "{path} is {really:?}");
                prop_assert_eq!(really.to_str().unwrap().as_bytes(), opened.path.as_slice());
            }
            // The system follows links wherever they lead; inside, it must be to the same place.
            match full.canonicalize() {
                Ok(real) if real.starts_with(fixture.top.join("ws")) => {
                    prop_assert_eq!(seen(&by_walk).unwrap().0, fs::metadata(real).unwrap().ino());
                }
                Ok(_) => prop_assert_eq!(seen(&by_walk), Err(PathErrorKind::Outside)),
                Err(_) => {}
            }
            // Where it is not there, making it must stay inside, too.
            for (roots, leaf) in [(&kernel, TrailingSymlink::Target), (&walk, TrailingSymlink::Itself)] {
                if let Ok(place) = roots.locate(&names_of(&guest_path(&full)), leaf, MissingParents::IsMade) {
                    let folder = fs::read_link(held_path(&place.folder)).unwrap();
                    prop_assert!(folder.starts_with(fixture.top.join("ws")), "{path} in {folder:?}");
                }
            }
        }
        prop_assert_eq!(fs::read_dir(fixture.top.join("out")).unwrap().count(), 2);
    }
}
