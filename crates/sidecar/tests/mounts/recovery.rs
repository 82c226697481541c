//! The program is killed, and another one goes on.
//!
//! Whoever starts a program must not have a file of its mount open: executing closes it, which waits
//! for an answer of the very program. So the files are open in another process.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use bastide_mount::MountSpec;

use crate::harness::{Mounted, drop_pages, may_mount};
use crate::proxy::{ProxyAction, proxy};
use crate::servers::{DEADLINE, Kind, Server};

/// Runs lines of Python, each of which says what it gave or the number of its error.
const HOLDER: &str = "
import os, sys
for line in sys.stdin:
    try:
        exec(line)
        print('ok', flush=True)
    except OSError as error:
        print(error.errno, flush=True)
    except Exception as error:
        print(repr(error), flush=True)
";

struct Holder {
    child: Child,
    answers: mpsc::Receiver<String>,
}

impl Holder {
    fn new(folder: &Path) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", HOLDER])
            .current_dir("/")
            .env("FOLDER", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            out.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        let mut holder = Self { child, answers };
        assert_eq!(holder.run("folder = os.environ['FOLDER']"), "ok");
        holder
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{line}").unwrap();
    }

    fn hear(&self) -> String {
        self.answers.recv_timeout(DEADLINE).unwrap()
    }

    fn run(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const EIO: &str = "5";

#[test]
fn another_program_goes_on_where_one_was_killed() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let mut mount = Mounted::new(server.spec());
    fs::create_dir_all(mount.at("a/b")).unwrap();
    fs::write(mount.at("a/b/kept"), vec![1; 3 << 20]).unwrap();
    let mut holder = Holder::new(&mount.path);
    for line in [
        "r = os.open(folder + '/a/b/kept', os.O_RDONLY); os.pread(r, 1, 0)",
        "l = os.open(folder + '/a/lost', os.O_WRONLY | os.O_CREAT); os.write(l, b'never synced')",
        "s = os.open(folder + '/a/synced', os.O_WRONLY | os.O_CREAT); os.write(s, b'synced'); os.fsync(s)",
        "os.write(s, b', and more')",
    ] {
        assert_eq!(holder.run(line), "ok", "{line}");
    }

    mount.kill_and_restart();
    drop_pages();

    assert_eq!(holder.run("os.pread(r, 1, 2 << 20)"), EIO);
    assert_eq!(holder.run("os.write(l, b'x')"), EIO);
    assert_eq!(holder.run("os.fsync(s)"), EIO);
    assert_eq!(holder.run("os.close(s)"), EIO);
    drop(holder);
    assert_eq!(fs::metadata(mount.at("a/b/kept")).unwrap().len(), 3 << 20);
    assert!(fs::read(mount.at("a/b/kept")).unwrap() == vec![1; 3 << 20]);
    assert_eq!(fs::read(mount.at("a/synced")).unwrap(), b"synced");
    assert!(!mount.at("a/lost").exists());
    fs::write(mount.at("a/b/new"), "new").unwrap();
    fs::rename(mount.at("a"), mount.at("c")).unwrap();
    assert_eq!(fs::read(mount.at("c/b/new")).unwrap(), b"new");
}

#[test]
fn a_request_that_the_killed_program_took_ends() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let silent = Arc::new(AtomicBool::new(false));
    let (asked, is_asked) = mpsc::channel();
    let fate = {
        let silent = Arc::clone(&silent);
        move || {
            if silent.load(Ordering::SeqCst) {
                let _ = asked.send(());
                return ProxyAction::Silence;
            }
            ProxyAction::Pass
        }
    };
    let between = proxy(server.port, fate);
    let spec = MountSpec { source: server.source_at(&between.endpoint()), ..server.spec() };
    let mut mount = Mounted::with_cache(spec, None);
    fs::write(mount.at("file"), vec![3; 2 << 20]).unwrap();
    drop_pages();
    let mut holder = Holder::new(&mount.path);
    assert_eq!(holder.run("r = os.open(folder + '/file', os.O_RDONLY)"), "ok");
    silent.store(true, Ordering::SeqCst);
    holder.tell("os.pread(r, 10, 0)");
    is_asked.recv_timeout(DEADLINE).unwrap();
    mount.kill_and_restart();
    assert_eq!(holder.hear(), EIO);
    drop(holder);
    silent.store(false, Ordering::SeqCst);
    assert!(fs::read(mount.at("file")).unwrap() == vec![3; 2 << 20]);
}
