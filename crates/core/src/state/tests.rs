use rusqlite::Connection;

use super::*;
use crate::backend::MachineSpec;

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

fn home() -> (tempfile::TempDir, Arc<State>) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(SESSIONS)).unwrap();
    let state = State::at(folder.path());
    (folder, state)
}

fn intent() -> Record {
    let spec = MachineSpec::new("/workspace".parse().unwrap());
    let mut record = Record::intent(SessionId::random(), "local", spec);
    record.tied = false;
    record
}

#[test]
fn knows_who_keeps_a_session_alive() {
    let (_home, state) = home();
    let record = intent();
    let id = record.id.clone();
    assert_eq!(state.liveness(&id), Liveness::Missing);
    assert!(matches!(state.claim(&id), Ok(ClaimAttempt::Missing)));
    let folder = run(state.reserve(&record)).unwrap();
    let again = run(state.reserve(&record)).map(drop).map_err(|error| error.kind());
    assert_eq!(again, Err(ErrorKind::Conflict));
    assert_eq!(state.liveness(&id), Liveness::Kept);
    assert!(matches!(state.claim(&id), Ok(ClaimAttempt::Kept)));
    // Whoever has a copy of the lock keeps it alive as well.
    let copy = folder.lock().try_clone().unwrap();
    drop(folder);
    assert_eq!(state.liveness(&id), Liveness::Kept);
    drop(copy);
    assert_eq!(state.liveness(&id), Liveness::Left);
    assert!(matches!(state.claim(&id), Ok(ClaimAttempt::Ours(_))));
    assert_eq!(state.record(&id).unwrap().map(|record| record.stage), Some(Stage::Starting));
}

/// Removes a folder that is held as whoever removes one does: first it gets another name.
fn remove(state: &State, folder: SessionFolder, who: &str) {
    let gone = state.sessions().join(format!("{GONE_PREFIX}{}.{who}", folder.id()));
    fs::rename(folder.path(), &gone).unwrap();
    // Somebody who was just about to open the lock makes a file in it under its new name.
    while let Err(error) = fs::remove_dir_all(&gone) {
        assert_eq!(error.kind(), io::ErrorKind::DirectoryNotEmpty);
    }
}

#[test]
fn writes_nothing_on_the_record_of_another_session_of_that_name() {
    let (_home, state) = home();
    let mut record = intent();
    let folder = run(state.reserve(&record)).unwrap();
    let path = folder.path().to_owned();
    drop(folder);
    let TransitionAttempt::Ours(late) = state.try_lock_transition(&record.id).unwrap() else {
        panic!("somebody else has it");
    };
    record.stage = Stage::Stopped;
    // Removed while somebody was too slow to be waited for, and there is another one of that name.
    fs::remove_dir_all(&path).unwrap();
    let mut new = record.clone();
    new.stage = Stage::Starting;
    let other = run(state.reserve(&new));
    let error = state.write(&record, &late).unwrap_err();
    assert!(error.is_not_found(), "{error}");
    assert_eq!(state.record(&record.id).unwrap().unwrap().stage, Stage::Starting);
    // Not even where the name changes hands at the last moment.
    fs::remove_dir_all(other.unwrap().path()).unwrap();
    assert!(late.write_held(&record).is_err());
    assert!(!path.exists());
}

#[test]
fn makes_a_folder_though_somebody_sweeps() {
    let (_home, state) = home();
    let record = intent();
    let id = record.id.clone();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (state, id) = (&state, &id);
        scope.spawn(move || {
            // Until the other one is done, or gone.
            while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                if let Ok(TransitionAttempt::Ours(_turn)) = state.try_lock_transition(id)
                    && let Ok(ClaimAttempt::Ours(folder)) = state.claim(id)
                {
                    remove(state, folder, "sweeper");
                }
            }
        });
        let stop = stop;
        for round in 0..200 {
            let folder = run(state.reserve(&record)).unwrap();
            assert!(!folder.has_tombstone(), "round {round}");
            assert!(state.record(id).unwrap().is_some(), "round {round}");
            remove(state, folder, "maker");
        }
        drop(stop);
    });
}

#[test]
fn refuses_records_it_cannot_vouch_for() {
    let (_home, state) = home();
    let (record, other) = (intent(), intent());
    let folder = run(state.reserve(&record)).unwrap();
    let path = folder.path().join("machine.json");
    let good = fs::read_to_string(&path).unwrap();
    let cases = [
        String::new(),
        "{}".to_owned(),
        good.replace(record.id.as_str(), other.id.as_str()),
        good.replace("\"form\":1", "\"form\":2"),
        good.replace("\"/workspace\"", "\"../etc\""),
        good[..good.len() / 2].to_owned(),
    ];
    for text in cases {
        fs::write(&path, &text).unwrap();
        assert!(state.record(&record.id).is_err(), "{text}");
    }
    fs::write(&path, good).unwrap();
    assert!(state.record(&record.id).unwrap().is_some());
}

#[test]
fn reads_the_index_only_where_it_is_right() {
    let (home, state) = home();
    let mut record = intent();
    let folder = run(state.reserve(&record)).unwrap();
    let roots = |state: &State| -> Vec<String> {
        run(state.summaries()).unwrap().0.into_iter().map(|summary| summary.root).collect()
    };
    assert_eq!(roots(&state), ["/workspace"]);
    run(state.flush());
    let database = Connection::open(home.path().join("state.db")).unwrap();
    database.execute("UPDATE sessions SET root = '/from-the-index'", []).unwrap();
    assert_eq!(roots(&state), ["/from-the-index"], "what did not change is not read again");
    record.stage = Stage::Running;
    folder.write(&record).unwrap();
    assert_eq!(roots(&state), ["/workspace"], "and what did is");
    database.execute("UPDATE sessions SET root = '/wrong', stamp = 'old'", []).unwrap();
    assert_eq!(run(state.rebuild()).unwrap(), 1);
    assert_eq!(roots(&state), ["/workspace"]);

    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(roots(&state), Vec::<String>::new());
    run(state.flush());
    let left: i64 =
        database.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[test]
fn leaves_the_index_of_a_later_version_alone() {
    let (home, state) = home();
    let path = home.path().join("state.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch("CREATE TABLE later (x); PRAGMA user_version = 99;").unwrap();
    let record = intent();
    let folder = run(state.reserve(&record)).unwrap();
    assert_eq!(run(state.summaries()).unwrap().0.len(), 1);
    assert!(run(state.rebuild()).is_err());
    let form: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(form, 99);
    drop(folder);
}
