//! What commands and sessions used, against work that is known.

use std::time::Duration;

use bastide::{Command, Usage};

use crate::escape::probe;
use crate::suite::{Context, Outcome, Trial, TrialError, say, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    counts_what_a_command_used,
    counts_what_is_killed_and_what_still_runs,
    counts_what_a_fork_bomb_uses,
    looks_at_usage_without_using_anything,
];

/// The longest wait for anything here.
const SOON: Duration = Duration::from_secs(90);

async fn session(context: &Context) -> Result<bastide::Session, TrialError> {
    let manifest = with_probe(bastide::model::Manifest::default())?;
    Ok(context.client().create(&manifest, bastide::CreateOptions::default()).await?)
}

/// Work of a known size, done by the probe: seconds of a processor, bytes of memory, bytes written.
fn work(seconds: f64, memory: u64, written: u64) -> Command {
    let number = |number: u64| number.to_string();
    let seconds = seconds.to_string();
    let arguments = [number(memory), number(written)];
    let [memory, written] = &arguments;
    Command::new(["./probe", probe::FLAG, "work", &seconds, memory, written]).timeout(SOON)
}

fn about(what: &str, found: f64, want: f64) {
    let share = found / want;
    assert!((0.9..=1.1).contains(&share), "{what}: {found} instead of {want}");
}

#[expect(clippy::cast_precision_loss, reason = "a tenth more or less is looked for")]
fn check(usage: Usage, seconds: f64, memory: u64, written: u64) {
    about("processors", usage.cpu.as_secs_f64(), seconds);
    about("memory", usage.peak_memory as f64, memory as f64);
    // Files in memory are no storage.
    if usage.written > 0 {
        about("written", usage.written as f64, written as f64);
    }
}

async fn counts_what_a_command_used(context: Context) -> Outcome {
    const MIB: u64 = 1 << 20;
    let session = session(&context).await?;
    let output = session.exec(work(2.0, 300 * MIB, 100 * MIB)).await?;
    assert_eq!(output.exit.code, 0, "{}", String::from_utf8_lossy(&output.stderr));
    let usage = output.usage.ok_or("nobody told what it used")?;
    check(usage, 2.0, 300 * MIB, 100 * MIB);
    let all = session.usage().await?;
    assert!(all.cpu >= Duration::from_millis(1800), "{all:?}");
    assert!(all.written >= usage.written && all.peak_memory >= 270 * MIB, "{all:?}");
    // A small one beside it is not charged for it.
    let output = session.exec(Command::new(["true"])).await?;
    let usage = output.usage.ok_or("nobody told what it used")?;
    assert!(usage.cpu < Duration::from_millis(900) && usage.written < MIB, "{usage:?}");
    Ok(session.delete().await?)
}

async fn counts_what_is_killed_and_what_still_runs(context: Context) -> Outcome {
    let session = session(&context).await?;
    // Children of children, none of which anybody waits for; all are ended at the deadline.
    let line = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait";
    let command = Command::shell(line).timeout(Duration::from_secs(2));
    let usage = session.exec(command).await?.usage.ok_or("nobody told what it used")?;
    assert!(usage.cpu >= Duration::from_millis(300), "{usage:?}");
    // What runs is counted as it is seen.
    let process = session.launch(Command::shell("while :; do :; done")).await?;
    let deadline = tokio::time::Instant::now() + SOON;
    loop {
        let found = session.processes().await?.into_iter().find(|one| one.id == process);
        let usage = found.ok_or("it is not listed")?.usage.ok_or("nobody told what it used")?;
        if usage.cpu >= Duration::from_millis(200) {
            break;
        }
        if tokio::time::Instant::now() > deadline {
            return Err(format!("it is not seen working: {usage:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = session.usage().await?;
    session.signal(process, 9).await?;
    let after = session.usage().await?;
    assert!(
        after.cpu >= before.cpu.saturating_sub(Duration::from_millis(50)),
        "{before:?} {after:?}"
    );
    Ok(session.delete().await?)
}

/// Every process forks two and ends without waiting for them, so none but the first has a parent when it works.
async fn counts_what_a_fork_bomb_uses(context: Context) -> Outcome {
    /// Processes that work, and for how long each does: those of seven generations.
    const WORKERS: u32 = 127;
    const EACH: Duration = Duration::from_millis(20);
    let session = session(&context).await?;
    let line = format!(
        "mkfifo ended; work() {{ (d=$(mktemp -d ./w.XXXXXX); cd $d && ../probe {} work {} 0 0 > /dev/null); echo x >&3; }}
         bomb() {{ if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi; work; }}
         exec 3<> ended; bomb 6 & head -c {} <&3 > /dev/null; echo all",
        probe::FLAG,
        EACH.as_secs_f64(),
        2 * WORKERS
    );
    let output = session.exec(Command::shell(&line).timeout(SOON)).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.exit.code, &output.stdout[..]), (0, &b"all\n"[..]), "{said}");
    let usage = output.usage.ok_or("nobody told what it used")?;
    let done = EACH * WORKERS;
    assert!(usage.cpu >= done.mul_f64(0.9), "{usage:?} instead of {done:?}");
    // Starting so many programs takes time, too, and the work is most of it.
    assert!(usage.cpu <= done * 10, "{usage:?} instead of {done:?}");
    let all = session.usage().await?;
    assert!(all.cpu >= done.mul_f64(0.9), "{all:?} instead of {done:?}");
    Ok(session.delete().await?)
}

async fn looks_at_usage_without_using_anything(context: Context) -> Outcome {
    let session = session(&context).await?;
    say(&session, "echo x").await?;
    let client = context.client();
    let one = client.usage(session.id()).await?;
    let other = client.usage(session.id()).await?;
    assert_eq!((one.read, one.written), (other.read, other.written), "{one:?} {other:?}");
    let json = one.to_json();
    for key in ["cpu_seconds", "peak_memory_bytes", "read_bytes", "written_bytes", "source"] {
        assert!(json.get(key).is_some(), "{json}");
    }
    let id = session.id().clone();
    session.delete().await?;
    let error = client.usage(&id).await.err().ok_or("what is gone uses something")?;
    assert!(error.is_not_found(), "{error}");
    Ok(())
}
