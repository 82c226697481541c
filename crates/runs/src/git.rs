//! The real git, where there is no way around it: checking a commit out, copying history, writing a
//! commit.
//!
//! It never runs in a repository that somebody else could write to. It runs in a [`GitDir`] of our own
//! out of everybody's reach, whose configuration is ours, and which has the objects of the repository by
//! an alternate. So there is no configuration, hook, attribute or index of anybody else that git could
//! read; and what is in an object is named by its hash.

pub(crate) mod config;
pub(crate) mod location;
pub(crate) mod refs;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bastide::host::isolated_git;
use bastide::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use crate::collect::HashKind;
use location::GitLocation;

/// How long one command of git may take.
const DEADLINE: Duration = Duration::from_secs(600);

/// How much of what git says is kept.
const SAID: usize = 64 << 10;

/// What git is told whatever else might be said; its own configuration is ours besides.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.sshCommand=false",
    "core.pager=cat",
    "core.editor=false",
    "core.autocrlf=false",
    "credential.helper=",
    "commit.gpgSign=false",
    "diff.external=",
    "protocol.allow=never",
    "protocol.file.allow=always",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "safe.directory=*",
];

/// What attributes of a tree say does not count: contents are checked out as they are.
const ATTRIBUTES: &str =
    "* -text !eol !crlf -ident !filter !working-tree-encoding !diff !merge !export-subst\n";

/// A repository of our own that has the objects of another one.
#[derive(Debug)]
pub(crate) struct GitDir {
    path: PathBuf,
}

/// What one command of git is given besides its arguments.
#[derive(Debug, Default)]
pub(crate) struct GitContext<'s> {
    pub(crate) work_tree: Option<&'s Path>,
    pub(crate) index: Option<&'s Path>,
    /// Where objects are written, if not in the repository of our own.
    pub(crate) objects: Option<&'s Path>,
}

impl GitDir {
    /// Makes one at `path`, which is not there, over the objects of `place`.
    pub(crate) fn make(path: &Path, place: &GitLocation) -> io::Result<Self> {
        fs::create_dir(path)?;
        for folder in ["objects", "objects/info", "refs", "refs/heads", "info"] {
            fs::create_dir(path.join(folder))?;
        }
        let format = match place.hash {
            HashKind::Sha1 => "repositoryformatversion = 0\n\tbare = true\n",
            HashKind::Sha256 => {
                "repositoryformatversion = 1\n\tbare = true\n[extensions]\n\tobjectformat = sha256\n"
            }
        };
        fs::write(path.join("config"), format!("[core]\n\t{format}"))?;
        fs::write(path.join("HEAD"), "ref: refs/heads/base\n")?;
        fs::write(path.join("info/attributes"), ATTRIBUTES)?;
        let objects = place.own_objects()?;
        let Some(objects) = objects.to_str().filter(|path| !path.contains(['\n', '"'])) else {
            return Err(io::Error::other(
                "the path of its objects cannot be written as an alternate",
            ));
        };
        fs::write(path.join("objects/info/alternates"), format!("{objects}\n"))?;
        let shallow = place.common_dir.join("shallow");
        if shallow.symlink_metadata().is_ok() {
            fs::write(path.join("shallow"), location::read(&shallow)?)?;
        }
        Ok(Self { path: path.to_owned() })
    }

    /// One that was made before.
    pub(crate) fn existing(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Git in this repository; `input` is what it reads.
    pub(crate) async fn run<A: AsRef<OsStr>>(
        &self,
        context: &GitContext<'_>,
        arguments: impl IntoIterator<Item = A>,
        input: File,
    ) -> Result<String> {
        let mut command = git();
        command.env("GIT_DIR", &self.path).current_dir(&self.path);
        if let Some(work_tree) = context.work_tree {
            command.env("GIT_WORK_TREE", work_tree);
        }
        if let Some(index) = context.index {
            command.env("GIT_INDEX_FILE", index);
        }
        if let Some(objects) = context.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        command.args(arguments);
        finish(command, input).await
    }
}

/// Git with nothing of the machine's configuration and environment.
pub(crate) fn git() -> Command {
    let mut command = Command::from(isolated_git(SETTINGS));
    command.env("GIT_NO_REPLACE_OBJECTS", "1");
    command
}

/// Runs git to its end, under a deadline.
pub(crate) async fn finish(mut command: Command, input: File) -> Result<String> {
    command.stdin(Stdio::from(input));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| {
        let (kind, message) = match error.kind() {
            io::ErrorKind::NotFound => (ErrorKind::Unsupported, "there is no git here".to_owned()),
            _ => (ErrorKind::Io, format!("cannot run git: {error}")),
        };
        Error::new(kind, message).with_hint("install git, or run in place")
    })?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(read_output(out), read_output(err), child.wait()) };
    let Ok((out, err, status)) = tokio::time::timeout(DEADLINE, ended).await else {
        return Err(Error::new(ErrorKind::Timeout, "git took too long, and was ended"));
    };
    let failed = |why: &str| Error::new(ErrorKind::Io, format!("git failed: {why}"));
    match status {
        Ok(status) if status.success() => Ok(out),
        Ok(_) => Err(failed(err.trim_end())),
        Err(error) => Err(failed(&error.to_string())),
    }
}

/// What a stream says, as far as it is kept; the rest is read and dropped.
async fn read_output(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), vec![0; 8192]);
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        let room = SAID.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(chunk.get(..room).unwrap_or_default());
    }
    String::from_utf8_lossy(&kept).into_owned()
}
