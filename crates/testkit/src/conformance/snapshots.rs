//! Workspaces that are saved and come back.

mod projects;
mod trees;
mod writes;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::snapshot::store::SaveReport;
use bastide::{CreateOptions, ErrorKind, Rung, Session, Store};

use crate::suite::{Context, Outcome, Trial, TrialError, say, sh};
use crate::trials;

use projects::{brings_back_a_git_repository, brings_back_a_python_environment};
pub use writes::times_tell;
use writes::{
    keeps_set_id_files_that_are_installed_and_saved, reads_everything_when_asked,
    saves_what_is_written_through_a_mapping, sees_changes_whose_times_were_set_back,
};

pub(super) const TRIALS: &[Trial] = trials![
    brings_back_everything_a_workspace_holds,
    brings_back_a_python_environment,
    brings_back_a_git_repository,
    reads_only_what_changed,
    saves_what_is_written_through_a_mapping,
    sees_changes_whose_times_were_set_back,
    reads_everything_when_asked,
    keeps_set_id_files_that_are_installed_and_saved,
    leaves_out_sockets_and_says_so,
    restores_over_what_is_there,
    keeps_what_is_there_when_a_snapshot_is_damaged,
    says_which_file_is_damaged_whichever_byte_is,
    heals_when_the_same_content_is_saved_again,
    collects_garbage_while_others_save_and_restore,
    saves_a_tree_that_changes_meanwhile,
    saves_deep_and_wide_trees,
    restores_trees_as_they_were,
    never_restores_over_a_folder_of_the_callers,
    gives_up_a_restore_half_way_without_a_trace,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);

/// A store of its own, which goes with the trial.
fn store() -> Result<(tempfile::TempDir, Store), TrialError> {
    let folder = tempfile::tempdir()?;
    let store = Store::open(folder.path().join("store"))?;
    Ok((folder, store))
}

/// A bit of everything that needs nothing but a shell.
const EVERYTHING: &str = r#"
mkdir -p empty deep/er/still closed 'odd
name' tree && echo content > plain && printf '' > nothing
printf 'not utf-8' > "$(printf 'n\377me')"
ln -s /absolute/target absolute && ln -s missing dangling && ln -s plain relative
ln plain second && mkdir other && ln plain other/third
mkfifo pipe && chmod 640 pipe
echo run > script && chmod 755 script && echo s > special
echo secret > unreadable && chmod 000 unreadable
echo inside > closed/file && chmod 000 closed
dd if=/dev/zero of=sparse bs=1 count=1 seek=3000000 2>/dev/null
dd if=/dev/urandom of=large bs=65536 count=40 2>/dev/null
touch -d '2001-02-03 04:05:06' old && touch -d '1980-01-01 00:00:00' deep
"#;

async fn restored(context: &Context, store: &Store, name: &str) -> Result<Session, TrialError> {
    let session = context.session().await?;
    let report = session.snapshots(store).restore(name, None).await?;
    assert_eq!((report.unattributed, report.cleared), (0, true));
    // Where each session has one id of its own, nothing belongs to anybody else.
    assert!(report.unowned == 0 || !has_ids(&session), "{report:?}");
    Ok(session)
}

/// Whether sessions have the same ids inside: then owners come back, too.
fn has_ids(session: &Session) -> bool {
    session.receipt().rung == Rung::Namespaces
}

async fn brings_back_everything_a_workspace_holds(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let first = context.session().await?;
    say(&first, EVERYTHING).await?;
    // What commands may not do everywhere.
    first.files().chmod("special", 0o4755).await?;
    let saved = first.snapshots(&store).save("all", None).await?;
    assert_eq!(saved.left_out, 0, "{:?}", saved.info.left_out);
    // Nothing about the workspace changed by that.
    let again = first.snapshots(&store).save("again", None).await?;
    assert_eq!(again.info.fingerprint, saved.info.fingerprint);

    let second = restored(&context, &store, "all").await?;
    // Times, modes, owners, attributes, links and content: the fingerprint covers them all.
    let now = second.snapshots(&store).fingerprint().await?;
    assert!(now == saved.info.fingerprint || !has_ids(&second), "it is not what it was");
    let look = "readlink absolute dangling; stat -c '%h %a %s' plain unreadable special pipe sparse; \
                cat plain other/third; ls empty | wc -l; [ -p pipe ] && ls deep/er";
    assert_eq!(
        say(&second, look).await?,
        "/absolute/target\nmissing\n3 644 8\n1 0 7\n1 4755 2\n1 640 0\n1 644 3000001\n\
         content\ncontent\n0\nstill\n"
    );
    let blocks: u64 = say(&second, "stat -c %b sparse").await?.trim().parse()?;
    assert!(blocks * 512 < 1_000_000, "a sparse file takes {blocks} blocks");
    let cut = "echo changed > plain; cat second; chmod 600 unreadable; cat unreadable";
    assert_eq!(say(&second, cut).await?, "changed\nsecret\n");
    first.delete().await?;
    Ok(second.delete().await?)
}

async fn reads_only_what_changed(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "for n in $(seq 500); do echo $n > file$n; done").await?;
    let first = session.snapshots(&store).save("first", None).await?;
    assert_eq!((first.files_read, first.info.entries), (500, 501));
    if !times_tell(&session).await? {
        // Nothing there says that a file did not change, so each is read.
        let second = session.snapshots(&store).save("second", None).await?;
        assert_eq!((second.files_read, second.bytes_added), (500, 0));
        return Ok(session.delete().await?);
    }
    // What changed a moment ago is read again, for it might have changed once more since.
    until_settled(&store, &session).await?;
    say(&session, "echo more >> file7; rm file8; echo new > added").await?;
    let second = session.snapshots(&store).save("second", None).await?;
    assert_eq!((second.files_read, second.info.entries), (2, 501));
    assert!(second.bytes_added < first.bytes_added + 100_000, "{second:?}");
    let third = until_settled(&store, &session).await?;
    assert_eq!((third.files_read, third.bytes_added), (0, 0));
    assert_eq!(third.info.fingerprint, second.info.fingerprint);
    // Both are there whole.
    let old = restored(&context, &store, "first").await?;
    assert_eq!(say(&old, "cat file7 file8; ls | wc -l").await?, "7\n8\n500\n");
    old.delete().await?;
    Ok(session.delete().await?)
}

/// Saves until nothing has to be read any more.
async fn until_settled(store: &Store, session: &Session) -> Result<SaveReport, TrialError> {
    let deadline = Instant::now() + SOON;
    loop {
        let saved = session.snapshots(store).save("settled", None).await?;
        if saved.files_read == 0 {
            return Ok(saved);
        }
        if Instant::now() > deadline {
            return Err(format!("{} files are read again and again", saved.files_read).into());
        }
    }
}

async fn leaves_out_sockets_and_says_so(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session_with(&crate::suite::with_probe(Manifest::default())?).await?;
    let bind = sh("mkdir sub && ./probe --bastide-probe bind sub/socket");
    if session.exec(bind).await?.exit.code != 0 {
        // Where commands have no sockets there is none to leave out.
        assert!(!has_ids(&session), "a command cannot make a socket");
        return Ok(session.delete().await?);
    }
    let saved = session.snapshots(&store).save("named", None).await?;
    let left_out = [("sub/socket".to_owned(), "it is a socket".to_owned())];
    assert_eq!((saved.left_out, saved.info.left_out.as_slice()), (1, &left_out[..]));
    Ok(session.delete().await?)
}

async fn restores_over_what_is_there(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "mkdir a; echo 1 > a/one; echo 2 > two; chmod 555 a").await?;
    session.snapshots(&store).save("before", None).await?;
    say(&session, "rm two; mkdir two; echo 3 > two/three; chmod 000 two; echo 4 > four").await?;
    session.snapshots(&store).restore("before", None).await?;
    assert_eq!(
        say(&session, "find . | sort; cat a/one two").await?,
        ".\n./a\n./a/one\n./two\n1\n2\n"
    );
    Ok(session.delete().await?)
}

/// Every file of a store that belongs to a snapshot.
fn files_of(store: &Store) -> Result<Vec<PathBuf>, TrialError> {
    let mut files = Vec::new();
    for folder in ["packs", "snapshots"] {
        for entry in fs::read_dir(store.home().join(folder))? {
            files.push(entry?.path());
        }
    }
    files.sort();
    Ok(files)
}

fn flip(path: &Path, at: usize, bit: u8) -> Result<(), TrialError> {
    let mut bytes = fs::read(path)?;
    bytes[at] ^= bit;
    Ok(fs::write(path, bytes)?)
}

async fn keeps_what_is_there_when_a_snapshot_is_damaged(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "for n in $(seq 50); do echo content $n > file$n; done").await?;
    session.snapshots(&store).save("one", None).await?;
    say(&session, "rm file*; echo other > other").await?;
    let pack = files_of(&store)?
        .into_iter()
        .find(|path| path.ends_with(".pack") || path.extension().is_some_and(|end| end == "pack"));
    let pack = pack.ok_or("there is no pack")?;
    flip(&pack, 40, 1)?;
    let failed = session.snapshots(&store).restore("one", None).await;
    let failed = failed.err().ok_or("a damaged snapshot was restored")?;
    assert!(failed.message().contains("damaged"), "{failed}");
    assert_eq!(say(&session, "ls -A; cat other").await?, "other\nother\n");
    Ok(session.delete().await?)
}

async fn says_which_file_is_damaged_whichever_byte_is(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    let make = "mkdir sub; echo small > sub/small; dd if=/dev/urandom of=random bs=1024 count=100 \
                2>/dev/null; i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done > text";
    say(&session, make).await?;
    session.snapshots(&store).save("one", None).await?;
    assert!(store.verify(None, None)?.is_intact());
    let files = files_of(&store)?;
    let lengths: Vec<usize> =
        files.iter().map(|file| fs::read(file).map_or(0, |all| all.len())).collect();
    let total: usize = lengths.iter().sum();
    // Places spread over all of it, its first and last bytes among them.
    let count = context.count(2000);
    for number in 0..count {
        let mut at = number * (total - 1) / (count - 1);
        let file = lengths.iter().position(|length| {
            let here = at < *length;
            at -= if here { 0 } else { *length };
            here
        });
        let file = &files[file.ok_or("no such place")?];
        let bit = 1 << (number % 8);
        flip(file, at, bit)?;
        let found = store.verify(None, None)?;
        let place = format!("{} at {at}", file.display());
        assert!(!found.is_intact(), "nobody noticed {place}");
        let one = found.snapshots.iter().find(|health| health.name == "one");
        let one = one.ok_or_else(|| format!("snapshot one is not named: {place}"))?;
        assert!(!one.is_intact(), "nobody said that snapshot one is touched by {place}: {found:?}");
        assert!(one.broken.is_some() || one.damaged.iter().all(|path| !path.is_empty()));
        // Whoever comes now knows nothing of how it was.
        let fresh = Store::open(store.home())?;
        let other = session.snapshots(&fresh).restore("one", None).await;
        assert!(other.is_err(), "it was restored though {place} is damaged");
        flip(file, at, bit)?;
        // What was noted about it does not hold any more.
        drop(fs::remove_file(store.home().join("damaged")));
    }
    assert!(store.verify(Some("one"), None)?.is_intact());
    Ok(session.delete().await?)
}

async fn heals_when_the_same_content_is_saved_again(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "dd if=/dev/urandom of=random bs=1024 count=100 2>/dev/null").await?;
    session.snapshots(&store).save("one", None).await?;
    let packs = store.home().join("packs");
    let pack = fs::read_dir(&packs)?.next().ok_or("there is no pack")??.path();
    flip(&pack, 5000, 4)?;
    let found = store.verify(None, None)?;
    assert_eq!(
        found.snapshots.first().map(|one| one.damaged.clone()),
        Some(vec!["random".to_owned()])
    );
    session.snapshots(&store).save("two", None).await?;
    for name in ["one", "two"] {
        let found = store.verify(Some(name), None)?;
        assert!(found.is_intact(), "{name}: {found:?}");
        session.snapshots(&store).restore(name, None).await?;
    }
    Ok(session.delete().await?)
}

async fn collects_garbage_while_others_save_and_restore(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    let busy = async {
        for round in 0..context.count(100) {
            let line = format!(
                "rm -rf *; for n in $(seq 20); do echo {round} $n > $n; done; dd if=/dev/urandom of=r bs=100000 count=3 2>/dev/null"
            );
            say(&session, &line).await?;
            let name = format!("s{}", round % 3);
            let saved = session.snapshots(&store).save(&name, None).await?;
            let report = session.snapshots(&store).restore(&name, None).await?;
            assert_eq!(report.info.fingerprint, saved.info.fingerprint);
            if round % 4 == 3 {
                store.remove(&format!("s{}", (round + 1) % 3))?;
            }
        }
        Ok::<(), TrialError>(())
    };
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let collector = store.clone();
    let collecting = tokio::task::spawn_blocking(move || {
        // Another process would have a store of its own.
        let other = Store::open(collector.home())?;
        let mut rounds = 0;
        while let Err(tokio::sync::oneshot::error::TryRecvError::Empty) = stopped.try_recv() {
            other.collect()?;
            rounds += 1;
        }
        Ok::<u32, bastide::Error>(rounds)
    });
    let worked = busy.await;
    drop(stop);
    assert!(collecting.await?? > 0);
    worked?;
    let found = store.verify(None, None)?;
    assert!(found.is_intact() && !found.snapshots.is_empty(), "{found:?}");
    for (name, _) in store.list()? {
        store.remove(&name)?;
    }
    store.collect()?;
    assert_eq!(files_of(&store)?, Vec::<PathBuf>::new(), "garbage is left");
    Ok(session.delete().await?)
}

async fn saves_a_tree_that_changes_meanwhile(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    let restless = "mkdir a b; while :; do echo x >> a/grows; mv a/grows b/moves; mv b/moves a/grows; \
                    ln -sfn a link; rm -rf c; mkdir c; echo 1 > c/1; mv c d$$; rm -rf d$$; done";
    let process = session.launch(sh(restless)).await?;
    for round in 0..context.count(200) {
        let name = format!("s{round}");
        session.snapshots(&store).save(&name, None).await?;
    }
    session.signal(process, 9).await?;
    let found = store.verify(None, None)?;
    assert!(found.is_intact(), "{found:?}");
    let other = restored(&context, &store, "s0").await?;
    other.delete().await?;
    Ok(session.delete().await?)
}

async fn saves_deep_and_wide_trees(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    let depth = context.count(2000);
    let deep = format!(
        "i=0; while [ $i -lt {depth} ]; do mkdir d && cd d && echo $i > f || exit 1; i=$((i+1)); done"
    );
    say(&session, &deep).await?;
    say(&session, "mkdir wide && cd wide && seq 3000 | xargs touch").await?;
    let saved = session.snapshots(&store).save("one", None).await?;
    let expected = 2 * u64::try_from(depth)? + 3002;
    assert_eq!(saved.info.entries, expected);
    let other = restored(&context, &store, "one").await?;
    let now = other.snapshots(&store).fingerprint().await?;
    assert!(now == saved.info.fingerprint || !has_ids(&other), "it is not what it was");
    other.delete().await?;
    Ok(session.delete().await?)
}

async fn restores_trees_as_they_were(context: Context) -> Outcome {
    trees::restores_trees_as_they_were(context).await
}

async fn never_restores_over_a_folder_of_the_callers(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_folder, store) = store()?;
    let host = tempfile::tempdir()?;
    let manifest = Manifest { root: host.path().display().to_string(), ..Manifest::default() };
    let session = context.client().create(&manifest, CreateOptions::default()).await?;
    say(&session, "echo saved > file").await?;
    session.snapshots(&store).save("one", None).await?;
    fs::write(host.path().join("precious"), "kept")?;
    let refused = session.snapshots(&store).restore("one", None).await;
    assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Conflict));
    assert_eq!(fs::read_to_string(host.path().join("precious"))?, "kept");
    assert_eq!(fs::read_dir(host.path())?.count(), 2);
    Ok(session.delete().await?)
}

async fn gives_up_a_restore_half_way_without_a_trace(context: Context) -> Outcome {
    let (_folder, store) = store()?;
    let session = context.session().await?;
    say(&session, "for n in $(seq 300); do echo $n > file$n; done").await?;
    session.snapshots(&store).save("one", None).await?;
    say(&session, "rm file*; echo here > here").await?;
    let before = session.snapshots(&store).fingerprint().await?;
    let mut after = Vec::new();
    for steps in 0..context.count(200) {
        let restoring = session.snapshots(&store).restore("one", None);
        tokio::pin!(restoring);
        // Polled so many times, then dropped: as if whoever asked was killed then.
        let mut polled = 0;
        let ended = std::future::poll_fn(|cx| {
            polled += 1;
            match restoring.as_mut().poll(cx) {
                std::task::Poll::Ready(ended) => std::task::Poll::Ready(Some(ended)),
                std::task::Poll::Pending if polled > steps => std::task::Poll::Ready(None),
                std::task::Poll::Pending => std::task::Poll::Pending,
            }
        })
        .await;
        if let Some(ended) = ended {
            after.push(ended?.info.fingerprint);
            break;
        }
    }
    let now = settled(&store, &session).await?;
    let saved = store.inspect("one")?.fingerprint;
    assert!(now == before || now == saved, "neither what was there nor what was saved");
    let hidden = "ls -A | grep -c '^.bastide-' || true";
    assert_eq!(say(&session, hidden).await?, "0\n");
    Ok(session.delete().await?)
}

/// The fingerprint once the guest has cleared away what it began.
async fn settled(store: &Store, session: &Session) -> Result<String, TrialError> {
    let deadline = Instant::now() + SOON;
    while say(session, "ls -A | grep -c '^.bastide-' || true").await? != "0\n" {
        if Instant::now() > deadline {
            return Err("what was begun is not cleared away".into());
        }
    }
    Ok(session.snapshots(store).fingerprint().await?)
}
