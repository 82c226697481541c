//! Files, on every kind of server.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use crate::harness::{Mounted, may_mount};
use crate::servers::{Kind, Server};

/// Runs `check` on a mount of every server that is installed.
fn everywhere(check: impl Fn(Kind, &Mounted)) {
    if !may_mount() {
        return;
    }
    for kind in Kind::ALL {
        let Some(server) = Server::start(kind) else { continue };
        check(kind, &Mounted::new(server.spec()));
    }
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_there() {
    everywhere(|kind, mount| {
        eprintln!("{kind:?}");
        assert_eq!(names(&mount.path), Vec::<String>::new());
        fs::write(mount.at("a.txt"), "hello").unwrap();
        assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "hello");
        fs::create_dir(mount.at("folder")).unwrap();
        assert_eq!(names(&mount.at("folder")), Vec::<String>::new());
        fs::write(mount.at("folder/b"), vec![7; 300_000]).unwrap();
        assert_eq!(names(&mount.path), ["a.txt", "folder"]);
        assert_eq!(fs::metadata(mount.at("folder/b")).unwrap().len(), 300_000);

        let mut appended = File::options().append(true).open(mount.at("a.txt")).unwrap();
        appended.write_all(b" world").unwrap();
        drop(appended);
        assert_eq!(fs::read_to_string(mount.at("a.txt")).unwrap(), "hello world");

        let random = File::options().read(true).write(true).open(mount.at("a.txt")).unwrap();
        random.write_all_at(b"J", 0).unwrap();
        random.write_all_at(b"!", 20).unwrap();
        random.sync_all().unwrap();
        random.set_len(19).unwrap();
        drop(random);
        assert_eq!(fs::read(mount.at("a.txt")).unwrap(), b"Jello world\0\0\0\0\0\0\0\0");

        fs::rename(mount.at("a.txt"), mount.at("folder/c")).unwrap();
        assert_eq!(names(&mount.at("folder")), ["b", "c"]);
        // This server fails for good after two deletions at once in one folder.
        if kind == Kind::S3rver {
            return;
        }
        fs::rename(mount.at("folder"), mount.at("other")).unwrap();
        assert_eq!(names(&mount.path), ["other"]);
        assert_eq!(fs::read(mount.at("other/b")).unwrap(), vec![7; 300_000]);
        assert_eq!(
            fs::remove_dir(mount.at("other")).unwrap_err().raw_os_error(),
            Some(rustix::io::Errno::NOTEMPTY.raw_os_error())
        );
        fs::remove_file(mount.at("other/b")).unwrap();
        fs::remove_file(mount.at("other/c")).unwrap();
        assert_eq!(names(&mount.path), ["other"], "an empty folder stays");
        fs::remove_dir(mount.at("other")).unwrap();
        assert_eq!(names(&mount.path), Vec::<String>::new());
    });
}

#[test]
fn large_files_go_in_parts_and_come_back() {
    everywhere(|kind, mount| {
        eprintln!("{kind:?}");
        let content: Vec<u8> =
            (0..20 << 20).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(mount.at("large"), &content).unwrap();
        // Pages that were written are dropped, so that the next read asks the program.
        crate::harness::drop_pages();
        assert!(fs::read(mount.at("large")).unwrap() == content);
        let mut file = File::open(mount.at("large")).unwrap();
        file.seek(SeekFrom::Start(19 << 20)).unwrap();
        let mut tail = Vec::new();
        file.read_to_end(&mut tail).unwrap();
        assert!(tail == content[19 << 20..]);
    });
}

#[test]
fn what_waits_for_the_store_is_bounded() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec()).bounded(1 << 20);
    let first = File::create(mount.at("first")).unwrap();
    first.write_all_at(&[1; 600 << 10], 0).unwrap();
    let second = File::create(mount.at("second")).unwrap();
    let full = second.write_all_at(&[2; 600 << 10], 0).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(second.set_len(8 << 40).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(second.set_len(1 << 33).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // What is stored and closed waits no more.
    drop(first);
    // The kernel says that it is closed when it comes to it.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while let Err(error) = second.write_all_at(&[2; 600 << 10], 0) {
        assert!(std::time::Instant::now() < deadline, "{error}");
    }
    drop(second);
    assert_eq!(fs::metadata(mount.at("first")).unwrap().len(), 600 << 10);
    assert_eq!(fs::read(mount.at("second")).unwrap().len(), 600 << 10);
}

/// Whoever reads a folder holds a page of it, which may be older than what was written since.
#[test]
fn a_listing_of_before_undoes_no_write() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    fs::create_dir(mount.at("folder")).unwrap();
    // More than the kernel asks for at once, and less than a page of the store.
    for number in 0..300 {
        fs::write(mount.at(format!("folder/f{number:03}")), "a").unwrap();
    }
    let last = mount.at("folder/f299");
    let append = |text: &[u8]| {
        let mut file = File::options().append(true).open(&last).unwrap();
        file.write_all(text).unwrap();
    };
    let mut entries = fs::read_dir(mount.at("folder")).unwrap();
    entries.next().unwrap().unwrap();
    append(b"b");
    for entry in entries {
        // The kernel wants attributes along with names from those who ask for them.
        entry.unwrap().metadata().unwrap();
    }
    append(b"c");
    crate::harness::drop_pages();
    assert_eq!(fs::read_to_string(&last).unwrap(), "abc");
}
