//! Signals that ask this program to end, while it waits for a command.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Error, ErrorKind, ProcessId, Result, Session};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long a command may go on after the first signal.
const GRACE: Duration = Duration::from_secs(10);

/// How long the end of a command may take that was killed.
pub(super) const END: Duration = Duration::from_secs(5);

const KILL: i32 = 9;
const TERM: i32 = 15;

/// The user or the system asking for the end. From the moment somebody listens, it does not end us.
#[derive(Debug)]
pub(crate) struct Interrupts([(SignalKind, Signal); 3]);

impl Interrupts {
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| Ok::<_, io::Error>((kind, signal(kind)?));
        let all = || {
            Ok([
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ])
        };
        all().map(Self).map_err(|error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot listen to signals: {error}"))
        })
    }

    /// Waits for the next; its number.
    pub(crate) async fn next(&mut self) -> i32 {
        let [interrupt, terminate, hangup] = &mut self.0;
        let (kind, _) = tokio::select! {
            _ = interrupt.1.recv() => interrupt,
            _ = terminate.1.recv() => terminate,
            _ = hangup.1.recv() => hangup,
        };
        kind.as_raw_value()
    }
}

/// What became of the wait for a command.
pub(super) struct WaitOutcome<T> {
    /// What was waited for; `None` where it did not come after a kill.
    pub(super) outcome: Option<T>,
    /// The first signal that came to us, if the command had to be killed for it.
    pub(super) killed_for: Option<i32>,
}

/// Waits for something that comes with the end of a command. The first signal that comes to us goes to the
/// command as it is, the second one as TERM; the third, or ten seconds after the first, kills it and
/// everything descended from it.
pub(super) async fn wait<T>(
    session: &Session,
    process: ProcessId,
    interrupts: &mut Interrupts,
    work: impl Future<Output = T>,
) -> WaitOutcome<T> {
    let mut work = std::pin::pin!(work);
    let mut first: Option<(i32, Instant)> = None;
    let mut count = 0;
    loop {
        let deadline = first.map(|(_, at)| at + GRACE);
        let number = tokio::select! {
            outcome = &mut work => return WaitOutcome { outcome: Some(outcome), killed_for: None },
            number = interrupts.next() => number,
            () = sleep_until(deadline) => KILL,
        };
        let (first_number, _) = *first.get_or_insert((number, Instant::now()));
        count += 1;
        if number != KILL && count < 3 {
            let sent = if count == 1 { number } else { TERM };
            // One that has ended by itself in the meantime is what was wanted.
            drop(tokio::time::timeout(END, session.signal(process, sent)).await);
            continue;
        }
        kill(session, process).await;
        // What it had said by then is told all the same.
        let outcome = tokio::time::timeout(END, work).await.ok();
        return WaitOutcome { outcome, killed_for: Some(first_number) };
    }
}

/// Ends a command and everything descended from it.
pub(super) async fn kill(session: &Session, process: ProcessId) {
    drop(tokio::time::timeout(END, session.signal(process, KILL)).await);
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Signals for work of several parts: the first asks each of them to end, the second ends this program at once.
#[derive(Debug, Clone)]
pub(crate) struct StopSignal(watch::Receiver<Option<i32>>);

impl StopSignal {
    pub(crate) fn listen() -> Result<Self> {
        let mut interrupts = Interrupts::listen()?;
        let (asked, asking) = watch::channel(None);
        tokio::spawn(async move {
            asked.send_replace(Some(interrupts.next().await));
            let number = interrupts.next().await;
            std::process::exit(128 + number);
        });
        Ok(Self(asking))
    }

    /// The exit code, if one came.
    pub(crate) fn exit_code(&self) -> Option<ExitCode> {
        let number = (*self.0.borrow())?;
        Some(ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX)))
    }

    /// Waits for the first; its number.
    pub(crate) async fn wait(mut self) -> i32 {
        let number = self.0.wait_for(Option::is_some).await.ok().and_then(|number| *number);
        match number {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }
}
