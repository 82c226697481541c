//! Every operation, while somebody swaps what is on its way: never anything outside is touched,
//! shown or waited for.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bastide_proto::boot::Resolver;
use bastide_proto::files::{Glob, Write};
use bastide_proto::request::{Entry, EntryKind, Put, PutItem};
use bastide_proto::{Frame, OnConflict, UnresolvedPath};
use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

use super::pattern::Pattern;
use super::remove::{Removal, RemoveProgress};
use super::rename::Renaming;
use super::watch::Tree;
use super::{change, describe, folder, glob, read, write};
use crate::accounts::Accounts;
use crate::server::beneath::Roots;
use crate::server::put::Layout;

/// How often each operation is done at least, and how often something is swapped meanwhile.
const ROUNDS: usize = 150;
const SWAPS: u64 = 50;

/// How long all rounds of one trial may take; nothing in them may block.
const DEADLINE: Duration = Duration::from_secs(60);

/// A workspace `ws`, and `out` beside it.
struct Fixture {
    _folder: tempfile::TempDir,
    top: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("ws")).unwrap();
        fs::create_dir_all(top.join("out/sub")).unwrap();
        for file in ["secret", "f", "sub/f"] {
            fs::write(top.join("out").join(file), "secret").unwrap();
        }
        Self { _folder: folder, top }
    }

    fn roots(&self, resolver: Resolver) -> Roots {
        let ws = self.top.join("ws").to_str().unwrap().to_owned();
        Roots::open(&[ws], &[], &[], resolver).unwrap()
    }

    /// Everything about what is outside that would show if somebody had touched it.
    fn outside(&self) -> Vec<String> {
        let mut seen = Vec::new();
        describe_tree(&self.top.join("out"), &mut seen);
        seen
    }
}

fn describe_tree(path: &Path, seen: &mut Vec<String>) {
    let m = fs::symlink_metadata(path).unwrap();
    let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    let facts = (m.ino(), m.mode(), m.uid(), m.gid(), m.size(), m.nlink(), times);
    seen.push(format!("{} {facts:?}", path.display()));
    if m.is_dir() {
        let mut entries: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| describe_tree(entry, seen));
    }
}

/// Puts two things into place that are swapped from then on; also repairs what was removed.
type Prepare = fn(&Path, [&Path; 2]) -> std::io::Result<()>;

/// What is swapped: two names in the workspace, and what they are at first.
struct Attack {
    name: &'static str,
    names: [&'static str; 2],
    prepare: Prepare,
}

fn real_folder(at: &Path) -> std::io::Result<()> {
    fs::create_dir_all(at.join("sub"))?;
    real_file(&at.join("f"))?;
    real_file(&at.join("sub/f"))
}

/// Never through a link: what is outside must not be touched by the attack itself.
fn real_file(at: &Path) -> std::io::Result<()> {
    clear(at);
    fs::File::create_new(at)?.write_all(b"inside")
}

const ATTACKS: [Attack; 5] = [
    Attack {
        name: "a folder and a link out",
        names: ["x", "y"],
        prepare: |top, [one, other]| {
            real_folder(one)?;
            symlink(top.join("out"), other)
        },
    },
    Attack {
        name: "a folder below and a link out",
        names: ["x/sub", "x/bus"],
        prepare: |top, [one, other]| {
            real_folder(&top.join("ws/x"))?;
            fs::create_dir_all(one)?;
            symlink("../../out/sub", other)
        },
    },
    Attack {
        name: "a file and a link out",
        names: ["x/f", "x/g"],
        prepare: |top, [one, other]| {
            real_folder(&top.join("ws/x"))?;
            real_file(one)?;
            symlink(top.join("out/secret"), other)
        },
    },
    Attack {
        name: "a file and a pipe",
        names: ["x/f", "x/g"],
        prepare: |top, [one, other]| {
            real_folder(&top.join("ws/x"))?;
            real_file(one)?;
            Ok(mknodat(CWD, other, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?)
        },
    },
    Attack {
        name: "two folders",
        names: ["x", "y"],
        prepare: |_, [one, other]| {
            real_folder(one)?;
            fs::create_dir_all(other.join("sub"))
        },
    },
];

/// Removes what is there without following it.
fn clear(path: &Path) {
    drop(match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    });
}

/// Swaps until told to stop; puts everything back where an operation removed it.
fn swap_until(stop: &AtomicBool, swaps: &AtomicU64, top: &Path, attack: &Attack) {
    let [one, other] = attack.names.map(|name| top.join("ws").join(name));
    while !stop.load(Ordering::Relaxed) {
        match renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE) {
            Ok(()) => {
                swaps.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {
                clear(&one);
                clear(&other);
                // The operation may be removing as we make; the next round makes it again.
                drop((attack.prepare)(top, [&one, &other]));
            }
        }
    }
}

/// An operation on the workspace under attack; it says what it saw, which must not be secret.
type Operation = fn(&Roots, &dyn Fn(&str) -> UnresolvedPath) -> Vec<u8>;

const OPERATIONS: [(&str, Operation); 13] = [
    ("read", |roots, at| {
        let mut seen = Vec::new();
        for path in ["x/f", "x/sub/f", "x/secret"] {
            if let Ok((opened, _)) = read::open(roots, &at(path)) {
                let mut content = String::new();
                fs::File::from(opened.file).read_to_string(&mut content).unwrap();
                seen.extend(content.bytes());
            }
        }
        seen
    }),
    ("write", |roots, at| {
        for path in ["x/f", "x/new", "x/sub/f", "x/sub/a/b"] {
            for (new, chunks) in [(false, &b"written"[..]), (true, b"new")] {
                let (size, mode) = (None, Some(0o640));
                let write = Write { path: at(path), mode, new, size, pass: None };
                drop(write::whole(roots, &write, chunks));
            }
        }
        Vec::new()
    }),
    ("list", |roots, at| {
        let mut seen = Vec::new();
        for path in ["x", "x/sub"] {
            let Ok(opened) = folder::open(roots, &at(path)) else { continue };
            while let Ok(Some(entries)) = folder::some_described(&opened.file, &Accounts::default())
            {
                entries.iter().for_each(|(name, _)| seen.extend_from_slice(name));
            }
        }
        seen
    }),
    ("stat", |roots, at| {
        let paths = ["x/secret", "x/sub/secret"];
        let found = paths.map(|path| describe::stat(roots, &at(path), true));
        if found.iter().any(Result::is_ok) { b"secret".to_vec() } else { Vec::new() }
    }),
    ("make_dir", |roots, at| {
        for path in ["x/made", "x/sub/made", "x/a/b/c", "x/f"] {
            drop(change::make_dir(roots, &at(path), true));
        }
        Vec::new()
    }),
    ("set_mode", |roots, at| {
        for path in ["x", "x/f", "x/secret", "x/sub", "x/sub/f"] {
            drop(change::set_mode(roots, &at(path), 0o700));
        }
        Vec::new()
    }),
    ("set_owner", |roots, at| {
        let own = rustix::process::geteuid().as_raw().to_string();
        let ids = change::Ids::of(Some(&own), None).unwrap();
        for path in ["x", "x/f", "x/secret", "x/sub/f"] {
            drop(change::set_owner(roots, &at(path), ids, true));
        }
        Vec::new()
    }),
    ("symlink", |roots, at| {
        drop(change::symlink(roots, &at("x/link"), b"anywhere"));
        drop(change::symlink(roots, &at("x/sub/link"), b"anywhere"));
        Vec::new()
    }),
    ("remove", |roots, at| {
        for path in ["x/f", "x/secret", "x/sub/f"] {
            drop(Removal::begin(roots, &at(path)).and_then(|removal| removal.remove_one()));
        }
        for path in ["x/sub", "x"] {
            let Ok(mut removal) = Removal::begin(roots, &at(path)) else { continue };
            while let Ok(RemoveProgress::More) = removal.remove_some(roots) {}
        }
        Vec::new()
    }),
    ("rename", |roots, at| {
        for (from, to) in [("x/f", "x/moved"), ("x/moved", "x/sub/f"), ("x/secret", "stolen")] {
            let renaming = Renaming::begin(roots, &at(from), &at(to));
            drop(renaming.and_then(|renaming| renaming.rename()));
        }
        Vec::new()
    }),
    ("glob", |roots, at| {
        let glob = Glob { base: at(""), pattern: "x/**".to_owned(), max: 1000 };
        let pattern = Pattern::parse(&glob.pattern).unwrap();
        let Ok(mut search) = glob::Search::begin(roots, &glob, pattern) else { return Vec::new() };
        let mut seen = Vec::new();
        while let Ok((found, is_end)) = search.some(roots) {
            found.iter().for_each(|path| seen.extend_from_slice(path));
            if is_end {
                break;
            }
        }
        seen
    }),
    ("watch", |roots, at| {
        use rustix::fs::inotify::{CreateFlags, init};
        let queue = init(CreateFlags::NONBLOCK).unwrap();
        match Tree::begin(roots, queue, &at("x"), true) {
            Ok((tree, _)) => tree.path().to_vec(),
            Err(_) => Vec::new(),
        }
    }),
    ("put", |roots, at| {
        for (through_links, existing) in
            [(true, OnConflict::Overwritten), (false, OnConflict::Replaced)]
        {
            let base = at("x").as_str().parse().unwrap();
            let put = Put { user: None, base, existing, through_links };
            let Ok(mut layout) = Layout::begin(roots, &put) else { continue };
            drop(layout.take(roots, frames()));
        }
        Vec::new()
    }),
];

/// A small tree, as it comes from a host.
fn frames() -> Vec<Frame> {
    use bastide_proto::frame::Tag;
    let item = |path: &str, kind| {
        let entry = Entry { mode: Some(0o750), ..Entry::new(path, kind) };
        Frame::new(Tag::Item, bastide_proto::encode(&PutItem::Entry(entry)).unwrap())
    };
    let target = b"anywhere".to_vec().into();
    vec![
        item("sub", EntryKind::Dir),
        item("sub/f", EntryKind::File),
        Frame::new(Tag::Input, &b"put"[..]),
        Frame::new(Tag::InputEnd, &b""[..]),
        item("f", EntryKind::File),
        Frame::new(Tag::Input, &b"put"[..]),
        Frame::new(Tag::InputEnd, &b""[..]),
        item("sub/l", EntryKind::Symlink { target }),
        item("a/b", EntryKind::Dir),
        item("hard", EntryKind::Hardlink { to: b"f".to_vec().into() }),
    ]
}

/// Runs every operation under one attack.
fn trial(
    resolver: Resolver,
    attack: &Attack,
    attacker: impl Fn(&AtomicBool, &AtomicU64, &Path) + Sync,
) {
    let fixture = Fixture::new();
    let [one, other] = attack.names.map(|name| fixture.top.join("ws").join(name));
    (attack.prepare)(&fixture.top, [&one, &other]).unwrap();
    let roots = fixture.roots(resolver);
    let before = fixture.outside();
    let at = |path: &str| -> UnresolvedPath {
        let path = fixture.top.join("ws").join(path);
        path.to_str().unwrap().trim_end_matches('/').parse().unwrap()
    };
    for (name, operation) in OPERATIONS {
        let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
        let (done, all_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| attacker(&stop, &swaps, &fixture.top));
            let (roots, at, swaps) = (&roots, &at, &swaps);
            let rounds = scope.spawn(move || {
                let mut rounds = 0;
                while rounds < ROUNDS || swaps.load(Ordering::Relaxed) < SWAPS {
                    rounds += 1;
                    let seen = operation(roots, at);
                    let is_secret = seen.windows(6).any(|window| window == b"secret");
                    assert!(!is_secret, "{name} saw outside: {}", String::from_utf8_lossy(&seen));
                }
                drop(done);
            });
            // Only its end is waited for; nothing is sent.
            let late = all_done.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout);
            stop.store(true, Ordering::Relaxed);
            let what = format!("{name} under {} by {resolver:?}", attack.name);
            if late {
                // A thread that is stuck cannot be joined; there is no other way out.
                println!("{what} did not end");
                std::process::abort();
            }
            if let Err(panic) = rounds.join() {
                std::panic::resume_unwind(panic);
            }
        });
        assert_eq!(fixture.outside(), before, "{name} under {} by {resolver:?}", attack.name);
    }
    assert!(!fixture.top.join("ws/stolen").exists());
}

#[test]
fn nothing_outside_is_touched_whatever_is_swapped_by_the_kernels_way() {
    for attack in &ATTACKS {
        trial(Resolver::Kernel, attack, |stop, swaps, top| swap_until(stop, swaps, top, attack));
    }
}

#[test]
fn nothing_outside_is_touched_whatever_is_swapped_name_by_name() {
    for attack in &ATTACKS {
        trial(Resolver::Walk, attack, |stop, swaps, top| swap_until(stop, swaps, top, attack));
    }
}

/// Mounting takes namespaces of one's own, so this test starts itself again in them.
#[test]
fn nothing_that_is_mounted_later_is_touched() {
    let mut inside = std::process::Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--mount", "--"]);
    inside.arg(std::env::current_exe().unwrap());
    inside.args(["--exact", "server::files::races::mounts", "--ignored", "--nocapture"]);
    match inside.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let complained = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}{complained}");
            assert!(said.contains("1 passed"), "{said}");
        }
        Err(error) => println!("skipped: there is no `unshare` here: {error}"),
    }
}

#[test]
#[ignore = "started by `nothing_that_is_mounted_later_is_touched`, in namespaces of its own"]
fn mounts() {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};
    let attack = Attack {
        name: "a mount of what is outside",
        names: ["x", "y"],
        prepare: |_, [one, _]| real_folder(one),
    };
    for resolver in [Resolver::Kernel, Resolver::Walk] {
        trial(resolver, &attack, |stop, swaps, top| {
            let (out, at) = (top.join("out"), top.join("ws/x"));
            while !stop.load(Ordering::Relaxed) {
                drop(real_folder(&at));
                if mount_bind(&out, &at).is_ok() {
                    swaps.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                    while unmount(&at, UnmountFlags::DETACH).is_err() {
                        std::hint::spin_loop();
                    }
                }
            }
        });
    }
}

#[test]
fn a_descriptor_is_of_what_was_looked_at() {
    // The same trick as in the operations, once without a race: what is swapped after it was opened
    // does not change what is held.
    let fixture = Fixture::new();
    real_folder(&fixture.top.join("ws/x")).unwrap();
    let roots = fixture.roots(Resolver::Walk);
    let path: UnresolvedPath = fixture.top.join("ws/x/f").to_str().unwrap().parse().unwrap();
    let (opened, node) = read::open(&roots, &path).unwrap();
    clear(&fixture.top.join("ws/x/f"));
    symlink("../../out/secret", fixture.top.join("ws/x/f")).unwrap();
    let now = crate::server::beneath::stat_held(opened.file.as_fd()).unwrap();
    assert!(now.is_same_file(&node));
}
