//! Workspaces that go back to what they were: checkpoints, undo, forks and merges.

mod at_once;
mod at_rest;
mod crashes;
mod folders;
mod forks;
mod model;
mod refusals;
mod terminals;

use std::fs;
use std::time::Duration;

use bastide::events::EventOptions;
use bastide::model::Manifest;
use bastide::{
    Command, CreateOptions, ErrorKind, JournalOptions, Session, Store, ToolAnswer, Tools,
};

use crate::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use crate::trials;

use at_once::several_at_once_leave_one_history;
use at_rest::knows_what_changed_between_two_commands;
use crashes::is_before_or_after_when_its_processes_are_killed;
use folders::{
    ends_nothing_where_nothing_is_undone, leaves_history_alone_where_nothing_happened,
    loses_nothing_that_comes_while_it_goes_back, restores_over_no_edit_that_no_point_was_asked_for,
    takes_back_a_command_that_an_undo_ended, without_a_journal_nobody_knows_whose_changes_they_are,
};
use forks::{
    checkpoints_are_of_one_instant, loses_nothing_by_a_merge, merges_what_a_fork_changed,
    sixteen_forks_are_each_their_own, t8_a_fork_has_every_byte_written_before_it,
};
use model::goes_wherever_a_model_in_memory_goes;
use refusals::{keeps_as_many_points_as_it_should, says_what_is_wrong_with_a_point};
use terminals::makes_points_of_lines_on_a_terminal;

pub(super) const TRIALS: &[Trial] = trials![
    t10_undo_takes_back_what_commands_did,
    t9_undo_never_removes_what_the_session_did_not_write,
    brings_back_links_holes_and_repositories,
    finds_a_database_whole_at_every_point,
    goes_back_to_checkpoints_without_a_journal,
    restores_one_path_and_nothing_else,
    takes_back_what_closed_the_workspace,
    a_point_outlives_a_stop,
    t8_a_fork_has_every_byte_written_before_it,
    sixteen_forks_are_each_their_own,
    checkpoints_are_of_one_instant,
    merges_what_a_fork_changed,
    loses_nothing_by_a_merge,
    without_a_journal_nobody_knows_whose_changes_they_are,
    restores_over_no_edit_that_no_point_was_asked_for,
    ends_nothing_where_nothing_is_undone,
    takes_back_a_command_that_an_undo_ended,
    loses_nothing_that_comes_while_it_goes_back,
    leaves_history_alone_where_nothing_happened,
    puts_no_secret_into_a_journal,
    finds_damage_in_points,
    goes_wherever_a_model_in_memory_goes,
    says_what_is_wrong_with_a_point,
    keeps_as_many_points_as_it_should,
    is_before_or_after_when_its_processes_are_killed,
    a_model_can_take_back_what_it_did,
    makes_points_of_lines_on_a_terminal,
    several_at_once_leave_one_history,
    knows_what_changed_between_two_commands,
];

/// A session that makes a point of every command.
async fn journaled(context: &Context, manifest: &Manifest) -> Result<Session, TrialError> {
    let options = CreateOptions::default().journal(JournalOptions::default().commands());
    Ok(context.client().create(manifest, options).await?)
}

/// What tells one state of a workspace from every other, times, owners and attributes included.
struct Fingerprinter {
    _folder: tempfile::TempDir,
    store: Store,
}

impl Fingerprinter {
    fn open() -> Result<Self, TrialError> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(folder.path().join("store"))?;
        Ok(Self { _folder: folder, store })
    }

    async fn fingerprint_of(&self, session: &Session) -> Result<String, TrialError> {
        Ok(session.snapshots(&self.store).fingerprint().await?)
    }
}

/// Whether a program is there at all. It is asked about in a session of its own.
async fn has(context: &Context, program: &str) -> Result<bool, TrialError> {
    let session = context.session().await?;
    let found = session.exec(Command::shell(&format!("command -v {program}"))).await?;
    session.delete().await?;
    Ok(found.exit.code == 0)
}

/// A project with a bit of everything that commands break.
const PROJECT: &str = "mkdir -p src/deep docs bin 'odd name'; echo 'int main(void){return 0;}' > src/main.c
    for n in $(seq 40); do echo line $n >> src/deep/text; done
    echo '#!/bin/sh' > bin/tool; chmod 755 bin/tool; ln -s ../src docs/link; ln src/main.c docs/second
    touch -d '2001-02-03 04:05:06' docs/old; echo spaced > 'odd name/file'; chmod 500 docs";

async fn t10_undo_takes_back_what_commands_did(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let session = journaled(&context, &Manifest::default()).await?;
    say(&session, PROJECT).await?;
    let commands = [
        // What an installation does, wherever there is no pip: many new files, some of them programs.
        "mkdir -p env/lib/site/pkg env/bin; for n in $(seq 50); do echo $n > env/lib/site/pkg/m$n.py; done
         echo '#!/bin/sh' > env/bin/run; chmod 755 env/bin/run; ln -s run env/bin/alias",
        "rm -rf src",
        "chmod 700 docs; rm -rf ./* .[a-z]* 2>/dev/null; true",
        "sed -i 's/line 7/LINE seven/' src/deep/text",
        "cp /bin/sh bin/built; chmod 755 bin/built",
        "chmod 600 bin/tool; chmod 700 src/deep",
        "mv src source; mv 'odd name' even; mkdir src; echo new > src/main.c",
        "chmod 700 docs; rm docs/link; ln -s /nowhere docs/link; rm docs/second; cp src/main.c docs/second",
        "ln bin/tool bin/twin; echo more >> bin/twin",
        "rm bin/tool; mkdir bin/tool; echo inside > bin/tool/file",
        "mkfifo pipe; dd if=/dev/zero of=sparse bs=1 count=1 seek=2000000 2>/dev/null",
        "setfattr -n user.mark -v seen src/main.c 2>/dev/null; setfattr -n user.mark -v d src 2>/dev/null; true",
        "touch -d '1999-01-01 00:00:00' src/main.c src",
        "printf x > \"$(printf 'n\\377me')\"",
    ];
    for line in commands {
        let before = eye.fingerprint_of(&session).await?;
        say(&session, line).await?;
        let changed = eye.fingerprint_of(&session).await?;
        let undone = session.journal().undo(1).await?;
        assert_eq!(eye.fingerprint_of(&session).await?, before, "undo of `{line}` ({undone:?})");
        let redone = session.journal().redo().await?;
        assert_eq!(eye.fingerprint_of(&session).await?, changed, "redo of `{line}` ({redone:?})");
        session.journal().undo(1).await?;
        assert_eq!(eye.fingerprint_of(&session).await?, before, "undo of `{line}` once more");
    }
    // All of them at once: to before the first.
    let first = eye.fingerprint_of(&session).await?;
    say(&session, "echo 1 > one").await?;
    say(&session, "rm -rf src").await?;
    say(&session, "mv docs gone").await?;
    session.journal().undo(3).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, first);
    Ok(session.delete().await?)
}

async fn t9_undo_never_removes_what_the_session_did_not_write(context: Context) -> Outcome {
    // What the program itself put there, between two commands.
    let session = journaled(&context, &Manifest::default()).await?;
    say(&session, "echo 1 > one").await?;
    session.files().write("given", "by the program").await?;
    say(&session, "echo 2 > two; rm -f one").await?;
    session.journal().undo(1).await?;
    assert_eq!(&session.files().read("given").await?[..], b"by the program");
    assert_eq!(&session.files().read("one").await?[..], b"1\n");
    session.delete().await?;
    if !context.backend.has_host_files() {
        return Ok(());
    }
    // A folder that its owner goes on working in.
    let host = tempfile::tempdir()?;
    let at = |name: &str| host.path().join(name);
    fs::write(at("mine"), "before")?;
    fs::write(at("shared"), "1\n")?;
    let manifest = Manifest { root: host.path().display().to_string(), ..Manifest::default() };
    let session = journaled(&context, &manifest).await?;
    say(&session, "echo made > made; mkdir sub; echo 2 >> shared").await?;
    fs::write(at("mine"), "edited meanwhile")?;
    fs::write(at("new"), "of the owner")?;
    session.journal().undo(1).await?;
    let names = |folder: &std::path::Path| -> std::io::Result<Vec<_>> {
        let mut names: Vec<_> = fs::read_dir(folder)?
            .map(|one| Ok(one?.file_name()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        Ok(names)
    };
    assert_eq!(
        names(host.path())?,
        ["mine", "new", "shared"],
        "only what the command made is gone"
    );
    assert_eq!(fs::read_to_string(at("mine"))?, "edited meanwhile");
    assert_eq!(fs::read_to_string(at("shared"))?, "1\n");
    session.journal().redo().await?;
    assert_eq!(fs::read_to_string(at("shared"))?, "1\n2\n");
    assert_eq!(fs::read_to_string(at("mine"))?, "edited meanwhile");
    // Where both changed the same file nothing is done at all.
    fs::write(at("shared"), "of the owner")?;
    let refused = session.journal().undo(1).await.err().ok_or("it was overwritten")?;
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.message().contains("shared"), "{refused}");
    assert_eq!(fs::read_to_string(at("shared"))?, "of the owner");
    assert_eq!(fs::read_to_string(at("made"))?, "made\n");
    // The same for what lies in a folder that the session made.
    fs::write(at("shared"), "1\n2\n")?;
    fs::write(at("sub/inside"), "of the owner")?;
    let refused = session.journal().undo(1).await.err().ok_or("a folder was removed")?;
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(fs::read_to_string(at("sub/inside"))?, "of the owner");
    Ok(session.delete().await?)
}

async fn brings_back_links_holes_and_repositories(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let session = journaled(&context, &Manifest::default()).await?;
    say(
        &session,
        "echo both > one; ln one two; dd if=/dev/zero of=holes bs=1 count=1 seek=3000000 2>/dev/null
         mkdir folder; echo x > folder/x",
    )
    .await?;
    let before = eye.fingerprint_of(&session).await?;
    say(&session, "echo more >> two").await?;
    let point = session.journal().checkpoint(Some("written")).await?;
    assert!(point.point.changes.first.is_empty(), "nothing changed since the command");
    say(&session, "rm one; echo z | dd of=holes bs=1 seek=1000000 conv=notrunc 2>/dev/null")
        .await?;
    session.journal().undo(1).await?;
    assert!(session.files().same_file("one", "two").await?, "both names are of one file again");
    assert_eq!(&session.files().read("one").await?[..], b"both\nmore\n");
    session.journal().undo(1).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, before);
    let blocks = say(&session, "stat -c %b holes").await?;
    assert!(blocks.trim().parse::<u64>()? * 512 < 1_000_000, "holes take {blocks} blocks");
    session.delete().await?;
    if !has(&context, "git").await? {
        return Err(skip("git is not installed"));
    }
    let session = journaled(&context, &Manifest::default()).await?;
    let git = "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main";
    say(&session, &format!("mkdir -p lib/in && echo 1 > lib/in/f && {git} init -q . && {git} add -A && {git} commit -qm 1"))
        .await?;
    let before = eye.fingerprint_of(&session).await?;
    say(&session, &format!("{git} mv lib moved && {git} commit -qm 2")).await?;
    session.journal().undo(1).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, before);
    assert_eq!(
        say(&session, &format!("{git} status --porcelain; {git} log --oneline | wc -l"))
            .await?
            .trim(),
        "1"
    );
    Ok(session.delete().await?)
}

/// What keeps a database with a write-ahead log open and writes to it.
const WRITER: &str = "import sqlite3
d = sqlite3.connect('data.db'); d.execute('pragma journal_mode=wal'); d.execute('pragma synchronous=off')
d.execute('create table t(n integer primary key, m integer)'); d.commit(); print('ready', flush=True)
n = 0
while True:
    n += 1
    d.execute('insert into t values(?, ?)', (n, n)); d.execute('insert into t values(?, ?)', (-n, n)); d.commit()
";

async fn finds_a_database_whole_at_every_point(context: Context) -> Outcome {
    if !has(&context, "python3").await? {
        return Err(skip("python3 is not installed"));
    }
    let session = context.session().await?;
    session.files().write("writer.py", WRITER).await?;
    let mut writer = session.spawn(Command::new(["python3", "writer.py"])).await?;
    // It says that it is ready; all else is what became of it.
    writer.next().await?;
    let count = context.count(100);
    for _ in 0..count {
        session.journal().checkpoint(None).await?;
    }
    drop(writer);
    let client = context.client();
    for number in [1, count / 2 + 1, count] {
        let mut forks = client.fork(&session, 1, Some(&number.to_string())).await?;
        let fork = forks.pop().ok_or("there is no fork")?;
        let check = "import sqlite3; d = sqlite3.connect('data.db')
print(d.execute('pragma integrity_check').fetchone()[0], d.execute('select sum(n) from t').fetchone()[0] or 0)";
        let said = fork.exec(Command::new(["python3", "-c", check])).await?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert_eq!(said, "ok 0\n", "point {number} is between two transactions");
        fork.delete().await?;
    }
    Ok(session.delete().await?)
}

async fn goes_back_to_checkpoints_without_a_journal(context: Context) -> Outcome {
    let eye = Fingerprinter::open()?;
    let session = context.session().await?;
    say(&session, PROJECT).await?;
    let first = eye.fingerprint_of(&session).await?;
    session.journal().checkpoint(Some("first")).await?;
    say(&session, "rm -rf src; echo 1 > one").await?;
    let second = eye.fingerprint_of(&session).await?;
    let made = session.journal().checkpoint(Some("second")).await?;
    assert!(made.point.changes.removed > 2 && made.point.changes.added == 1, "{made:?}");
    let background = session.launch(sh("sleep 7130; echo over > over")).await?;
    say(&session, "echo 2 > two").await?;
    let third = eye.fingerprint_of(&session).await?;
    let undone = session.journal().undo(1).await?;
    assert!(undone.ended >= 1, "processes end first, and it is said: {undone:?}");
    let alive = session
        .processes()
        .await?
        .into_iter()
        .any(|one| one.id == background && one.exit.is_none());
    assert!(!alive, "a process outlived the undo");
    assert_eq!(eye.fingerprint_of(&session).await?, second);
    // Nothing changed since, so the one before it is meant.
    session.journal().undo(1).await?;
    assert_eq!(eye.fingerprint_of(&session).await?, first);
    session.journal().redo().await?;
    assert_eq!(eye.fingerprint_of(&session).await?, second);
    session.journal().redo().await?;
    assert_eq!(eye.fingerprint_of(&session).await?, third);
    let found = session.journal().diff(Some("first..second"), None).await?;
    assert!(found.files.iter().any(|file| file.path == "src/deep/text"), "{found:?}");
    let found = session.journal().diff(Some("second.."), Some("two")).await?;
    let text = found.files.first().and_then(|file| file.text.clone()).ok_or("no text")?;
    assert_eq!(text, "--- /dev/null\n+++ b/two\n@@ -0,0 +1 @@\n+2\n");
    Ok(session.delete().await?)
}

/// Also the folder at the top may be closed by its owner.
async fn takes_back_what_closed_the_workspace(context: Context) -> Outcome {
    let session = journaled(&context, &Manifest::default()).await?;
    let eye = Fingerprinter::open()?;
    say(&session, "echo 1 > one; mkdir folder; echo 2 > folder/two").await?;
    let first = eye.fingerprint_of(&session).await?;
    for mode in ["555", "000", "400"] {
        say(&session, &format!("rm -r folder; chmod {mode} .")).await?;
        let closed = eye.fingerprint_of(&session).await?;
        session.journal().undo(1).await?;
        assert_eq!(eye.fingerprint_of(&session).await?, first, "{mode}");
        session.journal().redo().await?;
        assert_eq!(eye.fingerprint_of(&session).await?, closed, "{mode}");
        session.journal().undo(1).await?;
        assert_eq!(say(&session, "cat one folder/two").await?, "1\n2\n");
    }
    Ok(session.delete().await?)
}

async fn restores_one_path_and_nothing_else(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkdir -p a/b; echo 1 > a/b/one; echo 1 > two").await?;
    session.journal().checkpoint(Some("good")).await?;
    say(&session, "rm -rf a; echo 2 > two; echo 3 > three").await?;
    session.journal().restore_path("a/b", "good").await?;
    assert_eq!(say(&session, "cat a/b/one two three").await?, "1\n2\n3\n");
    let log = context.client().log(session.id())?;
    let changes = &log.points.last().ok_or("no point")?.changes;
    assert_eq!(
        (changes.added, &changes.first[..]),
        (3, &["a", "a/b", "a/b/one"].map(str::to_owned)[..])
    );
    session.journal().restore_path("two", "1").await?;
    assert_eq!(say(&session, "cat two three").await?, "1\n3\n");
    session.journal().undo(1).await?;
    assert_eq!(say(&session, "cat a/b/one two three").await?, "1\n2\n3\n");
    Ok(session.delete().await?)
}

async fn a_point_outlives_a_stop(context: Context) -> Outcome {
    let _unswept = crate::suite::block_sweeps().await;
    let client = context.client();
    let options = CreateOptions::default().detached().journal(JournalOptions::default().commands());
    let session = client.create(&Manifest::default(), options).await?;
    let id = session.id().clone();
    say(&session, "echo 1 > file").await?;
    say(&session, "echo 2 > file; sleep 0").await?;
    drop(session);
    client.stop(&id).await?;
    let log = client.log(&id)?;
    let labels: Vec<_> =
        log.points.iter().map(|point| (point.label.as_str(), point.exit)).collect();
    assert_eq!(labels, [("echo 1 > file", Some(0)), ("echo 2 > file; sleep 0", Some(0))]);
    let stopped = client.attach(&id).await.err().ok_or("it is not stopped")?;
    assert_eq!(stopped.kind(), ErrorKind::Conflict);
    let session = client.resume(&id).await?;
    session.journal().undo(1).await?;
    assert_eq!(&session.files().read("file").await?[..], b"1\n");
    client.delete(&id).await?;
    Ok(())
}

async fn a_model_can_take_back_what_it_did(context: Context) -> Outcome {
    let session = journaled(&context, &Manifest::default()).await?;
    let tools = Tools::new(&session);
    let names: Vec<_> = Tools::journal_definitions().iter().map(|tool| tool.name).collect();
    assert_eq!(names, ["checkpoint", "undo", "diff"]);
    let text = async |name: &str, raw: &str| match tools.call(name, raw).await? {
        ToolAnswer::Text(text) => Ok::<_, TrialError>(text),
        other => Err(format!("{other:?}").into()),
    };
    text("exec_command", r#"{"cmd": "echo 1 > one"}"#).await?;
    assert_eq!(text("checkpoint", r#"{"name": "good"}"#).await?, "point 2 (good) was made.");
    text("exec_command", r#"{"cmd": "rm one; echo 2 > two"}"#).await?;
    let shown = text("diff", "{}").await?;
    assert!(shown.contains("removed file one") && shown.contains("+2"), "{shown}");
    let undone = text("undo", "").await?;
    assert!(undone.contains("before point 3: 2 files changed"), "{undone}");
    assert_eq!(&session.files().read("one").await?[..], b"1\n");
    assert!(text("diff", r#"{"points": "goood.."}"#).await?.contains("is it \"good\"?"));
    assert!(text("undo", r#"{"steps": "x"}"#).await?.contains("cannot be read"));
    Ok(session.delete().await?)
}

async fn puts_no_secret_into_a_journal(context: Context) -> Outcome {
    let events = EventOptions::new().secret("TOKEN", "not-to-be-seen");
    let client = context.client().with_events(events);
    let options = CreateOptions::default().journal(JournalOptions::default().commands());
    let session = client.create(&Manifest::default(), options).await?;
    say(&session, "echo not-to-be-seen > /dev/null").await?;
    let log = client.log(session.id())?;
    let label = log.points.first().map(|point| point.label.as_str());
    assert_eq!(label, Some("echo <secret:TOKEN> > /dev/null"));
    Ok(session.delete().await?)
}

async fn finds_damage_in_points(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "seq 2000 > file").await?;
    session.journal().checkpoint(None).await?;
    // A copy, for others use the store meanwhile: what they remove while it is made has it made again.
    let from = context.backend.home().join("snapshots");
    let copies = std::iter::repeat_with(|| -> std::io::Result<_> {
        let copy = tempfile::tempdir()?;
        let mut cp = std::process::Command::new("cp");
        let copied = cp.arg("-a").args([&from, copy.path()]).status()?;
        Ok(copied.success().then_some(copy))
    });
    let copy = copies.take(20).find_map(Result::transpose).ok_or("others keep on removing")??;
    let store = Store::open(copy.path().join("snapshots"))?;
    let of = format!("{}@", session.id());
    let is_whole = |report: &bastide::snapshot::store::VerifyReport| {
        let mut found = report.snapshots.iter().filter(|one| one.name.starts_with(&of));
        found.next().map(|point| point.is_intact())
    };
    assert_eq!(is_whole(&store.verify(None, None)?), Some(true));
    let points = store.home().join("points").join(session.id().as_str());
    for point in fs::read_dir(points)? {
        fs::write(point?.path(), "damaged")?;
    }
    assert_eq!(is_whole(&store.verify(None, None)?), Some(false));
    Ok(session.delete().await?)
}

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(20);
