//! What a log withstands, and what is found out about one that was tampered with.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::log::AuditLog;
use super::record::Digest;
use super::*;

fn home() -> (tempfile::TempDir, SessionId) {
    (tempfile::tempdir().unwrap(), SessionId::random())
}

fn log(home: &Path, id: &SessionId, segment_bytes: u64, key: Option<&AuditKey>) -> Arc<AuditLog> {
    Arc::new(AuditLog::new(audit_folder(home, id), id.clone(), segment_bytes, key.cloned()))
}

fn fields(number: usize) -> Fields {
    Fields::default()
        .with("op", "exec")
        .with("data", json!({"command": ["echo", number.to_string()]}))
}

fn write(log: &Arc<AuditLog>, count: usize) {
    for number in 0..count {
        log.append_now("op", &fields(number)).unwrap();
    }
}

/// The only file of a short log.
fn file(home: &Path, id: &SessionId) -> PathBuf {
    audit_folder(home, id).join("000001.jsonl")
}

/// Everything in a folder, by name.
fn files_of(folder: &Path) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
}

/// Puts a log there again as it was.
fn put_back(home: &Path, id: &SessionId, files: &[(std::ffi::OsString, Vec<u8>)]) -> PathBuf {
    let folder = audit_folder(home, id);
    fs::create_dir_all(&folder).unwrap();
    for (name, content) in files {
        fs::write(folder.join(name), content).unwrap();
    }
    file(home, id)
}

fn problems(home: &Path, id: &SessionId) -> Vec<AuditProblem> {
    verify(home, id, None).unwrap().problems
}

#[test]
fn finds_every_flipped_byte() {
    let (home, id) = home();
    let log = log(home.path(), &id, SEGMENT, None);
    write(&log, 5);
    log.sync_here().unwrap();
    assert_eq!(problems(home.path(), &id), []);
    let path = file(home.path(), &id);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            fs::write(&path, &bad).unwrap();
            let report = verify(home.path(), &id, None).unwrap();
            assert!(!report.is_valid(), "byte {at} of {} flipped by {flip:#x}", good.len());
        }
    }
}

#[test]
fn finds_removed_moved_and_added_records() {
    let (home, id) = home();
    let log = log(home.path(), &id, SEGMENT, None);
    write(&log, 6);
    log.sync_here().unwrap();
    let path = file(home.path(), &id);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    assert_eq!(lines.len(), 7);
    for removed in 0..lines.len() {
        let rest = lines.iter().enumerate().filter(|(index, _)| *index != removed);
        fs::write(&path, rest.map(|(_, line)| *line).collect::<String>()).unwrap();
        let seq = removed as u64 + 1;
        assert!(
            problems(home.path(), &id).contains(&AuditProblem::Missing { from: seq, to: seq }),
            "record {seq} was removed"
        );
    }
    for moved in 0..lines.len() - 1 {
        let mut lines = lines.clone();
        lines.swap(moved, moved + 1);
        fs::write(&path, lines.concat()).unwrap();
        let seq = moved as u64 + 1;
        assert!(problems(home.path(), &id).contains(&AuditProblem::Moved { seq }));
    }
    fs::write(&path, [&text[..], lines[3]].concat()).unwrap();
    assert_eq!(problems(home.path(), &id), [AuditProblem::Moved { seq: 4 }]);
    fs::write(&path, [&text[..], "{\"seq\":8}\n"].concat()).unwrap();
    assert_eq!(problems(home.path(), &id), [AuditProblem::Damaged { after: 7 }]);
    // The log of another session is not this one's.
    let other = SessionId::random();
    fs::create_dir_all(audit_folder(home.path(), &other)).unwrap();
    fs::write(file(home.path(), &other), &text).unwrap();
    assert!(!verify(home.path(), &other, None).unwrap().is_valid());
    fs::write(&path, &text).unwrap();
    assert_eq!(problems(home.path(), &id), []);
}

#[test]
fn tells_a_torn_end_from_tampering_and_goes_on() {
    let (home, id) = home();
    let path = file(home.path(), &id);
    let first = log(home.path(), &id, SEGMENT, None);
    write(&first, 3);
    first.sync_here().unwrap();
    let synced = fs::read(&path).unwrap();
    let beside = files_of(&audit_folder(home.path(), &id));
    write(&first, 1);
    let whole = fs::read(&path).unwrap();
    drop(first);
    for length in synced.len() + 1..whole.len() {
        // A log of its own each time: what was written before reaches the disk in its own time, and is
        // then missed if it is gone.
        let home = tempfile::tempdir().unwrap();
        let path = put_back(home.path(), &id, &beside);
        fs::write(&path, &whole[..length]).unwrap();
        let report = verify(home.path(), &id, None).unwrap();
        assert_eq!((report.problems, report.torn), (vec![], (length - synced.len()) as u64));
        // Somebody else goes on, and nothing that was there is removed.
        write(&log(home.path(), &id, SEGMENT, None), 2);
        let report = verify(home.path(), &id, None).unwrap();
        // A record that lacks only its line end is whole.
        let mended = u64::from(length + 1 < whole.len());
        assert_eq!((&report.problems[..], report.torn, report.mended), (&[][..], 0, mended));
        assert!(fs::read(&path).unwrap().starts_with(&whole[..length]));
        // What hides behind a torn write is found.
        let mut bad = fs::read(&path).unwrap();
        bad[synced.len()] ^= 1;
        fs::write(&path, bad).unwrap();
        assert!(!verify(home.path(), &id, None).unwrap().is_valid());
    }
    let home = tempfile::tempdir().unwrap();
    let path = put_back(home.path(), &id, &beside);
    // What a power failure leaves on some file systems.
    fs::write(&path, [&synced[..], &[0; 200]].concat()).unwrap();
    assert_eq!(verify(home.path(), &id, None).unwrap().torn, 200);
    // What was on the disk and is not there now was taken away.
    fs::write(&path, &synced[..synced.len() - 10]).unwrap();
    assert_eq!(problems(home.path(), &id), [AuditProblem::Missing { from: 4, to: 4 }]);
}

#[test]
fn is_one_chain_whoever_writes_and_however_it_is_cut() {
    let (home, id) = home();
    let key = AuditKey::generate(&home.path().join("key")).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (home, id, key) = (home.path(), &id, &key);
            scope.spawn(move || {
                let log = log(home, id, 4096, (writer % 2 == 0).then_some(key));
                for number in 0..100 {
                    while log.append_now("op", &fields(number)).is_err() {
                        std::thread::yield_now();
                    }
                    if number % 25 == 24 {
                        log.sync_here().unwrap();
                    }
                }
            });
        }
    });
    let last = log(home.path(), &id, 4096, Some(&key));
    last.append_now("op", &fields(0)).unwrap();
    last.sync_here().unwrap();
    let report = verify(home.path(), &id, Some(key.public())).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.files > 10, "{report:?}");
    let mut reader = AuditReader::open(home.path(), &id).unwrap();
    let mut read = Vec::new();
    loop {
        let more = reader.more().unwrap();
        if more.is_empty() {
            break;
        }
        read.extend(more);
    }
    assert_eq!(read.len() as u64, report.records);
    let ops = read.iter().filter(|record| record.text("kind") == Some("op")).count();
    assert_eq!(ops, 401);
    let other = AuditKey::generate(&home.path().join("other")).unwrap();
    assert!(!verify(home.path(), &id, Some(other.public())).unwrap().is_valid());
    // A file that is missing is found, the first and the last, too.
    for number in [1, 5, report.files] {
        let path = audit_folder(home.path(), &id).join(format!("{number:06}.jsonl"));
        let text = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let without = verify(home.path(), &id, None).unwrap();
        assert!(!without.is_valid(), "{number}");
        fs::write(&path, text).unwrap();
    }
}

#[test]
fn proves_single_records() {
    let (home, id) = home();
    let key = AuditKey::generate(&home.path().join("key")).unwrap();
    let again = AuditKey::read(&home.path().join("key")).unwrap();
    assert_eq!(again.public(), key.public());
    let log = log(home.path(), &id, 1024, Some(&key));
    write(&log, 10);
    log.sync_here().unwrap();
    // Somebody without the key goes on.
    write(&self::log(home.path(), &id, 1024, None), 3);
    let records = verify(home.path(), &id, None).unwrap().records;
    for seq in 1..=records {
        let proof = prove(home.path(), &id, seq).unwrap();
        let text = serde_json::to_string(&proof).unwrap();
        let proof: AuditProof = serde_json::from_str(&text).unwrap();
        proof.check(None).unwrap();
        let is_signed = proof.sig.is_some();
        assert_eq!(proof.check(Some(key.public())).is_ok(), is_signed);
        assert!(is_signed || seq > 10, "record {seq} is not signed");
        let changes: [fn(&mut AuditProof); 4] = [
            |proof| proof.record = proof.record.replace("seq", "sea"),
            |proof| proof.before = "0".repeat(64),
            |proof| proof.after.push("0".repeat(64)),
            |proof| proof.head = "0".repeat(64),
        ];
        for change in changes {
            let mut changed = proof.clone();
            change(&mut changed);
            assert!(changed.check(None).is_err());
        }
    }
    assert_eq!(
        prove(home.path(), &id, records + 1).map_err(|error| error.kind()),
        Err(ErrorKind::NotFound)
    );
    assert!(AuditKey::generate(&home.path().join("key")).is_err());
}

#[test]
fn fails_what_cannot_be_put_on_record() {
    let (home, id) = home();
    // Where the folder should be there is a file.
    fs::write(home.path().join(AUDIT_FOLDER), "").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let auditor = |on_error| {
        let options = AuditOptions::default().on_error(on_error);
        Auditor::new(&options, home.path(), &id, None)
    };
    let put = |on_error| runtime.block_on(auditor(on_error).state("creating", json!({})));
    assert_eq!(put(OnError::Raise).map_err(|error| error.kind()), Err(ErrorKind::Io));
    put(OnError::Log).unwrap();
    put(OnError::Ignore).unwrap();
}

#[test]
fn any_number_of_zeros_at_the_end_is_no_tampering() {
    let (home, id) = home();
    let first = log(home.path(), &id, SEGMENT, None);
    write(&first, 3);
    first.sync_here().unwrap();
    let path = file(home.path(), &id);
    let synced = fs::read(&path).unwrap();
    let beside = files_of(&audit_folder(home.path(), &id));
    write(&first, 1);
    let whole = fs::read(&path).unwrap();
    drop(first);
    // A page, more than any record, more than is read at once; after all, some and nothing of a record.
    for zeros in [1, 4096, 200_000, 1 << 20] {
        for kept in
            [synced.len(), synced.len() + 1, synced.len() + 40, whole.len() - 1, whole.len()]
        {
            let home = tempfile::tempdir().unwrap();
            let path = put_back(home.path(), &id, &beside);
            let torn = [&whole[..kept], &vec![0; zeros]].concat();
            fs::write(&path, &torn).unwrap();
            let report = verify(home.path(), &id, None).unwrap();
            assert_eq!(report.problems, [], "{zeros} zeros after {kept} bytes");
            write(&log(home.path(), &id, SEGMENT, None), 2);
            let report = verify(home.path(), &id, None).unwrap();
            assert_eq!((&report.problems[..], report.mended), (&[][..], 1), "{zeros} after {kept}");
            assert!(fs::read(&path).unwrap().starts_with(&torn));
            // A record that hides there is found.
            let mut bad = fs::read(&path).unwrap();
            bad[torn.len() - 1] = b'x';
            fs::write(&path, bad).unwrap();
            assert!(!verify(home.path(), &id, None).unwrap().is_valid());
        }
    }
}

#[test]
fn a_folder_without_a_record_is_a_log_without_one() {
    let (home, id) = home();
    assert_eq!(
        verify(home.path(), &id, None).map_err(|error| error.kind()),
        Err(ErrorKind::NotFound)
    );
    fs::create_dir_all(audit_folder(home.path(), &id)).unwrap();
    let report = verify(home.path(), &id, None).unwrap();
    assert_eq!((report.is_valid(), report.records), (true, 0));
    assert!(AuditReader::open(home.path(), &id).unwrap().more().unwrap().is_empty());
}

#[test]
fn a_signed_log_is_not_good_when_it_was_cut_back_or_goes_on_unsigned() {
    let (home, id) = home();
    let key = AuditKey::generate(&home.path().join("key")).unwrap();
    let is_valid = || verify(home.path(), &id, Some(key.public())).unwrap().is_valid();
    let folder = audit_folder(home.path(), &id);
    let log = log(home.path(), &id, SEGMENT, Some(&key));
    write(&log, 3);
    log.sync_here().unwrap();
    assert!(is_valid());
    let early = files_of(&folder);
    // Somebody without the key goes on.
    write(&self::log(home.path(), &id, SEGMENT, None), 1);
    let report = verify(home.path(), &id, Some(key.public())).unwrap();
    let last = report.records;
    assert_eq!(report.problems, [AuditProblem::UnsignedEnd { from: last, to: last }]);
    write(&log, 1);
    log.sync_here().unwrap();
    assert!(is_valid());
    let late = files_of(&folder);
    // The whole folder as it was, with a signature at its end and a note of how far it was.
    put_back(home.path(), &id, &early);
    assert!(!is_valid(), "cut back to an earlier signature");
    assert!(!verify(home.path(), &id, None).unwrap().is_valid());
    fs::remove_dir_all(&folder).unwrap();
    assert!(!is_valid(), "removed");
    assert_eq!(audited(home.path()).unwrap(), std::slice::from_ref(&id));
    put_back(home.path(), &id, &late);
    assert!(is_valid());
    // What says how far it was cannot be written by others, nor taken away.
    let head = super::head::path(&folder, &id);
    let good = fs::read_to_string(&head).unwrap();
    let other = AuditKey::generate(&home.path().join("other")).unwrap();
    fs::remove_file(&head).unwrap();
    assert!(!is_valid());
    super::head::write(&folder, &id, (1, Digest::first(&id)), &other).unwrap();
    assert!(!is_valid());
    fs::write(&head, good.replace("\"seq\":", "\"seq\":1")).unwrap();
    assert!(!is_valid());
    fs::write(&head, &good).unwrap();
    assert!(is_valid());
    forget(home.path(), &id).unwrap();
    assert_eq!(audited(home.path()).unwrap(), []);
}
