//! Whoever saves a workspace as a tar archive, or brings one in, is killed at any moment: nothing is
//! lost by that.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::archive::tar::TarReader;
use bastide::model::snapshot::SnapshotSpec;
use bastide::model::{Manifest, PosixPath};
use bastide::{
    Client, Command, Content, CreateOptions, ResumeOptions, Session, SessionId, SnapshotChoice,
};
use bastide_local::LocalBackend;

/// The variables that make this program a worker: where, whom, and what to do.
const HOME: &str = "BASTIDE_TEST_KILLED_HOME";
const ID: &str = "BASTIDE_TEST_KILLED_ID";
const WORK: &str = "BASTIDE_TEST_KILLED_WORK";

/// So many files, each with its number in every line.
const FILL: &str = "for d in $(seq 10); do mkdir -p d$d; for f in $(seq 30); do \
                    echo $d $f > d$d/f$f; done; done; head -c 3000000 /dev/urandom > large";

fn client(home: &Path) -> Client {
    Client::new(Arc::new(LocalBackend::new(home).unwrap()))
}

/// What is done until somebody ends it; the tests below start this program again for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_until_it_is_killed() {
    let Some(home) = std::env::var_os(HOME).map(PathBuf::from) else { return };
    let said = |name| std::env::var_os(name).unwrap().into_string().unwrap();
    let id: SessionId = said(ID).parse().unwrap();
    let client = client(&home);
    match said(WORK).as_str() {
        "save" => {
            client.attach(&id).await.unwrap().save().await.unwrap();
        }
        "hydrate" => {
            let archive = tokio::fs::File::open(home.join("archive.tar")).await.unwrap();
            let session = client.attach(&id).await.unwrap();
            session.compat().hydrate_workspace(Content::stream(archive)).await.unwrap();
        }
        "restore" => {
            let options = ResumeOptions::default().discard_changes();
            client.resume_with(&id, options).await.unwrap();
        }
        other => panic!("nobody knows how to {other}"),
    }
}

struct Home {
    folder: tempfile::TempDir,
    client: Client,
    id: SessionId,
    session: Session,
}

impl Home {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let client = client(folder.path());
        let base_path = PosixPath::new(&folder.path().join("snaps").to_string_lossy());
        let options = CreateOptions::default()
            .detached()
            .snapshot(SnapshotChoice::Spec(SnapshotSpec::Local { base_path }));
        let session = client.create(&Manifest::default(), options).await.unwrap();
        let home = Self { id: session.id().clone(), folder, client, session };
        home.say(FILL).await;
        home
    }

    async fn say(&self, line: &str) -> String {
        let output = self.session.exec(Command::shell(line)).await.unwrap();
        assert_eq!(output.exit.code, 0, "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout.to_vec()).unwrap()
    }

    fn worker(&self, work: &str) -> Child {
        Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "works_until_it_is_killed"])
            .envs([(HOME, self.folder.path().as_os_str()), (ID, self.id.as_str().as_ref())])
            .env(WORK, work)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// The snapshot there is: exactly one, and whole.
    fn saved(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path().join("snaps")).unwrap();
        let mut all: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| path.extension().is_some_and(|end| end == "tar"));
        assert_eq!(all.len(), 1, "{all:?}");
        members(&all[0])
    }
}

/// Every member of an archive, which must be whole.
fn members(path: &Path) -> Vec<String> {
    let mut reader = TarReader::open(File::open(path).unwrap()).unwrap();
    let mut names = Vec::new();
    while let Some(member) = reader.next_member().unwrap() {
        let read = std::io::copy(&mut reader.content(), &mut std::io::sink()).unwrap();
        assert_eq!(read, member.size, "a member is cut off");
        names.push(String::from_utf8(member.name).unwrap());
    }
    names
}

/// Two hundred moments, or a tenth of them: spread over what the work takes.
fn moments() -> u32 {
    if std::env::var_os("BASTIDE_TEST_FULL").is_some() { 200 } else { 20 }
}

/// Kills a worker after a part of the time one takes that is left alone.
fn kill(mut worker: Child, after: Duration) {
    // The moment is what is tried, nothing is waited for.
    let (_sender, nobody_speaks) = std::sync::mpsc::channel::<()>();
    assert!(nobody_speaks.recv_timeout(after).is_err());
    worker.kill().unwrap();
    worker.wait().unwrap();
}

/// How long the work takes.
fn timed(mut worker: Child) -> Duration {
    let started = Instant::now();
    assert!(worker.wait().unwrap().success());
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn keeps_the_old_archive_however_a_save_is_killed() {
    let home = Home::new().await;
    let whole = timed(home.worker("save"));
    assert_eq!(home.saved().len(), 312);
    for moment in 0..moments() {
        home.say(&format!("echo {moment} > large; touch new{moment}")).await;
        kill(home.worker("save"), whole * moment / moments());
        let saved = home.saved();
        assert!(saved.len() >= 312 && saved.iter().any(|name| name == "./d10/f30"), "{saved:?}");
    }
    assert_eq!(home.say("cat d*/f* | wc -l").await, "300\n");
    home.client.delete(&home.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn loses_nothing_however_an_unpacking_is_killed() {
    let home = Home::new().await;
    let archive = home.session.compat().persist_workspace().await.unwrap();
    let mut file = archive.into_file().unwrap();
    let mut copy = File::create_new(home.folder.path().join("archive.tar")).unwrap();
    std::io::copy(&mut file, &mut copy).unwrap();
    let whole = timed(home.worker("hydrate"));
    for moment in 0..moments() {
        // Nothing of this is in the archive but the files of one folder.
        home.say("rm -rf d2 d3; for f in d1/*; do echo old > $f; done; echo own > own").await;
        kill(home.worker("hydrate"), whole * moment / moments());
        // A file is what it was or what it shall be, and none is gone.
        let look = "cat own; ls d1 | wc -l; cat d1/* | grep -vc '^old$\\|^1 [0-9]*$' || true";
        assert_eq!(home.say(look).await, "own\n30\n0\n", "{moment}");
    }
    timed(home.worker("hydrate"));
    assert_eq!(home.say("cat d*/f* | sort | uniq | wc -l; cat own").await, "300\nown\n");
    home.client.delete(&home.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn comes_back_from_an_archive_however_a_resume_is_killed() {
    let mut home = Home::new().await;
    home.client.stop(&home.id).await.unwrap();
    let whole = timed(home.worker("restore"));
    for moment in 0..moments() {
        home.client.stop(&home.id).await.unwrap();
        // Whatever state it is in, what was saved is there to come back.
        kill(home.worker("restore"), whole * moment / moments());
        assert!(home.saved().len() >= 312, "{moment}");
    }
    home.session = home.client.resume(&home.id).await.unwrap();
    assert_eq!(home.say("cat d*/f* | sort | uniq | wc -l").await, "300\n");
    home.client.delete(&home.id).await.unwrap();
}
