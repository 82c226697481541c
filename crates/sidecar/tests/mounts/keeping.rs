//! What is open or written stays, whatever is done to the mount meanwhile.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bastide_mount::MountSpec;

use crate::harness::{Mounted, drop_pages, may_mount};
use crate::proxy::{Listener, ProxyAction, proxy};
use crate::servers::{DEADLINE, Kind, Server};

/// Several blocks, each of which is another.
fn content() -> Vec<u8> {
    (0..6 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn whoever_has_a_file_open_goes_on_when_its_folder_is_moved() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::with_cache(server.spec(), None);
    let bytes = content();
    fs::create_dir_all(mount.at("folder/inner")).unwrap();
    for name in ["read", "written"] {
        fs::write(mount.at(format!("folder/inner/{name}")), &bytes).unwrap();
    }
    drop_pages();
    let reader = File::open(mount.at("folder/inner/read")).unwrap();
    let writer = File::options().write(true).open(mount.at("folder/inner/written")).unwrap();
    let mut part = [0; 4096];
    reader.read_exact_at(&mut part, 0).unwrap();
    // Twice: a copy is copied as well.
    for (from, to) in [("folder", "other"), ("other", "third")] {
        fs::rename(mount.at(from), mount.at(to)).unwrap();
        drop_pages();
        let at = if to == "other" { 5 << 20 } else { 3 << 20 };
        reader.read_exact_at(&mut part, at as u64).unwrap();
        assert!(part[..] == bytes[at..at + part.len()], "{to}");
    }
    writer.write_all_at(b"end", bytes.len() as u64).unwrap();
    writer.sync_all().unwrap();
    drop((reader, writer, mount));
    let mount = Mounted::with_cache(server.spec(), None);
    let written = fs::read(mount.at("third/inner/written")).unwrap();
    assert!(written[..bytes.len()] == bytes && written[bytes.len()..] == *b"end");
    assert!(fs::read(mount.at("third/inner/read")).unwrap() == bytes);
    assert!(!mount.at("folder").exists() && !mount.at("other").exists());
}

#[test]
fn a_folder_is_not_moved_over_one_that_somebody_else_just_made() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let spec = MountSpec { metadata_ttl_ms: 60_000, ..server.spec() };
    let (mount, other) =
        (Mounted::with_cache(spec, None), Mounted::with_cache(server.spec(), None));
    fs::create_dir(mount.at("folder")).unwrap();
    fs::write(mount.at("folder/file"), "mine").unwrap();
    // From here on it is believed that there is nothing else.
    assert_eq!(fs::read_dir(&mount.path).unwrap().count(), 1);
    fs::create_dir(other.at("taken")).unwrap();
    fs::write(other.at("taken/file"), "theirs").unwrap();
    let refused = fs::rename(mount.at("folder"), mount.at("taken")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    for (path, content) in [("folder/file", "mine"), ("taken/file", "theirs")] {
        assert_eq!(fs::read_to_string(mount.at(path)).unwrap(), content);
    }
}

/// A mount whose store does not answer while the flag is set, and says each time that it was asked.
fn silent(server: &Server) -> (Listener, Arc<AtomicBool>, mpsc::Receiver<()>, Mounted) {
    let is_silent = Arc::new(AtomicBool::new(false));
    let fate = Arc::clone(&is_silent);
    let (asked, is_asked) = mpsc::channel();
    let between = proxy(server.port, move || {
        if !fate.load(Ordering::SeqCst) {
            return ProxyAction::Pass;
        }
        // Whoever waits for it may be done.
        let _ = asked.send(());
        let (_keep, never) = mpsc::channel::<()>();
        while fate.load(Ordering::SeqCst) {
            let _ = never.recv_timeout(Duration::from_millis(20));
        }
        ProxyAction::Pass
    });
    let source = server.source_at(&between.endpoint());
    let spec = MountSpec { source, timeout_ms: 120_000, metadata_ttl_ms: 60_000, ..server.spec() };
    (between, is_silent, is_asked, Mounted::with_cache(spec, None))
}

#[test]
fn a_file_that_is_still_being_stored_at_the_end_is_kept() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let (_between, is_silent, is_asked, mut mount) = silent(&server);
    assert!(!mount.at("file").exists());
    let bytes = content();
    let file = File::create(mount.at("file")).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    is_silent.store(true, Ordering::SeqCst);
    let closing = thread::spawn(move || drop(file));
    is_asked.recv_timeout(DEADLINE).unwrap();
    let unstored = mount.stop(Duration::from_millis(200));
    is_silent.store(false, Ordering::SeqCst);
    let [(path, Some(kept))] = unstored.as_slice() else { panic!("{unstored:?}") };
    assert_eq!(path, "file");
    assert!(fs::read(kept).unwrap() == bytes, "it is kept whole");
    drop(mount);
    closing.join().unwrap();
}

#[test]
fn writes_that_wait_for_the_store_are_not_all_in_memory() {
    const FILES: u64 = 160;
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let name = |number: u64| format!("f{number}");
    let first = Mounted::with_cache(server.spec(), None);
    thread::scope(|scope| {
        for begin in 0..8 {
            let folder = &first.path;
            scope.spawn(move || {
                for number in (begin..FILES).step_by(8) {
                    fs::write(folder.join(name(number)), [7]).unwrap();
                }
            });
        }
    });
    drop(first);
    let (_between, is_silent, _, mount) = silent(&server);
    // From here on it is known what is there, and the store is asked for content alone.
    for number in 0..FILES {
        assert_eq!(fs::metadata(mount.at(name(number))).unwrap().len(), 1);
    }
    is_silent.store(true, Ordering::SeqCst);
    let before = mount.counts().writes;
    thread::scope(|scope| {
        for number in 0..FILES {
            let path = mount.at(name(number));
            scope.spawn(move || {
                let file = File::options().write(true).open(path).unwrap();
                let byte = u8::try_from(number).unwrap();
                // From a page on, so that the kernel sends it whole.
                file.write_all_at(&vec![byte; 1 << 20], 4096).unwrap();
            });
        }
        let deadline = std::time::Instant::now() + DEADLINE;
        while mount.counts().writes < before + FILES {
            assert!(std::time::Instant::now() < deadline, "{:?}", mount.counts());
        }
        let memory = peak_memory(mount.pid());
        is_silent.store(false, Ordering::SeqCst);
        assert!(memory < 64 << 20, "{} MiB", memory >> 20);
    });
    drop_pages();
    for number in 0..FILES {
        let read = fs::read(mount.at(name(number))).unwrap();
        let byte = u8::try_from(number).unwrap();
        assert!(read[0] == 7 && read[4096..] == vec![byte; 1 << 20], "{number}");
    }
}

/// The most memory a process had, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
