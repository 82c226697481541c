//! Putting a change onto a branch.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use bastide::{Error, ErrorKind, Result};

use super::{Target, io_error};
use crate::collect::{Baseline, Delta, Oid};
use crate::git::refs::{self, RefLock};
use crate::git::{GitContext, GitDir};
use crate::workspace::cleanup_log::RunFolder;

/// Where the commit is noted in the repository of our own.
const RESULT: &str = "refs/heads/result";

/// What `fast-import` is to read, so that it makes one commit of everything that changed; `None` if
/// nothing did.
pub(super) fn stage(
    target: &Target,
    base: &Baseline,
    run: &RunFolder,
    message: &str,
) -> Result<Option<File>> {
    let failed = || io_error("cannot collect what changed");
    let deltas = base.differences().map_err(failed())?;
    // Files of a submodule are in a repository of their own.
    let inner: Vec<_> = base.repository_folders().iter().filter(|path| !path.is_empty()).collect();
    let is_inner = |path: &[u8]| {
        inner.iter().any(|folder| {
            path.strip_prefix(folder.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
        })
    };
    let deltas: Vec<_> = deltas.into_iter().filter(|delta| !is_inner(&delta.path)).collect();
    if deltas.is_empty() {
        return Ok(None);
    }
    let write = || {
        let mut out = BufWriter::new(tempfile::tempfile_in(run.scratch())?);
        feed(&mut out, target, base, &deltas, message)?;
        let mut file = out.into_inner()?;
        file.rewind()?;
        Ok(file)
    };
    write().map(Some).map_err(failed())
}

/// Writes the commit, and has the branch lead to it. Its objects are written by a git in a repository
/// of our own: nothing of the user's runs, and nothing of the agent's repository is read.
pub(super) async fn write(
    target: &Target,
    run: &RunFolder,
    staged: File,
) -> Result<Option<String>> {
    let git = GitDir::existing(&run.path().join("git"));
    let objects = target.place.common_dir.join("objects");
    let context = GitContext { objects: Some(&objects), ..GitContext::default() };
    let arguments = ["fast-import", "--quiet", "--done", "--date-format=raw"];
    git.run(&context, arguments, staged).await?;
    let commit = git.run(&context, ["rev-parse", "--verify", RESULT], run.hold()?).await?;
    let Some(commit) = Oid::from_hex(commit.trim()) else {
        return Err(Error::new(ErrorKind::Internal, "git made no commit of the change"));
    };
    let lock = RefLock::take(&target.place, &target.name, run.id())?;
    let failed = io_error("cannot tell where the branch is");
    let there = refs::resolve(&target.place, &target.name).map_err(failed)?;
    let expected = target.parent.filter(|_| target.is_made);
    if there != expected {
        let message = format!("{} was changed meanwhile; the change is in the patch", target.name);
        return Err(Error::new(ErrorKind::Conflict, message));
    }
    lock.set(&commit)?;
    Ok(target.name.strip_prefix("refs/heads/").map(str::to_owned))
}

/// Tells `fast-import` what the commit is.
fn feed(
    out: &mut dyn Write,
    target: &Target,
    base: &Baseline,
    deltas: &[Delta],
    message: &str,
) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    writeln!(out, "commit {RESULT}\ncommitter Bastide <bastide@localhost> {now} +0000")?;
    writeln!(out, "data {}\n{message}", message.len())?;
    if let Some(parent) = target.parent {
        writeln!(out, "from {parent}")?;
    }
    // What goes first makes room for what comes.
    for delta in deltas {
        let gone = match (&delta.old_path, &delta.new) {
            (Some((old, _)), _) => old,
            (None, None) => &delta.path,
            (None, Some(_)) => continue,
        };
        writeln!(out, "D {}", quoted(gone))?;
    }
    for delta in deltas {
        let Some(new) = &delta.new else { continue };
        let Some(mut content) = base.content_now(&delta.path, new.mode)? else {
            // It went since it was found.
            writeln!(out, "D {}", quoted(&delta.path))?;
            continue;
        };
        writeln!(out, "M {} inline {}", new.mode.as_str(), quoted(&delta.path))?;
        writeln!(out, "data {}", content.size)?;
        let copied = io::copy(&mut content.data, out)?;
        if copied != content.size {
            return Err(io::Error::other("a file was cut short while it was read"));
        }
        writeln!(out)?;
    }
    writeln!(out, "done")?;
    out.flush()
}

/// A path as `fast-import` reads any path.
fn quoted(path: &[u8]) -> String {
    let mut text = String::from("\"");
    for &byte in path {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            0x20..0x7f => text.push(char::from(byte)),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}
