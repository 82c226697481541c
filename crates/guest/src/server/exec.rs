//! Running a command.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use bastide_proto::frame::{MAX_DATA, Tag};
use bastide_proto::{Accepted, End, Exec, Fault, FaultKind, Stdin};
use bytes::{Bytes, BytesMut};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::Guest;
use super::call::{Gone, Inbox, Outbox, Refusal, fault};
use super::kill::kill_descendants;
use super::pool::Started;
use crate::supervisor::{ExecFailure, Orders, Word};

/// How long the output of a command that has ended is waited for: a background child may hold the
/// pipe open for ever.
const DRAIN: Duration = Duration::from_millis(100);

/// How long a killed command may take to be reported dead. The kernel needs far less; this only
/// keeps a broken supervisor from holding the call.
const BURIAL: Duration = Duration::from_millis(900);

/// The far ends of a command's streams go to the command, these stay.
struct Streams {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// Answers a request to run a command.
pub(super) async fn run(
    guest: &Guest,
    exec: Exec,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    if exec.argv.is_empty() {
        return Err(Fault::new(FaultKind::Invalid, "the command has no program").into());
    }
    let deadline = exec.timeout.map(|timeout| Instant::now() + timeout);
    let (streams, far) =
        make_streams(exec.stdin).map_err(|error| fault("cannot make the pipes", &error))?;
    let orders = Orders { argv: exec.argv, env: exec.env, cwd: exec.cwd.into() };
    let started = guest.pool.start(&orders, far).await;
    let mut started = started.map_err(|error| fault("cannot start a process", &error))?;
    outbox.accept(Accepted { process: None }).await?;

    let end = converse(&mut started, streams, deadline, inbox, outbox).await;
    // A host that is gone cannot be told, but the command must still have been ended, and was.
    let told = match end {
        Some(end) => outbox.end(&end).await,
        None => Err(Gone),
    };
    drop(guest.pool.refill());
    Ok(told?)
}

fn make_streams(stdin: Stdin) -> io::Result<(Streams, [OwnedFd; 3])> {
    let new_pipe = || pipe_with(PipeFlags::CLOEXEC);
    let (far_in, near_in) = match stdin {
        Stdin::Null => {
            let null =
                rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            (null?, None)
        }
        Stdin::Stream => {
            let (far, near) = new_pipe()?;
            (far, Some(near))
        }
    };
    let (near_out, far_out) = new_pipe()?;
    let (near_err, far_err) = new_pipe()?;
    let streams = Streams {
        stdin: near_in.map(pipe::Sender::from_owned_fd).transpose()?,
        stdout: pipe::Receiver::from_owned_fd(near_out)?,
        stderr: pipe::Receiver::from_owned_fd(near_err)?,
    };
    Ok((streams, [far_in, far_out, far_err]))
}

/// Carries data both ways until the command has ended; `None` if the host went away first.
async fn converse(
    started: &mut Started,
    mut streams: Streams,
    deadline: Option<Instant>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Option<End> {
    let supervisor = started.supervisor;
    let outcome = {
        let mut output = Box::pin(forward(&mut streams.stdout, &mut streams.stderr, outbox));
        let mut input = Box::pin(feed(streams.stdin.take(), inbox));
        let mut ending = Box::pin(ending(started));
        let late = sleep_until(deadline);
        tokio::pin!(late);
        let (mut output_open, mut input_open) = (true, true);
        loop {
            tokio::select! {
                forwarded = &mut output, if output_open => match forwarded {
                    Ok(()) => output_open = false,
                    Err(Gone) => break Outcome::HostGone,
                },
                fed = &mut input, if input_open => match fed {
                    Ok(()) => input_open = false,
                    Err(Gone) => break Outcome::HostGone,
                },
                () = &mut late => break Outcome::Late,
                end = &mut ending => {
                    let drained = tokio::time::timeout(DRAIN, &mut output);
                    if output_open && matches!(drained.await, Ok(Err(Gone))) {
                        break Outcome::HostGone;
                    }
                    break Outcome::Ended(end);
                }
            }
        }
    };
    if let Outcome::Ended(end) = outcome {
        return Some(end);
    }
    kill_descendants(supervisor);
    drop(tokio::time::timeout(BURIAL, ending(started)).await);
    match outcome {
        // What the command said before it was ended is still in the pipes.
        Outcome::Late => {
            let rest = forward(&mut streams.stdout, &mut streams.stderr, outbox);
            let drained = tokio::time::timeout(DRAIN, rest).await;
            (!matches!(drained, Ok(Err(Gone)))).then_some(End::Timeout)
        }
        Outcome::HostGone | Outcome::Ended(_) => None,
    }
}

enum Outcome {
    Ended(End),
    Late,
    HostGone,
}

/// Waits for the end of the command by itself.
async fn ending(started: &mut Started) -> End {
    let word = started.ended().await;
    match started.executed().await {
        Ok(Some(failure)) => return End::NotStarted(not_started(failure)),
        Ok(None) => {}
        Err(error) => return End::Failed(fault("lost the command", &error)),
    }
    match word {
        Ok(Word::Exited(code)) => End::Exited { code },
        Ok(Word::Signalled(signal)) => End::Signalled { signal },
        Ok(Word::Ready { .. }) => lost_supervisor(),
        Err(_) => {
            // Somebody inside killed the supervisor. Its children are no longer known to belong to
            // this command, so the first process of the sandbox has them now and nobody counts on
            // them; the command itself cannot be vouched for.
            lost_supervisor()
        }
    }
}

fn lost_supervisor() -> End {
    End::Failed(Fault::new(FaultKind::Internal, "the supervisor of the command was killed"))
}

fn not_started(failure: ExecFailure) -> Fault {
    let (what, errno) = match failure {
        ExecFailure::Folder(errno) => ("cannot enter the folder to start in", errno),
        ExecFailure::Program(errno) => ("cannot execute the program", errno),
    };
    fault(what, &io::Error::from_raw_os_error(errno))
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Sends both outputs to the host until both are closed.
async fn forward(
    stdout: &mut pipe::Receiver,
    stderr: &mut pipe::Receiver,
    outbox: &mut Outbox,
) -> Result<(), Gone> {
    let (mut out, mut err) = (BytesMut::new(), BytesMut::new());
    let (mut out_open, mut err_open) = (true, true);
    while out_open || err_open {
        tokio::select! {
            read = read_some(stdout, &mut out), if out_open => match read {
                Some(data) => outbox.data(Tag::Stdout, data).await?,
                None => out_open = false,
            },
            read = read_some(stderr, &mut err), if err_open => match read {
                Some(data) => outbox.data(Tag::Stderr, data).await?,
                None => err_open = false,
            },
        }
    }
    Ok(())
}

/// What a pipe holds, at most a frame's worth; `None` at its end.
async fn read_some(from: &mut pipe::Receiver, buffer: &mut BytesMut) -> Option<Bytes> {
    buffer.reserve(MAX_DATA);
    let mut limited = from.take(MAX_DATA as u64);
    match limited.read_buf(buffer).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(buffer.split().freeze()),
    }
}

/// Hands input frames to the command until the input ends. A command that reads no more is no
/// failure; a host that goes away is.
async fn feed(mut stdin: Option<pipe::Sender>, inbox: &mut Inbox) -> Result<(), Gone> {
    loop {
        let frame = inbox.next().await?;
        match (frame.tag, &mut stdin) {
            (Tag::Input, Some(open)) => {
                if open.write_all(&frame.body).await.is_err() {
                    stdin = None;
                }
            }
            (Tag::InputEnd, _) => stdin = None,
            (Tag::Input, None) => {}
            _ => return Err(Gone),
        }
    }
}
