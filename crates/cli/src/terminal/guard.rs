//! A terminal in raw mode, and the ways back from it: the end of its use, a panic, signals.

use std::io;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long the rest of this program may take to end after a signal that asks for it. A terminal nobody
/// reads from may keep it from noticing.
const GRACE: Duration = Duration::from_secs(5);

/// The mode to go back to, while the terminal is in another.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// What a signal means for whoever uses the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalSignal {
    /// A signal of this number asks for the end. The terminal is as it was before already.
    End(i32),
    /// This program was stopped, and goes on.
    Continued,
}

/// Our terminal in raw mode, in which every key goes through. It gets its own mode back when this is
/// dropped, when anything panics, and when a signal ends or stops this program.
#[derive(Debug)]
pub(super) struct Guard {
    next_signal: mpsc::UnboundedReceiver<TerminalSignal>,
}

impl Guard {
    pub(super) fn enter() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                report(info);
            }));
        });
        let (sender, next_signal) = mpsc::unbounded_channel();
        // Signals are listened to before there is anything to restore, and by a thread of its own: the
        // one that passes output on may wait for the terminal itself.
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::Builder::new().name("signals".to_owned()).spawn(move || watch(&ready, &sender))?;
        is_ready.recv().map_err(io::Error::other)??;
        let before = tcgetattr(io::stdin())?;
        let entered = make_raw(&before);
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let guard = Self { next_signal };
        entered?;
        Ok(guard)
    }

    /// Waits for the next signal that matters.
    pub(super) async fn next_signal(&mut self) -> TerminalSignal {
        match self.next_signal.recv().await {
            Some(next_signal) => next_signal,
            // The thread is there as long as we are.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        restore();
    }
}

fn make_raw(before: &Termios) -> io::Result<()> {
    let mut raw = before.clone();
    raw.make_raw();
    Ok(tcsetattr(io::stdin(), OptionalActions::Now, &raw)?)
}

/// Gives the terminal its own mode back. Output that nobody reads is not waited for.
fn restore() {
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = before.take() {
        // If it cannot be set back, there is nothing else to try.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}

/// The life of the thread that listens to signals: until this program ends, or nobody has the guard.
fn watch(
    ready: &std::sync::mpsc::Sender<io::Result<()>>,
    sender: &mpsc::UnboundedSender<TerminalSignal>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let listen = || {
            Ok([
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
                signal(SignalKind::quit())?,
                signal(SignalKind::from_raw(Signal::TSTP.as_raw()))?,
                signal(SignalKind::from_raw(Signal::CONT.as_raw()))?,
            ])
        };
        let [mut interrupt, mut terminate, mut hangup, mut quit, mut stop, mut go_on] =
            match listen() {
                Ok(signals) => signals,
                Err(error) => return drop(ready.send(Err(error))),
            };
        drop(ready.send(Ok(())));
        loop {
            let number = tokio::select! {
                _ = interrupt.recv() => Signal::INT,
                _ = terminate.recv() => Signal::TERM,
                _ = hangup.recv() => Signal::HUP,
                _ = quit.recv() => Signal::QUIT,
                _ = stop.recv() => Signal::TSTP,
                _ = go_on.recv() => Signal::CONT,
                () = sender.closed() => return,
            };
            match number {
                Signal::TSTP => {
                    // One that came before is no reason to go on.
                    let _ = go_on.recv().now_or_never();
                    show_before();
                    // A stop cannot fail for oneself. Other threads may stop first, so the way back
                    // begins with the signal that everybody goes on by.
                    let _ = kill_process(getpid(), Signal::STOP);
                    go_on.recv().await;
                    again(sender);
                }
                // Whoever had the terminal meanwhile left it in its own mode.
                Signal::CONT => again(sender),
                number => {
                    restore();
                    let number = number.as_raw();
                    let _ = sender.send(TerminalSignal::End(number));
                    tokio::time::sleep(GRACE).await;
                    end(number);
                }
            }
        }
    });
}

/// Gives the terminal its own mode back for a while.
fn show_before() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = &*before {
        // If it cannot be set back, there is nothing else to try.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
    }
}

/// Takes the terminal again after this program was stopped.
fn again(sender: &mpsc::UnboundedSender<TerminalSignal>) {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = &*before {
        // A terminal that is gone hangs up, too.
        drop(make_raw(before));
        let _ = sender.send(TerminalSignal::Continued);
    }
}

#[expect(clippy::exit, reason = "whoever should return is kept from it by a terminal nobody reads")]
fn end(number: i32) {
    std::process::exit(128 + number);
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::LocalModes;

    use super::*;

    /// What the process of this test says once its terminal is raw.
    const RAW: &str = "the terminal is raw";

    fn is_raw(modes: &Termios) -> bool {
        !modes.local_modes.contains(LocalModes::ICANON)
    }

    /// The part of the test that has the terminal: one thread lends it, and another one panics.
    #[test]
    #[ignore = "it needs a terminal, which the test below gives it"]
    fn panics_while_the_terminal_is_raw() {
        let _guard = Guard::enter().unwrap();
        assert!(is_raw(&tcgetattr(io::stdin()).unwrap()));
        let other = thread::spawn(|| panic!("{RAW}"));
        assert!(other.join().is_err());
        // Nobody else gives it back: the guard is never dropped.
        std::process::abort();
    }

    #[test]
    fn gives_the_terminal_back_when_anything_panics() {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = openat(CWD, &name, flags, Mode::empty()).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        assert!(!is_raw(&before));
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        child.arg("terminal::guard::tests::panics_while_the_terminal_is_raw");
        child.stdin(Stdio::from(terminal.try_clone().unwrap()));
        let ended = child.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains(RAW), "{said}");
        let now = tcgetattr(&terminal).unwrap();
        assert_eq!(
            (now.input_modes, now.output_modes, now.control_modes, now.local_modes),
            (before.input_modes, before.output_modes, before.control_modes, before.local_modes),
            "{said}"
        );
    }
}
