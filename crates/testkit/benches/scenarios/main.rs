//! What users feel, beside what they would use instead: everybody takes turns within each round, so that
//! a noisy moment hits all of them.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints")]

mod bare;
mod bwrap;
mod chart;
mod density;
mod docker_exec;
mod idle;
mod instructions;
mod measured;
mod network;
mod operation;
mod ours;
mod packages;
mod peak;
mod peers;
mod points;
mod random;
mod record;
mod reference;
mod scenario;
mod snapshots;
mod statistics;
mod subject;
mod table;
mod trees;
mod verdict;
mod who;
mod workload;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;

use density::Density;
use idle::Idle;
use instructions::Counted;
use measured::Measured;
use network::Network;
use peak::Peak;
use scenario::{SCENARIOS, Scenario};
use subject::{Available, Subject, Subjects};
use verdict::Verdicts;
use workload::Cleared;

/// How long a daemon is given to come to rest.
const SETTLE: Duration = Duration::from_millis(20);

/// Where `cargo` has the programs it runs look for libraries first. Peers would inherit it and look there for
/// each program they start, which takes them a sixth longer, while commands in a sandbox do not.
const OF_CARGO: &str = "LD_LIBRARY_PATH";

#[derive(Debug, Parser)]
struct Arguments {
    /// Few rounds
    #[arg(long)]
    quick: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// An interpreter that has the reference
    #[arg(long)]
    python: Option<PathBuf>,
    /// A folder on a disk, for what cannot be measured in memory
    #[arg(long)]
    disk: Option<PathBuf>,
    /// The program `bastide`
    #[arg(long)]
    cli: Option<PathBuf>,
    /// bubblewrap is installed
    #[arg(long)]
    bwrap: bool,
    /// The program `sandlock`
    #[arg(long)]
    sandlock: Option<PathBuf>,
    /// The program `nono`
    #[arg(long)]
    nono: Option<PathBuf>,
    /// A Docker daemon that has the images of the tests
    #[arg(long)]
    docker: Option<String>,
    /// Only scenarios whose title holds this
    #[arg(long)]
    only: Option<String>,
    /// Only these peers
    #[arg(long, value_delimiter = ',')]
    against: Vec<String>,
    /// Only scenarios of these backends of ours
    #[arg(long, value_delimiter = ',')]
    backend: Vec<String>,
    /// Fail where a promise is not kept
    #[arg(long)]
    check: bool,
    /// Peers that need not be here
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Write the results to this file
    #[arg(long)]
    save: Option<PathBuf>,
    /// Compare with the results in this file
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Draw the ratios into this file
    #[arg(long)]
    chart: Option<PathBuf>,
    /// What was measured, for the record
    #[arg(long, default_value = "unknown")]
    commit: String,
    /// Walk this path and do nothing else, to be counted
    #[arg(long, hide = true, requires = "rounds")]
    walk: Option<instructions::Path>,
    /// How many times
    #[arg(long, hide = true)]
    rounds: Option<u32>,
    /// Save and restore one large file in this folder, and say what memory that took
    #[arg(long, hide = true)]
    peak: Option<PathBuf>,
    /// Given by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Becomes the same program in the environment of a user's.
fn begin_again() -> ExitCode {
    let became = std::env::current_exe().map(|program| {
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1)).env_remove(OF_CARGO).exec()
    });
    let (Ok(error) | Err(error)) = became;
    eprintln!("error: cannot start again without {OF_CARGO}: {error}");
    ExitCode::FAILURE
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let (Some(path), Some(rounds)) = (arguments.walk, arguments.rounds) {
        // One thread, so that every run is the same.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let walked = runtime.and_then(|runtime| runtime.block_on(path.walk(rounds)));
        return if walked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    // Not before: whoever counts the instructions of a walk would lose sight of it.
    if std::env::var_os(OF_CARGO).is_some() {
        return begin_again();
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    // In a task, as programs that serve many sessions call the library: not from the thread that only
    // waits for them.
    let ran = runtime.and_then(|runtime| {
        let task = runtime.spawn(async move {
            match &arguments.peak {
                Some(folder) => Peak::work(folder).await.map(|said| {
                    println!("{said}");
                    true
                }),
                None => run(&arguments).await,
            }
        });
        runtime.block_on(task).map_err(io::Error::other)?
    });
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> io::Result<bool> {
    // Not on the machine's own disk: some file systems take a hundred times as long to make a file
    // after others were removed. What needs a disk has an image of its own.
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let _cleared = Cleared;
    let mut subjects = Subjects::start(Available {
        folder: folder.path().to_owned(),
        disk: arguments.disk.clone(),
        python: arguments.python.clone(),
        cli: arguments.cli.clone(),
        bwrap: arguments.bwrap,
        sandlock: arguments.sandlock.clone(),
        nono: arguments.nono.clone(),
        docker: arguments.docker.clone(),
    })
    .await?;
    let of_backend = |name: Option<&str>| {
        arguments.backend.is_empty()
            || arguments.backend.iter().any(|one| Some(one.as_str()) == name)
    };
    let chosen = |scenario: &&Scenario| {
        of_backend(scenario.ours.backend())
            && arguments.only.as_ref().is_none_or(|part| scenario.title.contains(part.as_str()))
    };
    let mut verdicts = Verdicts::default();
    let mut all = Vec::new();
    for scenario in SCENARIOS.iter().filter(chosen) {
        let rounds = scenario.pace.rounds(arguments.quick);
        let mut measured = measure(scenario, rounds, arguments, &mut subjects).await?;
        // What does not hold may be a noisy moment: it gets a second, longer look.
        if arguments.check && !measured.holds() {
            measured = measure(scenario, rounds * 3, arguments, &mut subjects).await?;
        }
        show(arguments, &measured);
        verdicts.add(&measured, &arguments.without);
        all.push(measured);
    }
    let local = of_backend(Some("local"));
    if local && arguments.only.is_none() {
        let idle = Idle::measure(folder.path(), if arguments.quick { 20 } else { 100 }).await?;
        if arguments.json {
            println!("{}", idle.json());
        } else {
            println!("{}", idle.text());
        }
        verdicts.add_all(&idle.promises());
    }
    if local && arguments.only.as_ref().is_none_or(|part| density::TITLE.contains(part.as_str())) {
        let sessions = if arguments.quick { 20 } else { 1000 };
        let sandlock = subjects.sandlock.as_ref();
        let density = Density::measure(folder.path(), sessions, sandlock).await?;
        if arguments.json {
            println!("{}", density.json());
        } else {
            println!("{}", density.text());
        }
        verdicts.add_all(&density.promises());
    }
    if local && arguments.only.as_ref().is_none_or(|part| network::TITLE.contains(part.as_str())) {
        let docker = arguments.docker.as_deref();
        let network = Network::measure(folder.path(), docker, arguments.quick).await?;
        if arguments.json {
            println!("{}", network.json());
        } else {
            println!("{}", network.text());
        }
        verdicts.add_all(&network.promises());
    }
    if local && arguments.only.as_ref().is_none_or(|part| peak::TITLE.contains(part.as_str())) {
        let peak = Peak::measure(folder.path())?;
        if arguments.json {
            println!("{}", peak.json());
        } else {
            println!("{}", peak.text());
        }
        verdicts.add_all(&peak.promises());
    }
    for counted in Counted::all(arguments.only.as_deref()) {
        if arguments.json {
            println!("{}", counted.json());
        } else {
            println!("{}", counted.text());
        }
        verdicts.add_counted(&counted, &arguments.without);
    }
    subjects.end().await?;
    if let Some(path) = &arguments.chart {
        fs::write(path, chart::draw(&all))?;
    }
    if let Some(path) = &arguments.save {
        fs::write(path, record::lines(&all, &arguments.commit))?;
    }
    let mut fine = true;
    if let Some(path) = &arguments.compare {
        let worse = record::regressions(&all, &fs::read_to_string(path)?)?;
        worse.iter().for_each(|line| println!("{line}"));
        fine &= worse.is_empty();
    }
    if arguments.check {
        println!("{}", verdicts.text());
        fine &= verdicts.all_held();
    }
    Ok(fine)
}

/// Rounds in which everybody takes a turn.
async fn measure(
    scenario: &Scenario,
    rounds: usize,
    arguments: &Arguments,
    subjects: &mut Subjects,
) -> io::Result<Measured> {
    let asked = |name: &str| {
        arguments.against.is_empty() || arguments.against.iter().any(|one| one == name)
    };
    let peers = scenario.peers.iter().copied();
    let peers: Vec<_> = peers.filter(|peer| subjects.has(*peer) && asked(peer.name())).collect();
    let mut measured = Measured::new(*scenario);
    if !subjects.has(scenario.ours) || !subjects.has_place_for(scenario.operation) {
        return Ok(measured);
    }
    // What a daemon does after its turn is not to be part of the next one.
    let daemons = [Subject::DockerReference, Subject::DockerExec];
    let has_daemon = peers.iter().any(|peer| daemons.contains(peer));
    let started = Instant::now();
    for round in 0..rounds {
        for subject in std::iter::once(scenario.ours).chain(peers.iter().copied()) {
            if has_daemon {
                tokio::time::sleep(SETTLE).await;
            }
            let took = subjects.measure(subject, scenario.operation).await?;
            // The first round only warms up.
            if round > 0 || rounds == 1 {
                measured.add(subject, took);
            }
        }
        // Bounded in time: what would take for ever stops early and says so by its count.
        if started.elapsed() > scenario.pace.patience() && round >= scenario.pace.least() {
            break;
        }
    }
    Ok(measured)
}

fn show(arguments: &Arguments, measured: &Measured) {
    if arguments.json {
        println!("{}", record::line(measured, &arguments.commit));
    } else {
        println!("{}", table::text(measured));
    }
}
