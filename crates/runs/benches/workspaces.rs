//! Making a workspace ready and collecting its change, beside what git takes to say the same. Run by
//! `cargo xtask bench`.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench that cannot measure ends")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bastide_runs::RunHome;
use bastide_runs::workspace::{Workspace, WorkspaceMode, WorkspaceOptions};

/// How many files the repository has, and how many of them change.
const FILES: usize = 10_000;
const CHANGED: usize = 20;

/// A mode beside what git does, and at most how many times as long it may take.
struct Row {
    title: &'static str,
    mode: WorkspaceMode,
    peer: &'static str,
    git: fn(&Path, &Path),
    most: f64,
}

const ROWS: [Row; 2] = [
    Row {
        title: "runs: prepare and collect in place",
        mode: WorkspaceMode::InPlace,
        peer: "git status + git diff",
        git: status_and_diff,
        most: 1.0,
    },
    Row {
        title: "runs: prepare and collect in a clone",
        mode: WorkspaceMode::Clone,
        peer: "git clone --local",
        git: clone,
        most: 1.5,
    },
];

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| given.iter().any(|word| word == flag);
    let only = given.iter().position(|word| word == "--only").and_then(|at| given.get(at + 1));
    let rounds = if has("--quick") { 3 } else { 15 };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    make(&source);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut held, mut broken) = (0, 0);
    for row in ROWS.iter().filter(|row| only.is_none_or(|part| row.title.contains(part.as_str()))) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let took = runtime.block_on(measure(&source, folder.path(), &row.mode, round));
            restore(&source);
            change(&source, round);
            let place = folder.path().join(format!("git{round}"));
            let begin = Instant::now();
            (row.git)(&source, &place);
            let git = begin.elapsed();
            drop(fs::remove_dir_all(&place));
            restore(&source);
            // The first round only warms up.
            if round > 0 {
                ours.push(took);
                theirs.push(git);
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = ours / theirs;
        let holds = ratio <= row.most;
        held += usize::from(holds);
        broken += usize::from(!holds);
        if has("--json") {
            println!(
                r#"{{"scenario":"{}","milliseconds":{ours:.2},"peer":"{}","peer_milliseconds":{theirs:.2},"most":{}}}"#,
                row.title, row.peer, row.most
            );
            continue;
        }
        let (mark, what) = if holds { ("✓", "holds") } else { ("✗", "does not hold") };
        println!("{}: {ours:.1} ms, {} {theirs:.1} ms", row.title, row.peer);
        println!("  {mark} ≤ {} × {} {what} ({ratio:.2})", row.most, row.peer);
    }
    println!("runs: held={held} broken={broken}");
    if has("--check") && broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What it takes to make the workspace ready and to collect; what an agent does in between is not counted.
async fn measure(source: &Path, folder: &Path, mode: &WorkspaceMode, round: usize) -> Duration {
    let home = RunHome::at(folder.join("home")).unwrap();
    let run = home.begin(&format!("r{round}")).unwrap();
    let options = WorkspaceOptions::default().mode(mode.clone());
    let begin = Instant::now();
    let workspace = Workspace::prepare(source, &options, run).await.unwrap();
    let prepared = begin.elapsed();
    change(workspace.folder(), round);
    let patch = folder.join("patch");
    let begin = Instant::now();
    let changes = workspace.collect(&patch).unwrap();
    let collected = begin.elapsed();
    assert_eq!(changes.files.len(), CHANGED);
    fs::remove_file(patch).unwrap();
    fs::remove_dir_all(workspace.close().unwrap()).unwrap();
    prepared + collected
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

/// A repository as one that was cloned: everything in one pack.
fn make(source: &Path) {
    fs::create_dir(source).unwrap();
    git(source, &["init", "--quiet"]);
    for number in 0..FILES {
        let path = path(source, number);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines = (0..60).map(|line| format!("line {line} of file {number}\n"));
        fs::write(path, lines.collect::<String>()).unwrap();
    }
    git(source, &["add", "."]);
    git(source, &["commit", "--quiet", "--message", "all"]);
    git(source, &["gc", "--quiet"]);
}

fn path(source: &Path, number: usize) -> PathBuf {
    source.join(format!("d{:02}/e{:02}/f{number}.txt", number % 100, number / 100 % 10))
}

fn change(folder: &Path, round: usize) {
    for number in 0..CHANGED {
        let path = path(folder, number * (FILES / CHANGED));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("line 30 of", &format!("line {round} instead of"))).unwrap();
    }
}

fn restore(folder: &Path) {
    git(folder, &["checkout", "--quiet", "--", "."]);
    git(folder, &["status", "--porcelain"]);
}

fn status_and_diff(source: &Path, _place: &Path) {
    git(source, &["status", "--porcelain"]);
    git(source, &["diff"]);
}

fn clone(source: &Path, place: &Path) {
    git(source, &["clone", "--quiet", "--local", ".", place.to_str().unwrap()]);
}

fn git(folder: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "gc.auto=0"]);
    command.args(words).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().unwrap().success(), "{words:?}");
}
