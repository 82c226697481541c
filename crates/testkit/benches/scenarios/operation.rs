//! What is measured, whoever does it.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

/// One thing a user waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// A new sandbox, up to the output of its first command.
    Create,
    /// The end of a sandbox in which nothing runs.
    Delete,
    /// A command in a live sandbox, to its end.
    Exec,
    /// As many commands at the same time, until all are over.
    ExecMany(usize),
    /// A command that prints so many bytes, until they are here.
    Output(u64),
    /// A file of so many bytes, out of the sandbox.
    Read(u64),
    /// A file of so many bytes, into the sandbox.
    Write(u64),
    /// A folder with so many files, listed.
    List(usize),
    /// A key typed into a terminal, until its echo is here.
    Echo,
    /// A sandbox made, used for one command and removed, so many at a time: the time for each.
    Sessions(usize),
    /// A folder of the host with so many files of 1 KiB, copied into a new sandbox's workspace.
    FolderIn(usize),
    /// So many events, told to an outbox until all are there: the time for each.
    Events(usize),
    /// Three hundred packages installed from a folder.
    Install,
}

/// The folder of the host with so many files; it lies in memory, and is made at its first use.
pub(crate) fn folder_of(count: usize) -> PathBuf {
    PathBuf::from(format!("/dev/shm/bastide-bench-{}-{count}", std::process::id()))
}

/// Makes that folder: a hundred folders with a hundredth of the files each.
pub(crate) fn make_folder(count: usize) -> io::Result<PathBuf> {
    let folder = folder_of(count);
    if folder.exists() {
        return Ok(folder);
    }
    for number in 0..count {
        let part = folder.join((number % 100).to_string());
        if number < 100 {
            fs::create_dir_all(&part)?;
        }
        fs::write(part.join(number.to_string()), [b'x'; 1024])?;
    }
    Ok(folder)
}

impl fmt::Display for Operation {
    /// The words the program that drives the reference understands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("create"),
            Self::Delete => f.write_str("delete"),
            Self::Exec => f.write_str("exec"),
            Self::ExecMany(count) => write!(f, "exec_many {count}"),
            Self::Output(bytes) => write!(f, "output {bytes}"),
            Self::Read(bytes) => write!(f, "read {bytes}"),
            Self::Write(bytes) => write!(f, "write {bytes}"),
            Self::List(count) => write!(f, "list {count}"),
            Self::Echo => f.write_str("echo"),
            Self::Sessions(count) => write!(f, "sessions {count}"),
            Self::FolderIn(count) => write!(f, "folder_in {}", folder_of(*count).display()),
            Self::Events(count) => write!(f, "events {count}"),
            Self::Install => f.write_str("install"),
        }
    }
}
