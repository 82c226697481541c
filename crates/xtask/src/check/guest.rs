//! What must not be linked into the guest.
//!
//! Linked statically, the C library's look-ups of users, groups and hosts load modules from the file
//! system they run on. In a sandbox that is somebody else's, and the guest is root there.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::shell::{Outcome, cargo, cargo_home, read, run, say, top};

/// The names of those look-ups, or how they begin.
const LOOK_UPS: [&str; 9] = [
    "getpwnam",
    "getpwuid",
    "getpwent",
    "getgrnam",
    "getgrgid",
    "getgrent",
    "getaddrinfo",
    "initgroups",
    "iconv_open",
];

/// The largest a guest may be.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// What a guest holds that can do without walls.
const REMOVABLE: &[u8] = b"bastide-without:";

/// Fails if the guest is too large or holds a look-up.
pub(crate) fn check() -> Outcome {
    run(&mut cargo(&["build", "--package", "bastide-guest-bin"]))?;
    let guest = newest(&top().join("target/guest"))?;
    let size = fs::metadata(&guest)?.len();
    if size > MOST_BYTES {
        return Err(format!("the guest has {size} bytes, at most {MOST_BYTES}").into());
    }
    let symbols = read(std::process::Command::new("nm").arg(&guest))?;
    let found: Vec<_> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|symbol| {
            LOOK_UPS.iter().any(|name| symbol.trim_start_matches('_').starts_with(name))
        })
        .collect();
    if !symbols.lines().any(|line| line.ends_with(" main")) {
        return Err("the guest has no symbols to check".into());
    }
    if !found.is_empty() {
        return Err(format!("the guest is linked with {}", found.join(", ")).into());
    }
    // One that can do without walls is for `cargo xtask walls` alone.
    let bytes = fs::read(&guest)?;
    if has(&bytes, REMOVABLE) {
        return Err("the guest can do without its walls".into());
    }
    tells_nothing_of_its_builder(&guest, &bytes)?;
    say(&format!("the guest has {size} bytes and looks nothing up through the C library"));
    Ok(())
}

/// Fails on a program that names folders of whoever built it: they are nobody's business, and no two builds would be the same.
pub(crate) fn tells_nothing_of_its_builder(program: &Path, bytes: &[u8]) -> Outcome {
    for folder in [top().canonicalize()?, cargo_home()?] {
        if has(bytes, folder.as_os_str().as_encoded_bytes()) {
            let (program, folder) = (program.display(), folder.display());
            return Err(format!("{program} says that it was built with {folder}").into());
        }
    }
    Ok(())
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The guest that was built last, for whichever target.
fn newest(folder: &Path) -> Outcome<PathBuf> {
    let mut guests: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let guest = entry?.path().join("release/bastide-guest");
        if let Ok(metadata) = fs::metadata(&guest) {
            guests.push((metadata.modified()?, guest));
        }
    }
    guests.sort();
    guests.pop().map(|(_, guest)| guest).ok_or_else(|| "no guest was built".into())
}
