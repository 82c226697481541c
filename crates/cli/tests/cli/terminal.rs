//! A terminal that was lent to a shell inside is given back as it was, however that ends.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, tcgetattr};

use crate::harness::{Home, end, until};

/// A terminal with a shell of a session on it.
struct Terminal {
    controller: File,
    /// Our own hold on the terminal itself, so that it can be looked at when nobody else has it open.
    terminal: OwnedFd,
    before: Termios,
    tool: Child,
}

impl Terminal {
    fn with_shell(home: &Home, id: &str) -> Self {
        let this = Self::with(home, &["shell", id]);
        until("the terminal is raw", || this.is_raw());
        this
    }

    /// One with any command of the tool on it.
    fn with(home: &Home, arguments: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = openat(CWD, &name, flags, Mode::empty()).unwrap();
        let before = tcgetattr(&terminal).unwrap();
        let mut command = home.command(arguments);
        let copy = || terminal.try_clone().unwrap();
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let tool = command.spawn().unwrap();
        Self { controller: controller.into(), terminal, before, tool }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Whether it is as it was before it was lent.
    fn is_restored(&self) -> bool {
        let (now, before) = (tcgetattr(&self.terminal).unwrap(), &self.before);
        (now.input_modes, now.output_modes, now.control_modes, now.local_modes)
            == (before.input_modes, before.output_modes, before.control_modes, before.local_modes)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.tool), signal).unwrap();
    }

    /// Reads until the shell inside has said something.
    fn read_until(&mut self, wanted: &str) {
        let mut said = Vec::new();
        while !String::from_utf8_lossy(&said).contains(wanted) {
            let mut chunk = [0; 1024];
            let count = self.controller.read(&mut chunk).unwrap();
            said.extend_from_slice(&chunk[..count]);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tool.kill());
        drop(self.tool.wait());
    }
}

#[test]
fn gives_the_terminal_back_whatever_signal_ends_it() {
    let home = Home::new();
    let id = home.create();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let mut terminal = Terminal::with_shell(&home, &id);
        terminal.signal(signal);
        let status = end(&mut terminal.tool);
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{signal:?}: {status:?}");
        assert!(terminal.is_restored(), "{signal:?}");
    }
}

#[test]
fn gives_the_terminal_back_at_the_end_of_the_shell() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = Terminal::with_shell(&home, &id);
    terminal.controller.write_all(b"exit 3\n").unwrap();
    assert_eq!(end(&mut terminal.tool).code(), Some(3));
    assert!(terminal.is_restored());
}

#[test]
fn gives_the_terminal_back_while_it_is_stopped() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = Terminal::with_shell(&home, &id);
    for _ in 0..3 {
        terminal.signal(Signal::TSTP);
        let stat = format!("/proc/{}/stat", terminal.tool.id());
        until("it is stopped", || {
            let stat = fs::read_to_string(&stat).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
        });
        assert!(terminal.is_restored());
        terminal.signal(Signal::CONT);
        until("the terminal is raw again", || terminal.is_raw());
    }
    // One that cannot be caught leaves the mode to whoever reads next; going on sets it again.
    terminal.controller.write_all(b"echo still $((40 + 2))\n").unwrap();
    terminal.read_until("still 42");
    terminal.signal(Signal::TERM);
    assert_eq!(end(&mut terminal.tool).code(), Some(128 + Signal::TERM.as_raw()));
    assert!(terminal.is_restored());
}

#[test]
fn gives_the_terminal_back_though_nobody_reads_from_it() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = Terminal::with_shell(&home, &id);
    terminal.controller.write_all(b"echo on; yes\n").unwrap();
    terminal.read_until("on\r\n");
    terminal.signal(Signal::TERM);
    until("the terminal is given back", || terminal.is_restored());
    assert_eq!(end(&mut terminal.tool).code(), Some(128 + Signal::TERM.as_raw()));
}

#[test]
fn says_on_a_terminal_too_that_there_is_no_network() {
    let home = Home::new();
    let id = home.create();
    let line = "echo 'curl: (6) Could not resolve host: example.org'; exit 6";
    let mut terminal = Terminal::with(&home, &["exec", "-it", &id, "--", "sh", "-c", line]);
    terminal.read_until("the network of this session is `none`");
    assert_eq!(end(&mut terminal.tool).code(), Some(6));
    let mut terminal = Terminal::with_shell(&home, &id);
    terminal.controller.write_all(b"echo 'Network is' unreachable; exit 7\n").unwrap();
    terminal.read_until("the network of this session is `none`");
    assert_eq!(end(&mut terminal.tool).code(), Some(7));
}
