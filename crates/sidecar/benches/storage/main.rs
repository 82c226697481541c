//! Mounts of an object store beside `rclone mount` and `mount-s3` on the same server, in turns, so that a noisy moment
//! hits all of them. Run by `cargo xtask bench`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench that cannot measure ends"
)]
#![allow(dead_code, reason = "the tests use more of what they share with this")]

#[path = "../../tests/mounts/harness.rs"]
mod harness;
#[path = "../../tests/mounts/servers.rs"]
mod servers;

mod peers;
mod promises;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bastide_mount::{Cache, MountSpec};

use harness::{Mounted, drop_pages, may_mount};
use peers::{Peer, PeerMount};
use promises::{Promise, Verdicts};
use servers::{Kind, Server};

/// How much of everything.
#[derive(Debug, Clone, Copy)]
struct Amounts {
    files: usize,
    listed: usize,
    large_mib: usize,
    rounds: usize,
}

const WHOLE: Amounts = Amounts { files: 2000, listed: 10_000, large_mib: 512, rounds: 3 };
const QUICK: Amounts = Amounts { files: 200, listed: 1000, large_mib: 64, rounds: 1 };

/// The most memory that answering for a mount may take, in KiB.
const MOST_MEMORY: u64 = 64 << 10;

/// What is done to a mounted store: a title, what it does in a folder, and what is promised of it.
struct Row {
    title: &'static str,
    work: fn(&Path, Amounts, usize),
    /// At most so many times as long as the faster peer.
    most: f64,
    /// Whether it leaves something that a second session need not fetch again.
    is_cached: bool,
}

const ROWS: &[Row] = &[
    Row { title: "storage: read one large file", work: read_large, most: 1.0, is_cached: true },
    Row { title: "storage: read 4 KiB files", work: read_small, most: 0.5, is_cached: true },
    Row { title: "storage: list a folder", work: list, most: 0.5, is_cached: false },
    Row { title: "storage: write 4 KiB files", work: write_small, most: 0.5, is_cached: false },
];

fn main() -> ExitCode {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| given.iter().any(|word| word == flag);
    let only = given.iter().position(|word| word == "--only").and_then(|at| given.get(at + 1));
    let amounts = if has("--quick") { QUICK } else { WHOLE };
    if !may_mount() {
        return end(has("--check"), "FUSE is not for this user");
    }
    let Some(server) = Server::start(Kind::Moto) else {
        return end(has("--check"), "there is no server: `cargo xtask test` installs it");
    };
    let peers = Peer::available();
    let mut verdicts = Verdicts::new(has("--json"));
    let wanted = |row: &&Row| only.is_none_or(|part| row.title.contains(part.as_str()));
    fill(&server, amounts);
    for row in ROWS.iter().filter(wanted) {
        measure(row, &server, &peers, amounts, &mut verdicts);
    }
    println!("{}", verdicts.text());
    if has("--check") && !verdicts.all_held() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn end(is_checked: bool, why: &str) -> ExitCode {
    eprintln!("storage: not measured: {why}");
    if is_checked { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Puts there what is read.
fn fill(server: &Server, amounts: Amounts) {
    let mount = Mounted::with_cache(server.spec(), None);
    let mut large = File::create(mount.at("large")).unwrap();
    for number in 0..amounts.large_mib {
        large.write_all(&vec![u8::try_from(number % 251).unwrap(); 1 << 20]).unwrap();
    }
    large.sync_all().unwrap();
    make_small(&mount.at("small"), amounts);
    fs::create_dir(mount.at("many")).unwrap();
    for number in 0..amounts.listed {
        fs::write(mount.at(format!("many/f{number:05}")), "x").unwrap();
    }
}

fn measure(row: &Row, server: &Server, peers: &[Peer], amounts: Amounts, verdicts: &mut Verdicts) {
    let cache = tempfile::tempdir().unwrap();
    let spec = |id: &str| MountSpec { id: id.into(), ..server.spec() };
    let (mut ours, mut second) = (Vec::new(), Vec::new());
    let mut theirs: Vec<(Peer, Vec<Duration>)> =
        peers.iter().map(|peer| (*peer, Vec::new())).collect();
    let mut peak = 0;
    for round in 0..amounts.rounds {
        let folder = cache.path().join(round.to_string());
        let settings = || Some(Cache { folder: folder.clone(), size: 4 << 30 });
        {
            let mount = Mounted::with_cache(spec("a"), settings());
            ours.push(timed(|| (row.work)(&mount.path, amounts, round)));
            peak = peak_kib(mount.pid()).max(peak);
            if row.is_cached {
                let other = Mounted::with_cache(spec("b"), settings());
                second.push(timed(|| (row.work)(&other.path, amounts, round)));
            }
        }
        for (number, (peer, times)) in theirs.iter_mut().enumerate() {
            let mount = PeerMount::new(*peer, server);
            // Whoever writes has a folder of their own.
            let turn = (number + 1) * 100 + round;
            times.push(timed(|| (row.work)(mount.path(), amounts, turn)));
        }
    }
    let ours = median(ours);
    let theirs: Vec<_> = theirs.into_iter().map(|(peer, times)| (peer, median(times))).collect();
    let better = theirs.iter().map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
    let mut promises = vec![
        Promise::times(row.most, "the faster peer", better.is_finite().then_some(ours / better)),
        Promise::most(MOST_MEMORY, "KiB of memory", peak),
    ];
    if row.is_cached {
        let ratio = median(second) / ours;
        promises.push(Promise::times(0.2, "the first session, in a second one", Some(ratio)));
    }
    verdicts.add(row.title, ours, &theirs, promises);
}

fn timed(work: impl FnOnce()) -> Duration {
    drop_pages();
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

fn read_large(root: &Path, amounts: Amounts, _round: usize) {
    let mut file = File::open(root.join("large")).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    while let Ok(size @ 1..) = file.read(&mut buffer) {
        total += size;
    }
    assert_eq!(total, amounts.large_mib << 20);
}

fn read_small(root: &Path, amounts: Amounts, _round: usize) {
    for number in 0..amounts.files {
        let content = fs::read(root.join(format!("small/f{number:05}"))).unwrap();
        assert_eq!(content.len(), 4096);
    }
}

fn list(root: &Path, amounts: Amounts, _round: usize) {
    let entries = fs::read_dir(root.join("many")).unwrap();
    let total: u64 = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(total, amounts.listed as u64);
}

fn write_small(root: &Path, amounts: Amounts, round: usize) {
    make_small(&root.join(format!("written{round}")), amounts);
}

fn make_small(folder: &Path, amounts: Amounts) {
    fs::create_dir(folder).unwrap();
    for number in 0..amounts.files {
        let mut file = File::create(folder.join(format!("f{number:05}"))).unwrap();
        file.write_all(&[7; 4096]).unwrap();
    }
}
