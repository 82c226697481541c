//! Calls of the program `sbx`, each under a deadline. No call can wait for somebody to answer: standard
//! input is what it is given, or nothing.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

/// The most that is held of what a call says on one stream.
const MOST: usize = 8 << 20;

/// How long a stream may stay open after the program has ended: a daemon that it started may hold it.
const TAIL: Duration = Duration::from_millis(500);

/// How long what was ended may take to be gone.
const REAP: Duration = Duration::from_secs(5);

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// What hears each line that a call says while it runs.
pub type LineListener<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The program `sbx`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sbx {
    program: PathBuf,
}

/// One call of the program.
#[derive(Debug, Default)]
pub(crate) struct Call<'a> {
    /// What it reads; nothing if there is none.
    pub(crate) input: Option<&'a [u8]>,
    /// Who hears of its lines.
    pub(crate) lines: Option<Lines<'a>>,
}

/// Somebody who hears of lines.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a>(pub(crate) LineListener<'a>);

impl std::fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

/// What came of a call.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Its exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Output {
    pub(crate) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What it complains of: standard error, or standard output if that is empty.
    pub(crate) fn complaint(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let text = match text.trim() {
            "" => String::from_utf8_lossy(&self.stdout),
            _ => text,
        };
        text.trim().chars().take(2000).collect()
    }
}

/// The processes of a call. They are ended when this is dropped before the call has ended.
#[derive(Debug)]
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        Self(pid.and_then(Pid::from_raw))
    }

    /// The program has been waited for: its number may be somebody else's by now.
    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // One that has ended already needs no end.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Sbx {
    /// The program at this path, or of this name on the search path.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }

    /// Its path, or its name.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// One call that must succeed.
    pub(crate) async fn check_call<W: AsRef<OsStr>>(
        &self,
        args: &[W],
        most: Duration,
    ) -> Result<Output> {
        let output = self.call(args, Call::default(), most).await?;
        if output.is_success() { Ok(output) } else { Err(refused(args, &output)) }
    }

    /// One call, which may fail.
    pub(crate) async fn call<W: AsRef<OsStr>>(
        &self,
        args: &[W],
        call: Call<'_>,
        most: Duration,
    ) -> Result<Output> {
        let mut command = self.command(args);
        command.stdin(if call.input.is_some() { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
        let mut group = ProcessGroup::of(&child);
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot call `{}`: {error}", line(args)))
        };
        match timeout(most, communicate(&mut child, call)).await {
            Ok(output) => {
                group.forget();
                output.map_err(failed)
            }
            Err(_) => {
                drop(group);
                // It is no child of anybody else, so that it stays until it is waited for.
                drop(timeout(REAP, child.wait()).await);
                let seconds = most.as_secs_f64();
                let message = format!("`{}` did not end within {seconds} s", line(args));
                Err(Error::new(ErrorKind::Timeout, message)
                    .with_hint("`sbx diagnose` says what its daemon is doing"))
            }
        }
    }

    /// A command of the program in a process group of its own.
    pub(crate) fn command<W: AsRef<OsStr>>(&self, args: &[W]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).process_group(0);
        command
    }

    pub(crate) fn not_started(&self, error: &io::Error) -> Error {
        let program = self.program.display();
        if error.kind() != io::ErrorKind::NotFound {
            return Error::new(ErrorKind::Io, format!("cannot start {program}: {error}"));
        }
        let message = format!("{program} is not installed: Docker Sandboxes are driven by it");
        Error::new(ErrorKind::Unsupported, message).with_hint(INSTALL)
    }
}

/// How the program is installed.
pub(crate) const INSTALL: &str = "install it, then sign in with `sbx login`. macOS: `brew install \
    docker/tap/sbx`; Windows: `winget install -h Docker.sbx`; Ubuntu: the package `docker-sbx` of \
    Docker's apt repository (`curl -fsSL https://get.docker.com | sudo REPO_ONLY=1 sh`), with \
    yourself in the group `kvm`";

/// What a call that failed says.
pub(crate) fn refused<W: AsRef<OsStr>>(args: &[W], output: &Output) -> Error {
    let how = match output.code {
        Some(code) => format!("with {code}"),
        None => "by a signal".to_owned(),
    };
    let mut message = format!("`{}` failed {how}", line(args));
    let complaint = output.complaint();
    if !complaint.is_empty() {
        message = format!("{message}: {complaint}");
    }
    let error = Error::new(ErrorKind::Io, message);
    match complaint.to_ascii_lowercase().contains("login") {
        true => error.with_hint("sign in with `sbx login`"),
        false => error,
    }
}

/// A call as people write it, without what could be long.
fn line<W: AsRef<OsStr>>(args: &[W]) -> String {
    let args = args.iter().take(4).map(|arg| arg.as_ref().to_string_lossy());
    args.fold("sbx".to_owned(), |line, arg| format!("{line} {arg}"))
}

/// Gives a call its input and hears it to its end.
async fn communicate(child: &mut Child, call: Call<'_>) -> io::Result<Output> {
    let (input, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let (Some(mut pipe), Some(input)) = (input, call.input) {
            // One that ends without reading everything says so by its exit code.
            drop(pipe.write_all(input).await);
        }
    };
    let mut out = OutputReader { pipe: stdout, lines: call.lines, ..OutputReader::default() };
    let mut err = OutputReader { pipe: stderr, lines: call.lines, ..OutputReader::default() };
    let read_output = async {
        let mut status = None;
        let mut tail = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
        while status.is_none() || out.is_open() || err.is_open() {
            tokio::select! {
                ended = child.wait(), if status.is_none() => {
                    status = Some(ended?);
                    tail = Instant::now() + TAIL;
                }
                more = out.read(), if out.is_open() => more?,
                more = err.read(), if err.is_open() => more?,
                () = sleep_until(tail), if status.is_some() => break,
            }
        }
        Ok::<_, io::Error>(status.and_then(|status| status.code()))
    };
    let ((), code) = tokio::join!(write, read_output);
    let code = code?;
    Ok(Output { code, stdout: out.finish(), stderr: err.finish() })
}

/// What one stream said.
#[derive(Debug)]
struct OutputReader<'a, R> {
    pipe: Option<R>,
    bytes: Vec<u8>,
    /// Where the line begins that has no end yet.
    line_at: usize,
    lines: Option<Lines<'a>>,
}

impl<R> Default for OutputReader<'_, R> {
    fn default() -> Self {
        Self { pipe: None, bytes: Vec::new(), line_at: 0, lines: None }
    }
}

impl<R: AsyncRead + Unpin> OutputReader<'_, R> {
    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    async fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut chunk = vec![0; CHUNK];
        let count = pipe.read(&mut chunk).await?;
        if count == 0 {
            self.pipe = None;
            return Ok(());
        }
        let room = MOST.saturating_sub(self.bytes.len());
        self.bytes.extend(chunk.iter().take(count.min(room)));
        self.report_lines(false);
        Ok(())
    }

    /// Tells of whole lines, and at the end of what has no end.
    fn report_lines(&mut self, at_end: bool) {
        let Some(Lines(listener)) = self.lines else { return };
        let rest = self.bytes.get(self.line_at..).unwrap_or_default();
        let whole = match at_end {
            true => rest.len(),
            false => rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        let text = String::from_utf8_lossy(rest.get(..whole).unwrap_or_default()).into_owned();
        self.line_at += whole;
        text.lines().for_each(listener);
    }

    fn finish(mut self) -> Vec<u8> {
        self.report_lines(true);
        self.bytes
    }
}
