//! Fetching a repository on the host, into a cache that sessions share, and streaming it in.
//!
//! Nothing of a repository runs here: there is no checkout, so no filters and no hooks; no
//! configuration but our own is read; only `https` is spoken. Files are taken out of the object
//! database as they are.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bastide_model::PosixPath;
use bastide_proto::request::{Entry, EntryKind, OnConflict};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::Instant;

use super::super::sources::Sources;
use super::super::stream::{Stop, Target, UploadItem, UploadSender, lay_out};
use super::{DEADLINE, GitStep, SAID, dest, not_cloned, not_copied, url};
use crate::compat::raise;
use crate::host::{isolated_git, make_private};
use crate::{Error, ErrorKind, Result, Session};

/// How often a process or a lock is looked at again.
const AGAIN: Duration = Duration::from_millis(10);

/// What git is told whatever the machine's own configuration says; that is not read at all.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.sshCommand=false",
    "credential.helper=",
    "protocol.allow=never",
    "protocol.https.allow=always",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "http.followRedirects=initial",
];

/// Fetches a repository here and puts it where it belongs.
pub(super) async fn put(session: &Session, step: &GitStep) -> Result<()> {
    let fetch = Fetch {
        cache: session.backend.home().join("cache").join("git"),
        ca_file: session.life.terms.git.ca_file.clone(),
        url: url(step),
        reference: step.repo.reference.clone(),
        may_be_commit: step.repo.looks_like_commit(),
        has_git_folder: step.subpath.is_none(),
    };
    let fetched = fetch.fetch().await.map_err(|failure| match failure {
        Failure::NoGit => Error::new(ErrorKind::Unsupported, "there is no git on this host")
            .with_hint("install git, or let the session have a network and a git of its own"),
        Failure::Reported(stderr) => not_cloned(step, &without(&stderr, &fetch.cache)),
    })?;
    let place = dest(session, step);
    let base = place.as_str().parse().map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("cannot lay out {place}: {error}"))
    })?;
    let target = Target {
        link: session.link.as_ref(),
        base: &base,
        existing: OnConflict::Replaced,
        through_links: false,
        progress: None,
    };
    let (subpath, mode) = (step.subpath.clone(), step.mode);
    let refused = {
        let (repo, place, cache) = (url(step), place.clone(), fetch.cache.clone());
        let step = GitStep {
            path: step.path.clone(),
            mode,
            repo: step.repo.clone(),
            subpath: step.subpath.clone(),
        };
        move |why: String| not_copied(&step, &repo, &place, &without(&why, &cache))
    };
    lay_out(&target, move |chunks| fetched.send(subpath.as_ref(), mode, chunks, &refused)).await
}

/// What git said, without where the host keeps things: that is nothing to whoever wrote the manifest.
fn without(said: &str, cache: &Path) -> String {
    said.replace(&*cache.to_string_lossy(), "cache")
}

/// A repository to fetch.
struct Fetch {
    cache: PathBuf,
    ca_file: Option<PathBuf>,
    url: String,
    reference: String,
    may_be_commit: bool,
    has_git_folder: bool,
}

/// Why a repository cannot be fetched.
enum Failure {
    NoGit,
    Reported(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Reported(error.to_string())
    }
}

/// A repository that is here, with nothing checked out.
struct Fetched {
    /// Goes when this does.
    folder: tempfile::TempDir,
    commit: String,
    has_git_folder: bool,
}

impl Fetch {
    async fn fetch(&self) -> Result<Fetched, Failure> {
        let name = hex::encode(Sha256::digest(self.url.as_bytes()));
        let store = self.cache.join(&name);
        make_private(&store)?;
        let (commit, branch) = {
            let _lock = lock(&store.join("bastide.lock")).await?;
            self.git(&store, ["init", "--quiet", "--bare", "--template="]).await?;
            self.fetch_into(&store).await?
        };
        let folder = tempfile::Builder::new().prefix("clone-").tempdir_in(&self.cache)?;
        self.copy(&store, folder.path(), &commit, branch).await?;
        Ok(Fetched { folder, commit, has_git_folder: self.has_git_folder })
    }

    /// Fetches the reference into the cache. Returns the commit, and whether it is a branch's.
    async fn fetch_into(&self, store: &Path) -> Result<(String, bool), Failure> {
        let kept =
            format!("refs/bastide/{}", hex::encode(Sha256::digest(self.reference.as_bytes())));
        let mut asked = Vec::new();
        if self.may_be_commit {
            asked.push((self.reference.clone(), false));
        }
        asked.push((format!("refs/heads/{}", self.reference), true));
        asked.push((format!("refs/tags/{}", self.reference), false));
        let mut first = None;
        for (remote, is_branch) in asked {
            let spec = format!("+{remote}:{kept}");
            let fetch = ["fetch", "--quiet", "--depth", "1", "--no-tags", "--end-of-options"];
            let argv = fetch.into_iter().chain([self.url.as_str(), spec.as_str()]);
            match self.git(store, argv).await {
                Ok(_) => {
                    let wanted = format!("{kept}^{{commit}}");
                    let argv = ["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted];
                    let commit = self.git(store, argv).await?.trim().to_owned();
                    return Ok((commit, is_branch));
                }
                Err(Failure::Reported(said)) => first = first.or(Some(said)),
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Reported(first.unwrap_or_default()))
    }

    /// A repository of its own with that one commit, from what is in the cache.
    async fn copy(
        &self,
        store: &Path,
        to: &Path,
        commit: &str,
        is_branch: bool,
    ) -> Result<(), Failure> {
        self.git(to, ["init", "--quiet", "--template="]).await?;
        let store = store.as_os_str();
        let kept =
            format!("refs/bastide/{}", hex::encode(Sha256::digest(self.reference.as_bytes())));
        let fetch = ["-c", "protocol.file.allow=always", "fetch", "--quiet", "--depth", "1"];
        let fetch = fetch.into_iter().chain(["--no-tags", "--end-of-options"]).map(OsStr::new);
        self.git(to, fetch.chain([store, OsStr::new(&kept)])).await?;
        self.git(to, ["remote", "add", "origin", &self.url]).await?;
        match is_branch {
            true => {
                let name = format!("refs/heads/{}", self.reference);
                self.git(to, ["update-ref", &name, commit]).await?;
                self.git(to, ["symbolic-ref", "HEAD", &name]).await?;
            }
            false => drop(self.git(to, ["update-ref", "--no-deref", "HEAD", commit]).await?),
        }
        self.git(to, ["read-tree", commit]).await?;
        drop(fs::remove_file(to.join(".git/FETCH_HEAD")));
        Ok(())
    }

    /// Runs git in a folder, with nothing of the machine's configuration.
    async fn git<A: AsRef<OsStr>>(
        &self,
        folder: &Path,
        argv: impl IntoIterator<Item = A>,
    ) -> Result<String, Failure> {
        let mut command = git(folder);
        if let Some(ca_file) = &self.ca_file {
            command.env("GIT_SSL_CAINFO", ca_file);
        }
        command.args(argv).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::NoGit,
            _ => error.into(),
        })?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ended = async { tokio::join!(read_output(out), read_output(err), child.wait()) };
        match tokio::time::timeout(DEADLINE, ended).await {
            Ok((out, _, Ok(status))) if status.success() => Ok(out),
            Ok((_, err, Ok(_))) => Err(Failure::Reported(err)),
            Ok((_, _, Err(error))) => Err(error.into()),
            Err(_) => Err(Failure::Reported("git took too long".to_owned())),
        }
    }
}

/// Git in a folder, told what it may do.
fn git(folder: &Path) -> Command {
    let mut command = isolated_git(SETTINGS);
    command.arg("-C").arg(folder);
    command
}

/// What a stream says, as far as it is kept; the rest is read and dropped.
async fn read_output(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), vec![0; 8192]);
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        let room = SAID.saturating_sub(kept.len()).min(read);
        kept.extend_from_slice(&chunk[..room]);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Waits for a lock that sessions in any process share.
async fn lock(path: &Path) -> Result<File, Failure> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    let deadline = Instant::now() + DEADLINE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::Reported(
                    "somebody else fetches it, and does not end".to_owned(),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

/// One line of a tree.
struct TreeLine {
    mode: u32,
    object: String,
    path: Vec<u8>,
}

impl Fetched {
    /// Sends what is wanted of the repository.
    fn send(
        self,
        subpath: Option<&PosixPath>,
        mode: u32,
        chunks: &UploadSender,
        refused: &dyn Fn(String) -> Error,
    ) -> Result<(), Stop> {
        let failed = |error: std::io::Error| refused(error.to_string());
        let root = Entry::new("", EntryKind::Dir);
        chunks.send(UploadItem::Entry(root.clone()))?;
        let listed = self.list(subpath, refused)?;
        let mut objects = Objects::open(self.folder.path()).map_err(failed)?;
        for TreeLine { mode, object, path } in listed {
            match mode {
                // The place of another repository, which nobody asked for.
                0o160_000 | 0o040_000 => {
                    chunks.send(UploadItem::Entry(Entry::new(path, EntryKind::Dir)))?;
                }
                0o120_000 => {
                    let mut target = Vec::new();
                    let mut content = objects.read(&object).map_err(failed)?;
                    content.read_to_end(&mut target).map_err(failed)?;
                    drop(content);
                    objects.end().map_err(failed)?;
                    let kind = EntryKind::Symlink { target: target.into() };
                    chunks.send(UploadItem::Entry(Entry::new(path, kind)))?;
                }
                _ => {
                    let permissions = if mode & 0o111 != 0 { 0o755 } else { 0o644 };
                    let entry =
                        Entry { mode: Some(permissions), ..Entry::new(path, EntryKind::File) };
                    let mut content = objects.read(&object).map_err(failed)?;
                    chunks.file(entry, &mut content, |_| {}, |error| refused(error.to_string()))?;
                    drop(content);
                    objects.end().map_err(failed)?;
                }
            }
        }
        if self.has_git_folder {
            self.send_git_folder(chunks).map_err(|stop| match stop {
                Stop::Failed(error) => Stop::Failed(refused(error.to_string())),
                Stop::ReceiverGone => Stop::ReceiverGone,
            })?;
        }
        Ok(chunks.send(UploadItem::Entry(Entry { mode: Some(mode), ..root }))?)
    }

    /// Everything in the tree of the commit, folders before what is in them.
    fn list(
        &self,
        subpath: Option<&PosixPath>,
        refused: &dyn Fn(String) -> Error,
    ) -> Result<Vec<TreeLine>, Error> {
        let tree = match subpath {
            Some(subpath) => format!("{}:{subpath}", self.commit),
            None => self.commit.clone(),
        };
        let output = git(self.folder.path())
            .args(["ls-tree", "-r", "-t", "-z", "--full-tree", "--end-of-options", &tree])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| refused(error.to_string()))?;
        if !output.status.success() {
            return Err(refused(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        let lines = output.stdout.split(|byte| *byte == 0).filter(|line| !line.is_empty());
        lines.map(|line| parse(line).ok_or_else(|| refused(odd(line)))).collect()
    }

    /// Sends the folder that makes it a repository, so that commands can look at what they changed.
    fn send_git_folder(&self, chunks: &UploadSender) -> Result<(), Stop> {
        let folder = fs::canonicalize(self.folder.path()).map_err(|error| {
            raise::local_dir_read(self.folder.path().display()).with_source(error)
        })?;
        let mut held = Sources::new(&folder, Vec::new()).open_dir(&PosixPath::new(".git"))?;
        let place = |below: &[u8]| [b".git/", below].concat();
        chunks.send(UploadItem::Entry(Entry::new(".git", EntryKind::Dir)))?;
        for item in held.list()? {
            let to = place(&item.path);
            if item.is_dir {
                chunks.send(UploadItem::Entry(Entry::new(to, EntryKind::Dir)))?;
                continue;
            }
            let mut file = held.open(&item.path)?;
            let entry = Entry { mode: Some(item.mode), ..Entry::new(to, EntryKind::File) };
            let shown = held.shown(&item.path);
            let failed = |error| raise::local_file_read(shown).with_source(error);
            chunks.file(entry, &mut file, |_| {}, failed)?;
        }
        Ok(())
    }
}

/// Reads a line of a tree. A name that would reach into the repository itself is no name.
fn parse(line: &[u8]) -> Option<TreeLine> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let mut words = std::str::from_utf8(&line[..tab]).ok()?.split(' ');
    let mode = u32::from_str_radix(words.next()?, 8).ok()?;
    let object = words.nth(1)?.to_owned();
    let path = line[tab + 1..].to_vec();
    let is_bad =
        |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.eq_ignore_ascii_case(b".git");
    let is_hex = object.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_good = is_hex && !path.split(|byte| *byte == b'/').any(is_bad);
    is_good.then_some(TreeLine { mode, object, path })
}

fn odd(line: &[u8]) -> String {
    format!("the tree holds something that must not be there: {}", String::from_utf8_lossy(line))
}

/// The contents of objects, one after the other.
struct Objects {
    child: std::process::Child,
    ask: std::process::ChildStdin,
    answer: BufReader<std::process::ChildStdout>,
}

impl Objects {
    fn open(folder: &Path) -> std::io::Result<Self> {
        let mut child = git(folder)
            .args(["cat-file", "--batch"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let broken = || std::io::Error::other("git has no streams");
        let ask = child.stdin.take().ok_or_else(broken)?;
        let answer = BufReader::new(child.stdout.take().ok_or_else(broken)?);
        Ok(Self { child, ask, answer })
    }

    /// The content of an object. After it is read to its end, [`end`](Self::end) has to be called.
    fn read(&mut self, object: &str) -> std::io::Result<impl Read> {
        writeln!(self.ask, "{object}")?;
        self.ask.flush()?;
        let mut line = String::new();
        (&mut self.answer).take(256).read_line(&mut line)?;
        let size = line.trim_end().rsplit(' ').next().and_then(|size| size.parse().ok());
        let size: u64 = match size {
            Some(size) if line.contains(" blob ") => size,
            _ => return Err(std::io::Error::other(format!("git says {:?}", line.trim_end()))),
        };
        Ok((&mut self.answer).take(size))
    }

    fn end(&mut self) -> std::io::Result<()> {
        let mut byte = [0];
        self.answer.read_exact(&mut byte)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
