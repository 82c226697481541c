//! Limits, each attacked in the way it would be got round; where one does not hold, the receipt says so.

use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{
    Command, CreateOptions, ErrorKind, ExitReason, OutputEvent, Process, ResourceLimits, Rung,
    Session,
};

use crate::escape::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError, running, say, sh, skip, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    keeps_commands_on_their_processors,
    counts_shared_memory_or_says_that_it_does_not,
    counts_processes_of_every_user_or_says_that_it_does_not,
    bounds_the_number_of_files_in_memory,
    bounds_what_is_kept_of_what_commands_say,
    loses_nothing_that_somebody_listens_to,
    leaves_processes_for_whoever_ends_a_fork_storm,
    ends_a_fork_storm_at_the_deadline,
    deletes_a_session_in_a_fork_storm,
    outlives_that_no_thread_can_be_made,
];

async fn limited(context: &Context, limits: ResourceLimits) -> Result<Session, TrialError> {
    let options = CreateOptions::default().limits(limits);
    Ok(context.client().create(&with_probe(Manifest::default())?, options).await?)
}

/// A session with little disk, and nothing in it.
async fn with_disk(context: &Context, bytes: u64) -> Result<Session, TrialError> {
    let options = CreateOptions::default()
        .limits(ResourceLimits { disk: Some(bytes), ..ResourceLimits::default() });
    Ok(context.client().create(&Manifest::default(), options).await?)
}

/// Whether the receipt says that something does not hold.
fn says(session: &Session, gap: &str) -> bool {
    session.receipt().unheld_limits().any(|open| open.starts_with(gap))
}

async fn keeps_commands_on_their_processors(context: Context) -> Outcome {
    let limits = ResourceLimits { cpu_millis: Some(700), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    let by = session.receipt().limits.cpu.enforced_by.clone().unwrap_or_default();
    let had = attempt(&session, "processors", &[]).await?;
    // Where a group counts time, it does not matter on how many processors that is spent.
    if by.starts_with("affinity") {
        assert_eq!(had, "1\n", "held by {by}");
    }
    Ok(session.delete().await?)
}

async fn counts_shared_memory_or_says_that_it_does_not(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        // There the program of the test, which is written into memory where the daemon is, fills the limit.
        return Err(skip(
            "a container counts what it writes where its daemon keeps files in memory",
        ));
    }
    let limits = ResourceLimits { memory: Some(64 << 20), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    let more = (256_u64 << 20).to_string();
    let had = attempt(&session, "share", &[&more]).await.is_ok();
    assert_eq!(had, says(&session, "memory as a whole"), "{:?}", session.receipt());
    assert_eq!(say(&session, "echo alive").await?, "alive\n");
    Ok(session.delete().await?)
}

/// Somebody else inside is counted by the kernel apart, unless a group counts everybody.
async fn counts_processes_of_every_user_or_says_that_it_does_not(context: Context) -> Outcome {
    let most = 40;
    let limits = ResourceLimits { pids: Some(most), ..ResourceLimits::default() };
    let session = limited(&context, limits).await?;
    if session.receipt().limits.pids.enforced_by.is_none() {
        assert!(says(&session, "the limit on pids"), "{:?}", session.receipt());
        return Ok(session.delete().await?);
    }
    let probe = |name: &str| Command::new(["./probe", crate::escape::probe::FLAG, name, "100"]);
    let mut first = session.spawn(probe("family")).await?;
    let first_had = number(&mut first).await?;
    let other = session.exec(probe("room").user("4242")).await;
    let other_had = match other {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(0),
        // There is nobody else, or no room for as much as one process.
        Err(_) => 0,
    };
    // A container counts what is ours among them, and says how much it adds for that.
    let by = session.receipt().limits.pids.enforced_by.clone().unwrap_or_default();
    let added = by.split_once(" with ").and_then(|(_, more)| more.split(' ').next()?.parse().ok());
    let is_over = first_had + other_had > most + added.unwrap_or(0);
    assert!(!is_over || says(&session, "pids as a whole"), "{first_had} and {other_had}");
    drop(first);
    Ok(session.delete().await?)
}

/// The number that a process says first.
async fn number(process: &mut Process) -> Result<u64, TrialError> {
    let mut said = String::new();
    while !said.ends_with('\n') {
        match process.next().await? {
            OutputEvent::Stdout(data) => said.push_str(&String::from_utf8_lossy(&data)),
            OutputEvent::Exit(exit) => return Err(format!("it ended: {exit:?}").into()),
            _ => {}
        }
    }
    Ok(said.trim().parse()?)
}

async fn bounds_the_number_of_files_in_memory(context: Context) -> Outcome {
    let session = with_disk(&context, 4 << 20).await?;
    if session.receipt().rung == Rung::Namespaces {
        for folder in ["/tmp", "/dev/shm"] {
            let line = format!(
                "cd {folder}; n=0; while [ $n -lt 3000 ] && {{ true > f$n; }} 2>/dev/null; do n=$((n+1)); done; echo $n"
            );
            let made: usize = say(&session, &line).await?.trim().parse()?;
            assert!(made < 3000, "{folder} took {made} files");
        }
    }
    Ok(session.delete().await?)
}

/// What nobody listens to is kept on the disk, as far as the limit goes.
async fn bounds_what_is_kept_of_what_commands_say(context: Context) -> Outcome {
    let session = with_disk(&context, 2 << 20).await?;
    let id = session.launch(Command::shell("head -c 8000000 /dev/zero; touch said")).await?;
    say(&session, "until [ -e said ]; do sleep 0.01; done").await?;
    let output = session.attach(id, 0).await?.output(16 << 20).await?;
    let kept = output.stdout.len() as u64;
    assert_eq!(kept + output.lost, 8_000_000);
    assert!(kept <= 2 << 20, "{kept} bytes were kept");
    // What is over makes way for what is said now.
    let id = session.launch(Command::shell("head -c 1000000 /dev/zero")).await?;
    let output = session.attach(id, 0).await?.output(16 << 20).await?;
    assert_eq!((output.stdout.len(), output.lost), (1_000_000, 0));
    Ok(session.delete().await?)
}

async fn loses_nothing_that_somebody_listens_to(context: Context) -> Outcome {
    let session = with_disk(&context, 2 << 20).await?;
    let output = session.spawn(sh("head -c 8000000 /dev/zero")).await?.output(16 << 20).await?;
    assert_eq!((output.stdout.len(), output.lost), (8_000_000, 0));
    Ok(session.delete().await?)
}

/// Where nobody asked for a limit there are more processes than a storm can take.
async fn leaves_processes_for_whoever_ends_a_fork_storm(context: Context) -> Outcome {
    let session = context.session().await?;
    let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max")?;
    let numbers: u64 = numbers.trim().parse()?;
    let most = match session.receipt().rung {
        Rung::Landlock => Some(numbers / 2),
        Rung::Namespaces => Some((numbers / 2).min(4096)),
        // The engine bounds it, or nobody does.
        _ => None,
    };
    if let Some(most) = most {
        let allowed = say(&session, "ulimit -H -u 2>/dev/null || ulimit -H -p").await?;
        let allowed: u64 = allowed.trim().parse().unwrap_or(u64::MAX);
        assert!(allowed <= most, "{allowed} of {numbers}");
    }
    Ok(session.delete().await?)
}

/// How many processes a storm may have where nothing else bounds it, so that the machine of the test lives.
const STORM: &str = "150";

fn storm(most: &str) -> Command {
    Command::new(["./probe", crate::escape::probe::FLAG, "storm", most])
}

/// A process of the host that has nothing to do with any session.
struct UnrelatedProcess(std::process::Child);

impl UnrelatedProcess {
    fn new() -> Result<Self, TrialError> {
        Ok(Self(std::process::Command::new("sleep").arg("7140").spawn()?))
    }

    fn check(&mut self) -> Outcome {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("a process of the host ended: {status}").into()),
        }
    }
}

impl Drop for UnrelatedProcess {
    fn drop(&mut self) {
        // It may be what this trial finds to be gone.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn ends_a_fork_storm_at_the_deadline(context: Context) -> Outcome {
    if context.backend.name() != "local" {
        // There the guest shares its processor time with every process of the container.
        return Err(skip("a storm in a container keeps its guest from answering in time"));
    }
    let mut bystander = UnrelatedProcess::new()?;
    let neighbour = context.session().await?;
    for pids in [None, Some(60)] {
        let session =
            limited(&context, ResourceLimits { pids, ..ResourceLimits::default() }).await?;
        let output = session.exec(storm(STORM).timeout(Duration::from_secs(2))).await?;
        assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Timeout, 124), "{pids:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "full\n", "{pids:?}");
        assert_eq!(running(&session, "^./probe --bastide-probe storm").await?, 0, "{pids:?}");
        session.delete().await?;
    }
    assert_eq!(say(&neighbour, "echo alive").await?, "alive\n");
    bystander.check()?;
    Ok(neighbour.delete().await?)
}

/// Nothing ends it but the session's end.
async fn deletes_a_session_in_a_fork_storm(context: Context) -> Outcome {
    let mut bystander = UnrelatedProcess::new()?;
    let session = limited(&context, ResourceLimits::default()).await?;
    // Sessions of other trials have such folders, too.
    let mark = (200 + std::process::id() % 100).to_string();
    let mut process = session.spawn(storm(&mark)).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout("full\n".into()));
    let place = session.root().to_string();
    session.delete().await?;
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let is_storm = line.ends_with(format!("storm\0{mark}\0").as_bytes());
        let cwd = std::fs::read_link(path.join("cwd"));
        let is_there = cwd.is_ok_and(|cwd| cwd == std::path::Path::new(&place));
        assert!(!(is_storm && is_there), "{} outlived its session", path.display());
    }
    bystander.check()
}

/// Where commands make sandboxes of their own the settings of the session's namespaces are theirs, and so is how many
/// processes there can be: the guest, too, gets no more.
async fn outlives_that_no_thread_can_be_made(context: Context) -> Outcome {
    let options = CreateOptions::default().nested_sandbox();
    let session = match context.client().create(&Manifest::default(), options).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return Err(skip(error.message().to_owned()));
        }
        session => session?,
    };
    let set = session.exec(sh("echo 301 > /proc/sys/kernel/pid_max")).await?;
    let guest = context.client().inspect(session.id()).await?.guest_pid;
    let (0, Some(guest)) = (set.exit.code, guest) else {
        session.delete().await?;
        return Err(skip(
            "this kernel does not count processes by namespace, or not for this user",
        ));
    };
    // One that did something a moment ago is still there, and would do.
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::read_dir(format!("/proc/{guest}/task"))?.count() > 1 {
        assert!(Instant::now() < deadline, "the guest keeps its threads");
        tokio::task::yield_now().await;
    }
    // The shell that cannot fork ends; the one around it forks nothing more. It ends them until the last was collected.
    let full =
        "( i=0; while [ $i -lt 400 ]; do sleep 7199 > /dev/null & i=$((i+1)); done ) 2> /dev/null
                echo full; read -r go
                while :; do left=; for p in /proc/[0-9]*; do
                  read -r name < $p/comm && [ \"$name\" = sleep ] && left=1 && kill -9 ${p#/proc/}
                done; [ -z \"$left\" ] && break; done 2> /dev/null
                echo 32768 > /proc/sys/kernel/pid_max";
    let mut process = session.spawn(sh(full)).await?;
    assert_eq!(process.next().await?, OutputEvent::Stdout("full\n".into()));
    let refused = session.files().write("file", "x").await;
    if let Err(error) = &refused {
        assert!(format!("{error:?}").contains("thread"), "{error:?}");
    }
    process.write("go\n").await?;
    process.output(1024).await?;
    session.files().write("file", "y").await?;
    assert_eq!(say(&session, "cat file").await?, "y");
    Ok(session.delete().await?)
}
