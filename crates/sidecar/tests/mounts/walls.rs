//! What the program can do, as others see it.

use std::fs;

use bastide_mount::{Cache, MountSpec};
use rustix::io::Errno;

use crate::harness::{Mounted, drop_pages, may_mount};
use crate::servers::{Kind, Server};

#[test]
fn the_program_has_no_rights_and_leaves_no_core() {
    if !may_mount() {
        return;
    }
    let store = crate::hostile::store(|_| ("200 OK".into(), crate::hostile::page("")));
    let mount = Mounted::with_cache(crate::hostile::spec(&store), None);
    let pid = mount.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        assert!(status.contains("NoNewPrivs:\t1"), "a thread was there before the walls");
    }
    // No argument and no variable says anything.
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    assert_eq!(arguments.iter().filter(|byte| **byte == 0).count(), 1);
    assert!(fs::read(format!("/proc/{pid}/environ")).unwrap().is_empty());
}

#[test]
fn a_mount_that_is_read_only_is_not_written() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    fs::write(Mounted::new(server.spec()).at("file"), "x").unwrap();
    let mount = Mounted::new(MountSpec { read_only: true, ..server.spec() });
    let refused = |error: std::io::Error| {
        assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()), "{error}");
    };
    refused(fs::write(mount.at("file"), "y").unwrap_err());
    refused(fs::write(mount.at("new"), "y").unwrap_err());
    refused(fs::remove_file(mount.at("file")).unwrap_err());
    refused(fs::create_dir(mount.at("folder")).unwrap_err());
    refused(fs::rename(mount.at("file"), mount.at("other")).unwrap_err());
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"x");
}

#[test]
fn what_storage_cannot_hold_is_refused_by_name() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    fs::write(mount.at("file"), "x").unwrap();
    let errno = |error: std::io::Error| error.raw_os_error();
    let unsupported = Some(Errno::OPNOTSUPP.raw_os_error());
    assert_eq!(
        errno(std::os::unix::fs::symlink("file", mount.at("link")).unwrap_err()),
        unsupported
    );
    assert_eq!(errno(fs::hard_link(mount.at("file"), mount.at("link")).unwrap_err()), unsupported);
    let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"not \xff text");
    assert_eq!(
        errno(fs::write(mount.at(name), "x").unwrap_err()),
        Some(Errno::ILSEQ.raw_os_error())
    );
    let deep: std::path::PathBuf = std::iter::repeat_n("x".repeat(200), 6).collect();
    let made = fs::create_dir_all(mount.at(deep)).unwrap_err();
    assert_eq!(errno(made), Some(Errno::NAMETOOLONG.raw_os_error()));
    let set =
        rustix::fs::setxattr(mount.at("file"), "user.x", b"y", rustix::fs::XattrFlags::empty());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
    let space = rustix::fs::statvfs(&mount.path).unwrap();
    assert!(space.f_bavail > 0 && space.f_namemax == 255);
}

#[test]
fn changes_are_told_with_their_paths() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::new(server.spec());
    fs::create_dir(mount.at("d")).unwrap();
    fs::write(mount.at("d/a"), "12345").unwrap();
    fs::rename(mount.at("d/a"), mount.at("d/b")).unwrap();
    fs::remove_file(mount.at("d/b")).unwrap();
    fs::remove_dir(mount.at("d")).unwrap();
    let events: Vec<_> = mount
        .events()
        .into_iter()
        .map(|event| {
            format!("{} {} {:?} {} {}", event.op, event.path, event.to, event.size, event.outcome)
        })
        .collect();
    let expected = [
        "mkdir d None 0 ok",
        "write d/a None 5 ok",
        "rename d/a Some(\"d/b\") 5 ok",
        "delete d/b None 0 ok",
        "rmdir d None 0 ok",
    ];
    assert_eq!(events, expected);
}

#[test]
fn storing_much_at_once_takes_little_memory() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mount = Mounted::with_cache(server.spec(), None);
    // A command makes a file of any length in no time; all of it would have to be stored.
    let long = fs::File::create(mount.at("long")).unwrap();
    let too_long = Some(rustix::io::Errno::FBIG.raw_os_error());
    assert_eq!(long.set_len(1 << 42).unwrap_err().raw_os_error(), too_long);
    let written = std::os::unix::fs::FileExt::write_at(&long, b"x", 1 << 42);
    assert_eq!(written.unwrap_err().raw_os_error(), too_long);
    drop(long);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let path = mount.at(format!("f{number}"));
            scope.spawn(move || fs::write(path, vec![number; 8 << 20]).unwrap());
        }
    });
    let peak = peak(&mount);
    assert!(peak <= 64 << 10, "{peak} KiB at most");
}

/// The most memory that the program ever held, in KiB.
fn peak(mount: &Mounted) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn reading_much_takes_little_memory() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let cache = tempfile::tempdir().unwrap();
    let cache = Some(Cache { folder: cache.path().join("c"), size: 1 << 30 });
    let mount = Mounted::with_cache(server.spec(), cache);
    let mut file = fs::File::create(mount.at("large")).unwrap();
    for number in 0..96 {
        std::io::Write::write_all(&mut file, &vec![number; 1 << 20]).unwrap();
    }
    drop(file);
    drop_pages();
    let mut reader = fs::File::open(mount.at("large")).unwrap();
    let read = std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    assert_eq!(read, 96 << 20);
    let peak = peak(&mount);
    assert!(peak <= 64 << 10, "{peak} KiB at most");
}
