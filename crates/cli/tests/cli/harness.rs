//! A home of its own for each test, and nothing of the caller's environment.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long something may take that happens by itself.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// An ordinary user that nothing on a machine belongs to.
pub(crate) const SOMEBODY: u32 = 57_411;

/// A home. Whatever a test left in it ends with it.
pub(crate) struct Home {
    folder: TempDir,
    program: PathBuf,
    user: Option<u32>,
}

impl Home {
    pub(crate) fn new() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_bastide"));
        Self { folder: tempfile::tempdir().unwrap(), program, user: None }
    }

    /// The home of an ordinary user, with a copy of the tool where that user can look; `None` if we cannot
    /// be anybody else.
    pub(crate) fn of_somebody() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let mut home = Self::new();
        let program = home.path().join("program");
        fs::copy(&home.program, &program).unwrap();
        chown(home.path(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        (home.program, home.user) = (program, Some(SOMEBODY));
        Some(home)
    }

    /// A home of somebody who is not root: root's commands are never root, whatever the machine lacks.
    pub(crate) fn of_anybody_but_root() -> Self {
        Self::of_somebody().unwrap_or_else(Self::new)
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The tool with these arguments, started by a program that is told of it by its own last arguments.
    pub(crate) fn around(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.arg(&self.program);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        self.wrapped(command, arguments)
    }

    /// The tool, with these arguments.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        self.wrapped(command, arguments)
    }

    /// Another program that is given these arguments.
    pub(crate) fn wrapped(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments.iter().map(|argument| mark(argument)));
        command.env_clear().env("BASTIDE_HOME", self.path());
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").current_dir(self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the tool to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What the tool prints, which must end well.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The object the tool prints.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(arguments)).unwrap()
    }

    /// What a sweep removed that was of this home. Locks of ids belong to no home.
    pub(crate) fn sweep(&self) -> Vec<String> {
        let lines = self.say(&["sweep"]);
        lines.lines().filter(|line| !line.contains("/id-ranges/")).map(str::to_owned).collect()
    }

    /// Makes a session and gives its id.
    pub(crate) fn create(&self) -> String {
        self.say(&["create"]).trim().to_owned()
    }

    /// Runs the tool to its end with something to read.
    pub(crate) fn feed(&self, arguments: &[&str], input: &[u8]) -> Output {
        fed(&mut self.command(arguments), input)
    }

    /// Starts the tool and waits until it has printed `line`.
    pub(crate) fn start(&self, arguments: &[&str], line: &str) -> Child {
        let mut child = self.command(arguments).spawn().unwrap();
        read_until(child.stdout.as_mut().unwrap(), line);
        child
    }

    /// The folders of sessions there are, half-removed ones included.
    pub(crate) fn folders(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path().join("sessions")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// The processes of sessions there are: those that run a guest of this home.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let guests = fs::canonicalize(self.path()).unwrap().join("guests");
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let runs_guest = |pid: &i32| {
            let program: PathBuf = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            // What a warden forks cannot be looked at but by root; it has the command line of its warden.
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let words: Vec<_> = line.split_terminator('\0').collect();
            let is_forked = words.get(1) == Some(&"warden")
                && words.last().and_then(|last| fs::canonicalize(last).ok()).as_ref()
                    == Some(&guests);
            program.parent() == Some(&guests) || is_forked
        };
        pids.filter(runs_guest).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for id in self.folders() {
            drop(self.run(&["rm", &id]));
        }
        for pid in self.processes() {
            kill(pid, "KILL");
        }
    }
}

/// Reads until there is this line.
pub(crate) fn read_until(stdout: &mut impl Read, line: &str) {
    let mut said = Vec::new();
    while !said.ends_with(format!("{line}\n").as_bytes()) {
        let mut byte = [0];
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "it said {:?}", text(&said));
        said.push(byte[0]);
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until something is true.
pub(crate) fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_true() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// Waits for the end of a process.
pub(crate) fn end(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Lets this much time pass.
pub(crate) fn pass(time: Duration) {
    let (_sender, nobody_speaks) = mpsc::channel::<()>();
    assert!(nobody_speaks.recv_timeout(time).is_err());
}

/// Sends a signal to a process, which may be gone.
pub(crate) fn kill(pid: i32, signal: &str) {
    let signal = match signal {
        "STOP" => Signal::STOP,
        "CONT" => Signal::CONT,
        "INT" => Signal::INT,
        "TERM" => Signal::TERM,
        _ => Signal::KILL,
    };
    // A process that has ended meanwhile is what most callers want.
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Makes a command line nobody else's: `@` after a digit becomes the number of this process, so that the same tests
/// can run beside each other.
fn mark(text: &str) -> String {
    let mut marked = String::new();
    for letter in text.chars() {
        match letter {
            '@' if marked.ends_with(|last: char| last.is_ascii_digit()) => {
                marked.push_str(&format!(".{}", std::process::id()));
            }
            letter => marked.push(letter),
        }
    }
    marked
}

/// Whether any process has this command line, marked as ours are.
pub(crate) fn is_running(line: &str) -> bool {
    let line = mark(line);
    let wanted: Vec<u8> =
        line.split(' ').flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .map(|entry| entry.path().join("cmdline"))
        .any(|path| fs::read(path).is_ok_and(|found| found == wanted))
}

/// A big count, or a tenth of it.
pub(crate) fn count(full: usize) -> usize {
    if std::env::var_os("BASTIDE_TEST_FULL").is_some() { full } else { full.div_ceil(10) }
}

/// Runs a program to its end with something to read.
pub(crate) fn fed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    drop(writing.join().unwrap());
    output
}
