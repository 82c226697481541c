//! Writes that are hard to see.

use std::time::Instant;

use bastide::snapshot::store::SaveOptions;
use bastide::{Rung, Session, Store};

use super::{SOON, restored, store};
use crate::suite::{Context, Outcome, TrialError, say, scratch, skip, with_probe};

/// Whether the times of files in the workspace can tell that they did not change.
///
/// # Errors
///
/// Fails if the session cannot be asked.
pub async fn times_tell(session: &Session) -> Result<bool, TrialError> {
    let kind = say(session, "stat -f -c %T .").await?;
    match kind.trim() {
        "ext2/ext3" | "xfs" | "btrfs" => Ok(true),
        // It shows the times of what is below it, and a daemon of the tests may keep that in memory.
        "overlayfs" => {
            let mounts = say(session, "cat /proc/self/mountinfo").await?;
            Ok(!mounts.contains("upperdir=/dev/shm/"))
        }
        _ => Ok(false),
    }
}

/// Saves until all files but so many are taken for unchanged, where that can be told at all.
async fn until_read(
    store: &Store,
    session: &Session,
    most: u64,
    name: &str,
) -> Result<(), TrialError> {
    let times_tell = times_tell(session).await?;
    let deadline = Instant::now() + SOON;
    loop {
        let saved = session.snapshots(store).save(name, None).await?;
        if saved.files_read <= most || !times_tell {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{} files are read again and again", saved.files_read).into());
        }
    }
}

/// A program inside that maps a file, and stores into it, when it is told to.
struct Mapper<'a> {
    session: &'a Session,
    pipes: String,
}

impl<'a> Mapper<'a> {
    /// Starts it. It is not in the workspace any more after that: it is large.
    async fn start(session: &'a Session, file: &str) -> Result<Self, TrialError> {
        let pipes = format!("{}/map", scratch(session).await?);
        let line = format!(
            "mkdir {pipes} && mkfifo {pipes}/in {pipes}/out && \
             {{ ./probe --bastide-probe map {file} {pipes}/in {pipes}/out </dev/null >/dev/null 2>&1 & }}
             printf + > {pipes}/in && cat {pipes}/out && rm probe"
        );
        assert_eq!(say(session, &line).await?, "done\n");
        Ok(Self { session, pipes })
    }

    async fn send_order(&self, order: &str) -> Outcome {
        let pipes = &self.pipes;
        let line = format!("printf %s '{order}' > {pipes}/in && cat {pipes}/out");
        assert_eq!(say(self.session, &line).await?, "done\n");
        Ok(())
    }
}

/// What the first byte of a file is in a snapshot.
async fn first_of(
    context: &Context,
    store: &Store,
    name: &str,
    file: &str,
) -> Result<String, TrialError> {
    let other = restored(context, store, name).await?;
    let first = say(&other, &format!("head -c1 {file}")).await?;
    other.delete().await?;
    Ok(first)
}

pub(super) async fn saves_what_is_written_through_a_mapping(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session_with(&with_probe(Default::default())?).await?;
    say(&session, "for f in data other; do head -c 5000 /dev/zero | tr '\\0' a > $f; done").await?;
    let mapper = Mapper::start(&session, "data").await?;
    mapper.send_order("b").await?;
    // Younger than the store: once it counts as unchanged, so would the other by its times alone.
    say(&session, "echo later >> other").await?;
    until_read(&store, &session, 1, "b").await?;
    assert_eq!(first_of(&context, &store, "b", "data").await?, "b");
    // The page is dirty already: this store changes no time.
    mapper.send_order("c").await?;
    session.snapshots(&store).save("c", None).await?;
    assert_eq!(first_of(&context, &store, "c", "data").await?, "c");
    mapper.send_order("-").await?;
    until_read(&store, &session, 0, "still-c").await?;
    // A mapping that comes after the file was taken for unchanged.
    mapper.send_order("+").await?;
    for letter in ["d", "e"] {
        mapper.send_order(letter).await?;
        session.snapshots(&store).save(letter, None).await?;
        assert_eq!(first_of(&context, &store, letter, "data").await?, letter);
    }
    Ok(session.delete().await?)
}

pub(super) async fn sees_changes_whose_times_were_set_back(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "for f in written renamed reused; do echo before > $f; done").await?;
    until_read(&store, &session, 0, "before").await?;
    let line = "cp -p written keep && echo after! > written && touch -r keep written && rm keep
        cp -p renamed next && echo after! > next && touch -r renamed next && mv next renamed
        cp -p reused keep && rm reused && echo after! > reused && touch -r keep reused && rm keep";
    say(&session, line).await?;
    let saved = session.snapshots(&store).save("after", None).await?;
    assert_eq!(saved.files_read, 3);
    for file in ["written", "renamed", "reused"] {
        assert_eq!(first_of(&context, &store, "after", file).await?, "a", "{file}");
    }
    Ok(session.delete().await?)
}

pub(super) async fn reads_everything_when_asked(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "for n in $(seq 20); do echo $n > file$n; done").await?;
    until_read(&store, &session, 0, "first").await?;
    let full = SaveOptions::default().full_read();
    let saved = session.snapshots(&store).save_with("full", full).await?;
    assert_eq!(saved.files_read, 20);
    assert_eq!(saved.info.fingerprint, store.inspect("first")?.fingerprint);
    // What was learnt by that counts the next time.
    if times_tell(&session).await? {
        assert_eq!(session.snapshots(&store).save("next", None).await?.files_read, 0);
    }
    Ok(session.delete().await?)
}

/// As a package manager does it, in a workspace that is no folder of the host.
pub(super) async fn keeps_set_id_files_that_are_installed_and_saved(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    if session.receipt().rung == Rung::Landlock {
        session.delete().await?;
        return Err(skip("every file is one of the host there, and none may be set-id"));
    }
    let line = "echo content > plain && install -m 4755 plain installed && install -m 2755 plain group
        tar -c -f packed.tar installed group && mkdir unpacked && tar -x -p -f packed.tar -C unpacked && rm packed.tar";
    say(&session, line).await?;
    let modes = "stat -c '%n %a' installed group unpacked/installed unpacked/group";
    let want = "installed 4755\ngroup 2755\nunpacked/installed 4755\nunpacked/group 2755\n";
    assert_eq!(say(&session, modes).await?, want);
    session.snapshots(&store).save("kept", None).await?;
    let other = restored(&context, &store, "kept").await?;
    assert_eq!(say(&other, modes).await?, want);
    other.delete().await?;
    Ok(session.delete().await?)
}
