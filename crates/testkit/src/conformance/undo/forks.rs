//! Sessions that begin with the files of another.

use bastide::model::Manifest;
use bastide::{Command, OutputEvent, Rung};

use super::{Fingerprinter, PROJECT};
use crate::suite::{Context, Outcome, say};

pub(super) async fn t8_a_fork_has_every_byte_written_before_it(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let client = context.client();
    let mut manifest = Manifest::default();
    let value = bastide::model::environment::Variable::Plain("seen".to_owned());
    manifest.environment.value.insert("FORKED".to_owned(), value);
    let session = context.session_with(&manifest).await?;
    say(&session, PROJECT).await?;
    // Still held open by a process that runs, and not synced.
    let line = "exec 3> open; n=0; while [ $n -lt 3000 ]; do n=$((n+1)); echo line $n >&3; done; echo ready; sleep 7131";
    let mut writer = session.spawn(Command::shell(line)).await?;
    assert!(matches!(writer.next().await?, OutputEvent::Stdout(_)), "it says that it has written");
    let before = eye.fingerprint_of(&session).await?;
    let mut forks = client.fork(&session, 1, None).await?;
    let fork = forks.pop().ok_or("there is no fork")?;
    // Where each session has one id of its own, nothing belongs to anybody else.
    let has_ids = session.receipt().rung != Rung::Landlock;
    assert!(
        eye.fingerprint_of(&fork).await? == before || !has_ids,
        "the fork is what the session was"
    );
    assert_eq!(
        say(&fork, "wc -l < open; echo $FORKED").await?.split_whitespace().collect::<Vec<_>>(),
        ["3000", "seen"]
    );
    assert!(
        fork.processes().await?.iter().all(|one| one.exit.is_some()),
        "processes are not forked"
    );
    // The process of the session goes on.
    assert!(session.processes().await?.iter().any(|one| one.exit.is_none()));
    say(&fork, "rm -rf src; echo fork > only").await?;
    assert_eq!(eye.fingerprint_of(&session).await?, before, "what a fork does stays there");
    drop(writer);
    fork.delete().await?;
    Ok(session.delete().await?)
}

pub(super) async fn sixteen_forks_are_each_their_own(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    say(&session, PROJECT).await?;
    let forks = client.fork(&session, context.count(16), None).await?;
    for (number, fork) in forks.iter().enumerate() {
        assert_eq!(
            say(fork, &format!("echo {number} > own; cat src/main.c | wc -l")).await?.trim(),
            "1"
        );
    }
    for (number, fork) in forks.into_iter().enumerate() {
        assert_eq!(say(&fork, "cat own").await?.trim(), number.to_string());
        fork.delete().await?;
    }
    Ok(session.delete().await?)
}

/// Appends to a log, and renames a folder to and fro; each number is in the log before it is in the folder.
const RESTLESS: &str = "mkdir a; n=0; echo ready; while :; do n=$((n+1)); echo $n >> log; mv a b; echo $n > b/t; mv b/t b/n; mv b a; done";

pub(super) async fn checkpoints_are_of_one_instant(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    let mut restless = session.spawn(Command::shell(RESTLESS)).await?;
    assert!(matches!(restless.next().await?, OutputEvent::Stdout(_)), "it says that it is ready");
    let count = context.count(100);
    let mut stood_still = 0;
    for _ in 0..count {
        stood_still = stood_still.max(session.journal().checkpoint(None).await?.processes);
    }
    assert!(stood_still > 0, "it says how many processes stood still");
    for number in 1..=count {
        let mut forks = client.fork(&session, 1, Some(&number.to_string())).await?;
        let fork = forks.pop().ok_or("there is no fork")?;
        // One of both folders, the number in it at most one behind the log, and the log without a gap.
        let look = "test -d a -a ! -e b -o -d b -a ! -e a || echo folders
            last=$(tail -n 1 log 2>/dev/null || true); last=${last:-0}; seen=$(cat a/n b/n 2>/dev/null || true); seen=${seen:-0}
            test $((last - seen)) -le 1 -a $last -ge $seen || echo $last and $seen
            test $last -eq 0 || test \"$(seq $last | cksum)\" = \"$(cksum < log)\" || echo a gap";
        assert_eq!(say(&fork, look).await?, "", "point {number}");
        fork.delete().await?;
    }
    // Whatever was written meanwhile is there: the process knew nothing of it.
    session.signal(restless.id(), 9).await?;
    assert_eq!(
        say(
            &session,
            "test \"$(seq $(tail -n 1 log) | cksum)\" = \"$(cksum < log)\" && echo whole"
        )
        .await?,
        "whole\n"
    );
    Ok(session.delete().await?)
}

pub(super) async fn merges_what_a_fork_changed(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let client = context.client();
    let session = context.session().await?;
    say(
        &session,
        "seq 20 > text; seq 20 > same; printf '\\0\\1' > binary; echo old > removed; echo k > kept; mkdir folder; echo f > folder/f",
    )
    .await?;
    let mut forks = client.fork(&session, 1, None).await?;
    let fork = forks.pop().ok_or("there is no fork")?;
    say(
        &fork,
        "sed -i 's/^3$/three/' text; sed -i 's/^5$/fork/' same; printf '\\0\\2' > binary; rm removed; echo new > new; echo g > folder/g; echo fork > kept",
    )
    .await?;
    say(&session, "sed -i 's/^17$/seventeen/' text; sed -i 's/^5$/session/' same; printf '\\0\\3' > binary; rm kept; rm -r folder").await?;
    let before = eye.fingerprint_of(&session).await?;
    let merged = session.journal().merge(&fork).await?;
    assert_eq!(merged.merged, ["text"]);
    let beside = |name: &str| Some(format!("{name}.fork-{}", fork.id()));
    let conflicts = ["binary", "kept", "same"].map(|name| (name.to_owned(), beside(name)));
    assert_eq!(merged.conflicts, conflicts);
    assert_eq!(
        say(
            &session,
            "sed -n '3p;17p' text; sed -n 5p same; cat new folder/g; ls removed 2>/dev/null; true"
        )
        .await?,
        "three\nseventeen\nsession\nnew\ng\n"
    );
    assert_eq!(say(&session, "cat kept.fork-*; sed -n 5p same.fork-*").await?, "fork\nfork\n");
    let binary = beside("binary").unwrap_or_default();
    assert_eq!(&session.files().read("binary").await?[..], b"\0\x03");
    assert_eq!(&session.files().read(&binary).await?[..], b"\0\x02");
    // It can be taken back, and what was in the fork is still there.
    session.journal().undo(1).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, before);
    assert_eq!(say(&fork, "cat new; sed -n 5p same").await?, "new\nfork\n");
    fork.delete().await?;
    Ok(session.delete().await?)
}

/// Sets an extended attribute where there are any.
const MARK: &str = "setfattr -n user.mark -v fork marked 2>/dev/null || true";

pub(super) async fn loses_nothing_by_a_merge(context: Context) -> Outcome {
    let client = context.client();
    let session = context.session().await?;
    let long = "n".repeat(240);
    let (one, two) = (format!("{long}1234567891"), format!("{long}1234567892"));
    say(
        &session,
        &format!(
            "echo 1 > file; echo 1 > thing; mkdir place; echo 1 > place/in; echo 1 > mode; seq 20 > marked
             echo 1 > {one}; echo 1 > {two}; echo 1 > both; ln both twice; seq 20 > linked; ln linked same"
        ),
    )
    .await?;
    let fork = client.fork(&session, 1, None).await?.pop().ok_or("there is no fork")?;
    say(
        &fork,
        &format!(
            "echo fork > file; rm thing; mkdir thing; echo fork > thing/in; echo fork > place/in; echo fork > place/new
             chmod 600 mode; sed -n '1,2p' marked > /dev/null; {MARK}; echo fork > {one}; echo fork2 > {two}
             s=$(sed 's/^3$/three/' linked); echo \"$s\" > linked"
        ),
    )
    .await?;
    say(
        &session,
        &format!(
            "echo own > file; echo own > thing; rm -r place; echo own > place; chmod 640 mode
             s=$(sed 's/^17$/x/' marked); echo \"$s\" > marked; echo own > {one}; echo own2 > {two}
             s=$(sed 's/^17$/x/' linked); echo \"$s\" > linked"
        ),
    )
    .await?;
    let merged = session.journal().merge(&fork).await?;
    // The session's own is where it was.
    let own = say(&session, &format!("cat file thing place {one} {two}; stat -c %a mode")).await?;
    assert_eq!(own, "own\nown\nown\nown\nown2\n640\n", "{merged:?}");
    // Everything of the fork's is beside it, each by a name of its own.
    let id = fork.id();
    let beside = say(
        &session,
        &format!(
            "cat file.fork-{id} thing.fork-{id}/in place.fork-{id}/new; cat place.fork-{id}/in*; stat -c %a mode.fork-{id}
             cat n*fork-* | sort"
        ),
    )
    .await?;
    assert_eq!(beside, "fork\nfork\nfork\nfork\n600\nfork\nfork2\n", "{merged:?}");
    // Names of one file are so still, and a mark is no change of lines.
    assert!(session.files().same_file("linked", "same").await?, "{merged:?}");
    assert_eq!(say(&session, "sed -n '3p;17p' linked; sed -n 17p marked").await?, "three\nx\nx\n");
    let mark = "getfattr --only-values -n user.mark marked 2>/dev/null || true";
    assert_eq!(say(&session, mark).await?, say(&fork, mark).await?);
    // What somebody made of a conflict is there after the next merge.
    say(&session, &format!("echo mine > file.fork-{id}")).await?;
    session.journal().merge(&fork).await?;
    assert_eq!(
        say(&session, &format!("cat file.fork-{id} file.fork-{id}.2")).await?,
        "mine\nfork\n"
    );
    fork.delete().await?;
    Ok(session.delete().await?)
}
