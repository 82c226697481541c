//! One `docker run`.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::{DockerSandbox, LiveRun, not_started};
use crate::reference::DockerRun;
use crate::stream::{Listener, RunEvent, StreamName};
use crate::transcript::Transcript;
use crate::types::CommandResult;

/// How long the program has to end when its container is gone.
const END: Duration = Duration::from_secs(30);

/// The exit code of a command whose time was up.
const TIMEOUT: i32 = 124;

/// Variables that the program itself reads: their values are words of the command line.
const PROGRAMS_OWN: [&str; 6] =
    ["PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "XDG_CONFIG_HOME", "TMPDIR"];

/// Refuses what would not do what it says.
pub(super) fn check(wanted: &DockerRun) -> Result<()> {
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    if let Some(arg) = wanted.docker_args.iter().find(|arg| is_detached(arg)) {
        return wrong(format!("docker_args has {arg}: the run would be over before its command"));
    }
    if !wanted.workdir.starts_with('/') || wanted.workdir.contains(':') {
        return wrong(format!("workdir {:?} is no absolute path without `:`", wanted.workdir));
    }
    Ok(())
}

fn is_detached(arg: &str) -> bool {
    let is_short = arg.len() > 1
        && arg.starts_with('-')
        && arg.bytes().skip(1).all(|letter| b"dit".contains(&letter))
        && arg.contains('d');
    is_short || arg == "--detach" || arg == "--detach=true"
}

/// The words for `docker`, as the reference has them but for what keeps the run in its bounds.
pub(super) fn args(wanted: &DockerRun, live: &LiveRun, command: &[String]) -> Result<Vec<String>> {
    let mut args: Vec<String> = vec!["run".to_owned()];
    let mut put = |more: &[&str]| args.extend(more.iter().map(|&arg| arg.to_owned()));
    if wanted.remove_on_exit {
        put(&["--rm"]);
    }
    put(&["--label", &live.label]);
    let has_network = |arg: &String| {
        ["--network", "--net"].iter().any(|name| {
            arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    if !wanted.docker_args.iter().any(has_network) {
        put(&["--network", "none"]);
    }
    if let Some(name) = &wanted.name {
        put(&["--name", name]);
    }
    for (key, value) in &live.env {
        match is_programs_own(key) {
            true => put(&["-e", &format!("{key}={value}")]),
            // Its value is in the environment of the program: everybody can read a command line.
            false => put(&["-e", key]),
        }
    }
    let folder = live.workspace.folder();
    put(&["-v", &mount(folder, &wanted.workdir, false)?]);
    for grant in live.workspace.grants() {
        let path = Path::new(&grant.path);
        let inside = match path.strip_prefix(folder) {
            Ok(rest) => format!("{}/{}", wanted.workdir.trim_end_matches('/'), rest.display()),
            Err(_) => grant.path.clone(),
        };
        let behind = grant.host_path.as_deref().map_or(path, Path::new);
        put(&["-v", &mount(behind, &inside, grant.read_only)?]);
    }
    put(&["-w", &wanted.workdir]);
    args.extend(wanted.docker_args.iter().cloned());
    args.push(wanted.image.clone());
    args.extend(command.iter().cloned());
    Ok(args)
}

fn is_programs_own(key: &str) -> bool {
    PROGRAMS_OWN.contains(&key)
        || key.starts_with("DOCKER_")
        || key.to_lowercase().contains("proxy")
}

fn mount(from: &Path, to: &str, read_only: bool) -> Result<String> {
    match from.to_str().filter(|from| !from.contains(':') && !to.contains(':')) {
        Some(from) if read_only => Ok(format!("{from}:{to}:ro")),
        Some(from) => Ok(format!("{from}:{to}")),
        None => {
            let message = format!("{to} cannot be mounted: there is a `:` in a path, or no UTF-8");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Runs a command to its end. At the deadline its containers are ended, not only the program.
pub(super) async fn run(
    sandbox: &DockerSandbox,
    live: &LiveRun,
    command: &[String],
    timeout: Option<Duration>,
    listener: &mut Listener<'_>,
) -> Result<CommandResult> {
    let args = args(&sandbox.wanted, live, command)?;
    let mut output_log = Transcript::open(&live.results)?;
    let began = Instant::now();
    listener.notify(RunEvent::Started { command: command.to_vec() });
    let mut child = start(sandbox, live, &args)?;
    let mut pipes = Pipes::of(&mut child);
    let mut deadline = timeout.and_then(|timeout| began.checked_add(timeout));
    // Why it was ended, once it was.
    let mut given_up: Option<(&str, i32)> = None;
    let status = loop {
        let is_given_up = given_up.is_some();
        let (reason, code) = match pipes.next(&mut child, deadline, listener, is_given_up).await? {
            NextEvent::Output(stream, chunk) => {
                output_log.append(stream, &chunk, listener)?;
                continue;
            }
            NextEvent::Ended(status) => break status,
            NextEvent::Silence => {
                listener.notify(RunEvent::Idle { running: began.elapsed() });
                continue;
            }
            NextEvent::TimeIsUp if is_given_up => {
                // Somebody holds its output; it is over all the same.
                drop(child.kill().await);
                pipes = Pipes { out: None, err: None };
                continue;
            }
            NextEvent::TimeIsUp => ("timeout", TIMEOUT),
            NextEvent::Stopped(number) => ("cancelled", 128 + number),
        };
        given_up = Some((reason, code));
        sandbox.end(&live.label).await?;
        deadline = Instant::now().checked_add(END);
    };
    let (stdout, stderr) = output_log.finish(listener);
    let (reason, returncode) = given_up.unwrap_or_else(|| outcome(status, &stderr));
    listener.notify(RunEvent::Ended { returncode });
    let mut result = CommandResult { stdout, stderr, returncode, ..CommandResult::default() };
    result.command = command.to_vec();
    result.duration_ms = u64::try_from(began.elapsed().as_millis()).ok();
    result.metadata.insert("reason".to_owned(), Value::from(reason));
    Ok(result)
}

fn start(sandbox: &DockerSandbox, live: &LiveRun, args: &[String]) -> Result<Child> {
    let mut program = Command::new(&sandbox.program);
    program.args(args).current_dir(live.workspace.run().path()).kill_on_drop(true);
    let passed = live.env.iter().filter(|(key, _)| !is_programs_own(key));
    program.envs(passed.map(|(key, value)| (key, value)));
    program.stdin(Stdio::from(live.workspace.run().hold()?));
    program.stdout(Stdio::piped()).stderr(Stdio::piped());
    program.spawn().map_err(|error| not_started(&sandbox.program, &error))
}

/// How a container ended, by the exit code of the program.
fn outcome(status: ExitStatus, stderr: &str) -> (&'static str, i32) {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code @ (126 | 127)), _) if stderr.contains("OCI runtime") => ("not_started", code),
        (Some(code @ 129..=192), _) => ("signalled", code),
        (Some(code), _) => ("exited", code),
        (None, signal) => ("signalled", 128 + signal.unwrap_or_default()),
    }
}

/// What happens next.
enum NextEvent {
    Output(StreamName, Vec<u8>),
    Ended(ExitStatus),
    Silence,
    TimeIsUp,
    Stopped(i32),
}

/// What the program says; `None` when a stream is at its end.
struct Pipes {
    out: Option<tokio::process::ChildStdout>,
    err: Option<tokio::process::ChildStderr>,
}

impl Pipes {
    fn of(child: &mut Child) -> Self {
        Self { out: child.stdout.take(), err: child.stderr.take() }
    }

    async fn next(
        &mut self,
        child: &mut Child,
        deadline: Option<Instant>,
        listener: &mut Listener<'_>,
        is_given_up: bool,
    ) -> Result<NextEvent> {
        let idle = listener.idle.map(|idle| Instant::now() + idle);
        loop {
            let is_silent = self.out.is_none() && self.err.is_none();
            let (stream, chunk) = tokio::select! {
                chunk = read(&mut self.out), if self.out.is_some() => (StreamName::Stdout, chunk),
                chunk = read(&mut self.err), if self.err.is_some() => (StreamName::Stderr, chunk),
                status = child.wait(), if is_silent => return match status {
                    Ok(status) => Ok(NextEvent::Ended(status)),
                    Err(error) => Err(Error::new(ErrorKind::Io, format!("docker is lost: {error}"))),
                },
                () = until(deadline) => return Ok(NextEvent::TimeIsUp),
                () = until(idle) => return Ok(NextEvent::Silence),
                number = listener.stopped(), if !is_given_up => return Ok(NextEvent::Stopped(number)),
            };
            match chunk {
                Some(chunk) => return Ok(NextEvent::Output(stream, chunk)),
                None if stream == StreamName::Stdout => self.out = None,
                None => self.err = None,
            }
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Some of a stream; `None` at its end.
async fn read(stream: &mut Option<impl AsyncRead + Unpin>) -> Option<Vec<u8>> {
    let mut chunk = vec![0; 8192];
    let count = stream.as_mut()?.read(&mut chunk).await.ok().filter(|count| *count > 0)?;
    chunk.truncate(count);
    Some(chunk)
}
