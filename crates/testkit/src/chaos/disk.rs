//! The limit on disk, and what holds it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{CreateOptions, Error, ResourceLimits, Session, SessionId, Store, SweepOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::suite::{
    Context, Outcome, Trial, TrialError, block_sweeps, parent, say, skip, sweeping,
};
use crate::trials;

pub(super) const EVERYWHERE: &[Trial] = trials![bounds_what_is_written];

pub(super) const BOUNDED: &[Trial] = trials![
    bounds_many_files_as_one,
    keeps_the_files_of_a_bounded_workspace,
    restores_a_bounded_workspace_or_leaves_it,
    leaves_nothing_of_a_bounded_workspace,
    leaves_nothing_of_a_bounded_workspace_whose_warden_is_killed,
];

/// How much each session may write.
const MOST: u64 = 8 << 20;

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);

/// Writes pieces of 64 KiB until there is no room, and says how the last one failed.
const FILL: &str = "mkdir -p full; n=0
while dd if=/dev/zero of=full/$n bs=64k count=1 2>said; do n=$((n+1)); [ $n -lt 1000 ] || break; done
rm -rf full/$n; grep -o 'No space left on device' said";

async fn limited(context: &Context, is_tied: bool) -> Result<Session, TrialError> {
    let mut options = CreateOptions::default();
    options.limits = ResourceLimits { disk: Some(MOST), ..ResourceLimits::default() };
    options.tied_to_owner = is_tied;
    Ok(context.client().create(&Manifest::default(), options).await?)
}

/// What the receipt says holds the limit.
fn held_by(session: &Session) -> String {
    session.receipt().limits.disk.enforced_by.clone().unwrap_or_default()
}

/// A session whose workspace is bounded as a whole, where this machine can do that.
async fn bounded(context: &Context, is_tied: bool) -> Result<Session, TrialError> {
    let session = limited(context, is_tied).await?;
    if held_by(&session).contains("the workspace's own file system") {
        return Ok(session);
    }
    let said = unbounded(&session).ok_or("neither is it held nor does the receipt say so")?;
    session.delete().await?;
    let has_means =
        ["/dev/loop-control", "/usr/sbin/mkfs.ext4"].iter().all(|means| Path::new(means).exists());
    if has_means { Err(said.into()) } else { Err(skip(said)) }
}

/// What the receipt says of a workspace that is not bounded as a whole.
fn unbounded(session: &Session) -> Option<String> {
    let mut said = session.receipt().not_enforced.iter();
    said.find(|open| open.starts_with("disk as a whole: ")).cloned()
}

/// Whether an error, or what caused it, says what it should.
fn is_storage_full(error: &Error) -> bool {
    let mut causes =
        std::iter::successors(Some(error as &dyn std::error::Error), |cause| cause.source());
    causes.any(|cause| cause.to_string().contains("No space left on device"))
}

/// The loop devices that stand for a file of a session.
fn devices_of(id: &SessionId) -> Result<Vec<String>, TrialError> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let path = entry?.path().join("loop/backing_file");
        let behind = fs::read_to_string(path).unwrap_or_default();
        if behind.contains(id.as_str()) {
            found.push(behind);
        }
    }
    Ok(found)
}

/// Waits until nothing stands for a file of a session any more.
async fn until_let_go(id: &SessionId) -> Outcome {
    let deadline = Instant::now() + SOON;
    while let Some(behind) = devices_of(id)?.pop() {
        if Instant::now() > deadline {
            return Err(format!("a loop device still stands for {behind}").into());
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Scratch space in memory is limited as a whole, and so is the workspace, or else each file of it.
async fn bounds_what_is_written(context: Context) -> Outcome {
    let session = limited(&context, true).await?;
    let by = held_by(&session);
    let line = "dd if=/dev/zero of=big bs=1M count=16 2>/dev/null; stat -c %s big";
    let written: u64 = say(&session, line).await?.trim().parse()?;
    match by.starts_with("size of the workspace") {
        // The file system needs some of it for itself.
        true => assert!((MOST / 2..MOST).contains(&written), "{written} bytes, {by}"),
        false => assert_eq!(written, MOST, "{by}"),
    }
    let is_said = unbounded(&session).is_some();
    let is_whole = by.starts_with("size of the workspace");
    assert!(context.backend.name() != "local" || is_said != is_whole, "{:?}", session.receipt());
    if by.contains("/tmp") {
        let line = "for n in 1 2 3 4; do dd if=/dev/zero of=/tmp/$n bs=1M count=4 2>/dev/null; done; du -sm /tmp | cut -f1";
        let written: u32 = say(&session, line).await?.trim().parse()?;
        assert!(written <= 8, "{written} MiB were written");
    }
    Ok(session.delete().await?)
}

async fn bounds_many_files_as_one(context: Context) -> Outcome {
    let session = bounded(&context, true).await?;
    assert_eq!(say(&session, "ls -A; stat -c '%u %g %a' .").await?, "0 0 755\n");
    assert_eq!(say(&session, FILL).await?, "No space left on device\n");
    let written: u64 = say(&session, "du -sb full | cut -f1").await?.trim().parse()?;
    assert!((MOST / 2..MOST).contains(&written), "{written} bytes");
    let files = session.files();
    let refused = files.write("new", vec![b'x'; 1 << 20]).await;
    assert!(refused.as_ref().is_err_and(is_storage_full), "{refused:?}");
    // It goes on, and what is removed is room again.
    say(&session, "rm -r full").await?;
    let content = vec![b'y'; 4 << 20];
    files.write("new", content.clone()).await?;
    assert_eq!(files.read("new").await?, content);
    assert_eq!(say(&session, "touch of && chown 7:8 of && stat -c '%u %g' of").await?, "7 8\n");
    Ok(session.delete().await?)
}

async fn keeps_the_files_of_a_bounded_workspace(context: Context) -> Outcome {
    let _home = block_sweeps().await;
    let client = context.client();
    let session = bounded(&context, false).await?;
    let (id, receipt) = (session.id().clone(), session.receipt().clone());
    say(&session, "echo kept > file; chown 7:8 file; dd if=/dev/zero of=big bs=1M count=3").await?;
    for round in 0..3 {
        client.stop(&id).await?;
        let session = client.resume(&id).await?;
        assert_eq!(session.receipt().limits, receipt.limits, "in round {round}");
        let look = "cat file; stat -c '%u %g %s' file big; ls -A | wc -l";
        assert_eq!(say(&session, look).await?, "kept\n7 8 5\n0 0 3145728\n2\n");
        // Whoever reads a file of it may still do so when the session is gone on with.
        let content = session.files().read("big").await?;
        assert_eq!(content.len(), 3 << 20);
        assert_eq!(devices_of(&id)?.len(), 1, "one device for one image");
    }
    let session = client.attach(&id).await?;
    assert_eq!(say(&session, FILL).await?, "No space left on device\n");
    session.delete().await?;
    until_let_go(&id).await
}

async fn restores_a_bounded_workspace_or_leaves_it(context: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let store = Store::open(folder.path().join("store"))?;
    let session = bounded(&context, true).await?;
    let make = "mkdir a; for n in 1 2 3; do head -c 700000 /dev/urandom > a/$n; done";
    say(&session, make).await?;
    let saved = session.snapshots(&store).save("small", None).await?;
    say(&session, "rm -r a; echo other > b").await?;
    session.snapshots(&store).restore("small", None).await?;
    let now = session.snapshots(&store).fingerprint().await?;
    assert_eq!(now, saved.info.fingerprint);
    // What is there and what is restored have to have room beside each other.
    say(&session, "head -c 4000000 /dev/urandom > more").await?;
    session.snapshots(&store).save("large", None).await?;
    let look = "ls -AR; cat a/* more | cksum";
    let before = say(&session, look).await?;
    let refused = session.snapshots(&store).restore("large", None).await;
    let refused = refused.err().ok_or("eight megabytes hold twice six")?;
    assert!(is_storage_full(&refused), "{refused:?}");
    assert_eq!(say(&session, look).await?, before, "what was there is there, and nothing else");
    assert_eq!(say(&session, "echo fits > b; cat b").await?, "fits\n");
    Ok(session.delete().await?)
}

async fn leaves_nothing_of_a_bounded_workspace(context: Context) -> Outcome {
    let session = bounded(&context, true).await?;
    let id = session.id().clone();
    say(&session, "echo content > file").await?;
    assert_eq!(devices_of(&id)?.len(), 1);
    session.delete().await?;
    until_let_go(&id).await?;
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    assert!(!mounts.contains(id.as_str()), "{mounts}");
    assert!(!context.backend.home().join("sessions").join(id.as_str()).exists());
    Ok(())
}

async fn leaves_nothing_of_a_bounded_workspace_whose_warden_is_killed(context: Context) -> Outcome {
    let _home = sweeping().await;
    let client = context.client();
    let session = bounded(&context, false).await?;
    let id = session.id().clone();
    say(&session, "echo content > file").await?;
    let info = client.inspect(&id).await?;
    let guest = info.guest_pid.ok_or("the guest is no process of this host")?;
    let warden = parent(parent(guest)?)?;
    let warden = Pid::from_raw(i32::try_from(warden)?).ok_or("no process")?;
    kill_process(warden, Signal::KILL)?;
    until_let_go(&id).await?;
    let deadline = Instant::now() + SOON;
    // Its processes are on their way out.
    while client.inspect(&id).await.is_ok() && Instant::now() < deadline {
        let options = SweepOptions::default().ended();
        client.sweep_with(options).await?;
    }
    assert!(!context.backend.home().join("sessions").join(id.as_str()).exists());
    Ok(())
}
