//! Swaps what is on the way of somebody else's file operations, as fast as it goes, until it is
//! ended.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};

/// What must not be reached.
fn out() -> PathBuf {
    std::env::temp_dir().join("out")
}

/// Swaps `kind` of things below the current folder.
pub(super) fn forever(kind: &str) -> io::Result<Vec<String>> {
    let names: [&Path; 2] = match kind {
        "folder" | "folders" => ["x", "y"].map(Path::new),
        "below" => ["x/sub", "x/bus"].map(Path::new),
        _ => ["x/f", "x/g"].map(Path::new),
    };
    prepare(kind, names)?;
    writeln!(io::stdout(), "swapping")?;
    io::stdout().flush()?;
    loop {
        if renameat_with(CWD, names[0], CWD, names[1], RenameFlags::EXCHANGE).is_err() {
            // Something was removed: put it back, which may meet the next operation.
            drop(prepare(kind, names));
        }
    }
}

fn prepare(kind: &str, [one, other]: [&Path; 2]) -> io::Result<()> {
    clear(other);
    folder(Path::new("x"))?;
    match kind {
        "folder" => symlink(out(), other),
        "folders" => fs::create_dir_all(other.join("sub")),
        "below" => symlink(out().join("sub"), other),
        "file" => {
            file(one)?;
            symlink(out().join("secret"), other)
        }
        _ => {
            file(one)?;
            Ok(mknodat(CWD, other, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?)
        }
    }
}

fn folder(at: &Path) -> io::Result<()> {
    for place in [at, &at.join("sub")] {
        if place.is_symlink() {
            clear(place);
        }
    }
    fs::create_dir_all(at.join("sub"))?;
    file(&at.join("f"))?;
    file(&at.join("sub/f"))
}

/// Never through a link: what is outside must not be touched by the attack itself.
fn file(at: &Path) -> io::Result<()> {
    clear(at);
    fs::File::create_new(at)?.write_all(b"inside")
}

fn clear(path: &Path) {
    drop(match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    });
}
