//! Workspaces among the temporary files, which programs have made that follow the reference: however their makers and removers
//! end, and whatever commands did to them, none is left that no session leads to.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions};
use bastide_local::LocalBackend;
use tempfile::TempDir;

use crate::chaos::random;
use crate::harness::{Home, SOMEBODY, count, kill, pass, text, until};
use crate::inject::{self, Call, Fault, Outcome};

/// Where the program that makes a session finds the home, and whether the session ends with it.
const HOME: &str = "BASTIDE_TEST_OWNED_ROOT_HOME";
const TIED: &str = "BASTIDE_TEST_OWNED_ROOT_TIED";

/// What a workspace there is called, before it has its name too.
const NAME: &str = "sandbox-local-";

/// The program that makes a session: run by the tests below, in a process of its own.
#[test]
#[ignore = "it is a program that other tests run"]
fn makes_a_session_among_the_temporary_files() {
    let home = std::env::var_os(HOME).unwrap();
    let is_tied = std::env::var_os(TIED).is_some();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(Arc::new(LocalBackend::new(PathBuf::from(home)).unwrap()));
        let options = CreateOptions::default().unix_local();
        let options = if is_tied { options } else { options.detached() };
        let session = client.create(&Manifest::default(), options).await.unwrap();
        println!("made {} in {}", session.id(), session.root().as_str());
        if is_tied {
            // Until its reader is gone, or it is killed.
            drop(std::io::read_to_string(std::io::stdin()));
        }
    });
}

/// A home, and the temporary files of a user beside it.
struct Scene {
    home: Home,
    temporary: TempDir,
    program: PathBuf,
    user: Option<u32>,
}

impl Scene {
    /// One of root, and one of an ordinary user, as far as there are both.
    fn all() -> Vec<Self> {
        let own = Some((Home::new(), None));
        let users = Home::of_somebody().map(|home| (home, Some(SOMEBODY)));
        own.into_iter().chain(users).map(|(home, user)| Self::of(home, user)).collect()
    }

    fn of(home: Home, user: Option<u32>) -> Self {
        let program = home.path().join("maker");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let temporary = tempfile::tempdir().unwrap();
        chown(temporary.path(), user, user).unwrap();
        Self { home, temporary, program, user }
    }

    /// The program that makes a session there.
    fn maker(&self, is_tied: bool) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let name = "owned_roots::makes_a_session_among_the_temporary_files";
        let arguments = ["--exact", name, "--ignored", "--nocapture"];
        let mut command = self.home.wrapped(command, &arguments);
        command.env(HOME, self.home.path()).env("TMPDIR", self.temporary.path());
        if is_tied {
            command.env(TIED, "1").stdin(Stdio::piped());
        }
        command
    }

    /// Makes a session that outlives its maker, and gives its id.
    fn make(&self) -> String {
        let made = self.maker(false).output().unwrap();
        let (said, why) = (text(&made.stdout), text(&made.stderr));
        let id = said.split_once("made ").and_then(|(_, made)| made.split(' ').next());
        id.ok_or_else(|| format!("{said}{why}")).unwrap().to_owned()
    }

    /// What lies among the temporary files.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.temporary.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

#[test]
fn leaves_none_that_no_sweep_finds_wherever_its_maker_is_killed() {
    let is_full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    for scene in Scene::all() {
        // The home is made by then.
        let first = scene.make();
        scene.home.say(&["rm", &first]);
        let within = std::env::temp_dir().canonicalize().unwrap();
        let counted = inject::run(&mut scene.maker(false), &within, None);
        let is_about_one = |call: &Call| call.path.to_string_lossy().contains(NAME);
        let calls = counted.calls;
        let begin = calls.iter().position(is_about_one).unwrap();
        let noted = calls.iter().rposition(|call| call.path.ends_with("owned-root")).unwrap();
        let chosen = if is_full { 0..calls.len() } else { begin..noted + 4 };
        for at in chosen {
            let fault = Fault { at: at + 1, outcome: Outcome::Killed };
            let killed = inject::run(&mut scene.maker(false), &within, Some(fault));
            let call = killed.calls.last().map(|call| format!("{} of {:?}", call.name, call.path));
            for id in scene.home.folders() {
                // What runs was made to its end.
                if is_running(&scene.home, &id) {
                    scene.home.say(&["rm", &id]);
                }
            }
            scene.home.say(&["sweep"]);
            assert_eq!(scene.left(), Vec::<String>::new(), "killed at call {at}, {call:?}");
        }
        until("all is gone", || scene.home.folders().is_empty());
    }
}

#[test]
fn leaves_none_whose_removal_was_killed() {
    for scene in Scene::all() {
        for round in 0..count(40) {
            let id = scene.make();
            let line = "mkdir $(seq 300); for i in $(seq 300); do echo > $i/file; done";
            scene.home.say(&["exec", &id, "--", "sh", "-c", line]);
            scene.home.say(&["stop", &id]);
            let mut removal = scene.home.command(&["rm", &id]).spawn().unwrap();
            // It has others do it.
            let is_over = std::cell::Cell::new(false);
            until("it is killed, or over", || {
                is_over.set(removal.try_wait().unwrap().is_some());
                is_over.get() || kill_helper(removal.id())
            });
            removal.wait().unwrap();
            scene.home.run(&["rm", &id]);
            assert_eq!(scene.left(), Vec::<String>::new(), "round {round}");
            assert_eq!(scene.home.folders(), Vec::<String>::new(), "round {round}");
        }
    }
}

/// Kills the process that removes a tree for this one, a moment after it began.
fn kill_helper(of: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<i32> = children
        .flat_map(|line| line.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    for pid in children {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if text(&line).contains("remove-tree") {
            pass(Duration::from_micros(random(4000)));
            kill(pid, "KILL");
            return true;
        }
    }
    false
}

#[test]
fn leaves_none_that_commands_closed_to_everybody() {
    for scene in Scene::all() {
        for folder in [".", "deep"] {
            let mut maker = scene.maker(true).spawn().unwrap();
            until("it is made", || !scene.home.folders().is_empty());
            let id = until_running(&scene.home);
            let line = format!("mkdir deep; echo private > deep/file; chmod 000 {folder}");
            scene.home.run(&["exec", &id, "--", "sh", "-c", &line]);
            maker.kill().unwrap();
            maker.wait().unwrap();
            until("it is gone", || scene.home.folders().is_empty());
            assert_eq!(scene.left(), Vec::<String>::new(), "after `chmod 000 {folder}`");
        }
    }
}

/// Temporary files go in time, and their names can be had by anybody then.
#[test]
fn takes_no_folder_of_somebody_else_for_one() {
    let Some(home) = Home::of_somebody() else { return };
    let scene = Scene::of(home, Some(SOMEBODY));
    let id = scene.make();
    scene.home.say(&["stop", &id]);
    let root = scene.temporary.path().join(format!("{NAME}{id}"));
    fs::remove_dir_all(&root).unwrap();
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    let resumed = scene.home.run(&["resume", &id]);
    assert_eq!(resumed.status.code(), Some(125), "{}", text(&resumed.stderr));
    assert!(text(&resumed.stderr).contains("somebody else's"), "{}", text(&resumed.stderr));
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    scene.home.say(&["rm", &id]);
    assert!(root.exists(), "it was removed with the session");
}

fn is_running(home: &Home, id: &str) -> bool {
    let inspected = home.run(&["inspect", "--json", id]);
    let found: Option<serde_json::Value> = serde_json::from_slice(&inspected.stdout).ok();
    found.is_some_and(|found| found["state"] == "running")
}

/// The only session there is, once it runs.
fn until_running(home: &Home) -> String {
    let running = std::cell::RefCell::new(String::new());
    until("it runs", || {
        let found = home.folders().into_iter().find(|id| is_running(home, id));
        found.map(|id| *running.borrow_mut() = id).is_some()
    });
    running.into_inner()
}
