//! Leaving something in a folder that gives whoever finds it more than the folder's owner had. Everything is
//! tried beneath the current folder, each under a name of its own.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, XattrFlags, chmodat,
    chownat, fchmod, linkat, mkdirat, mknodat, openat, openat2, renameat_with, setxattr,
};
use rustix::io::Errno;

use super::sys;

const BOTH: Mode = Mode::SUID.union(Mode::SGID).union(Mode::from_bits_retain(0o755));

/// A capability to become anybody, as the kernel writes it: version 2, and version 3 for a root of the
/// machine itself.
const CAPABILITY: [u8; 20] = capability(0x0200_0001);
const CAPABILITY_OF_ROOT: [u8; 24] = {
    let (version_3, mut all, mut at) = (capability(0x0300_0001), [0; 24], 0);
    while at < version_3.len() {
        all[at] = version_3[at];
        at += 1;
    }
    all
};

const fn capability(version: u32) -> [u8; 20] {
    let [a, b, c, d] = version.to_le_bytes();
    // CAP_SETUID, permitted and effective.
    [a, b, c, d, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// What could be left. That of a call which the kernel itself does not take at its word is for whoever looks
/// at the folder to find.
pub(super) fn lasting() -> io::Result<Vec<String>> {
    let mut left = sys::not_refused(&sys::set_id_calls());
    let mut tell = |what: &str, answer: Result<(), Errno>| {
        if answer.is_ok() {
            left.push(format!("{what}: done"));
        }
    };
    let new = |name: &str| fs::write(name, "#!/bin/sh\n");
    new("by-chmod")?;
    tell("chmodat", chmodat(CWD, "by-chmod", BOTH, AtFlags::empty()));
    let file = fs::File::create("by-fchmod")?;
    tell("fchmod", fchmod(&file, Mode::SGID | Mode::XGRP));
    let made = OFlags::WRONLY | OFlags::CREATE;
    tell("openat", openat(CWD, "by-openat", made, BOTH).map(drop));
    let opened = openat2(CWD, "by-openat2", made, BOTH, ResolveFlags::empty());
    tell("openat2", opened.map(drop));
    if let Ok(nameless) = openat(CWD, ".", OFlags::WRONLY | OFlags::TMPFILE, BOTH) {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&nameless.as_fd()));
        tell("O_TMPFILE", linkat(CWD, path, CWD, "by-tmpfile", AtFlags::SYMLINK_FOLLOW));
    }
    tell("mknodat", mknodat(CWD, "by-mknod", FileType::RegularFile, BOTH, 0));
    for (name, kind) in [("char", FileType::CharacterDevice), ("block", FileType::BlockDevice)] {
        // Nobody's device, which the kernel lets anybody make, and a disk.
        tell(name, mknodat(CWD, format!("by-{name}-0"), kind, Mode::RUSR, 0));
        tell(name, mknodat(CWD, format!("by-{name}-1"), kind, Mode::RUSR, 0x0103));
    }
    new("moved")?;
    let whiteout = renameat_with(CWD, "moved", CWD, "moved-away", RenameFlags::WHITEOUT);
    tell("whiteout", whiteout);
    let _ = mkdirat(CWD, "by-mkdir", BOTH);
    for (uid, gid) in [(0, 0), (33, 33), (65534, 65534), (4242, 4242)] {
        let name = format!("of-{uid}");
        new(&name)?;
        let own = rustix::process::geteuid().as_raw();
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let given = chownat(CWD, name.as_str(), Some(user), Some(group), AtFlags::empty());
        tell(
            &format!("chown to {uid}"),
            given.and(if own == uid { Err(Errno::PERM) } else { Ok(()) }),
        );
    }
    left.extend(capabilities("")?);
    Ok(left)
}

/// File capabilities that could be written.
fn capabilities(prefix: &str) -> io::Result<Vec<String>> {
    let mut left = Vec::new();
    let values: [(&str, &[u8]); 2] = [("v2", &CAPABILITY), ("v3", &CAPABILITY_OF_ROOT)];
    for (name, value) in values {
        let path = format!("{prefix}{name}");
        fs::write(&path, "#!/bin/sh\n")?;
        let path = Path::new(&path);
        if setxattr(path, "security.capability", value, XattrFlags::empty()).is_ok() {
            left.push(format!("{}: has a capability", path.display()));
        }
    }
    Ok(left)
}
