//! Readers of a store while others save, remove and collect garbage: what they do is no damage.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::{AtomicBool, Ordering};

use bastide::archive::tar::{TarKind, TarMember, TarWriter};
use bastide::{Error, Store};

/// How many snapshots each of those who save makes.
const ROUNDS: u64 = 60;

/// An archive of a few files with content nobody else has, and one that many have.
fn archive(seed: u64) -> Vec<u8> {
    let mut tar = Vec::new();
    let mut writer = TarWriter::new(&mut tar);
    for number in 0..4_u64 {
        let text = if number == 0 { seed % 3 } else { seed * 10 + number };
        let content = text.to_le_bytes().repeat(2000);
        let mut member = TarMember::new(format!("file{number}").as_bytes(), TarKind::File);
        member.size = content.len() as u64;
        writer.append(&member, &mut content.as_slice()).unwrap();
    }
    writer.finish().unwrap();
    tar
}

/// What is fine to come back from a snapshot that others remove and replace.
fn is_gone(error: &Error) -> bool {
    error.is_not_found()
}

#[test]
fn nobody_cries_damage_beside_those_who_save_and_collect() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Store::open(folder.path().join("store")).unwrap();
    open().import("keep", archive(0).as_slice()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let savers: Vec<_> = (1..=2_u64)
            .map(|saver| {
                scope.spawn(move || {
                    let store = open();
                    for round in 0..ROUNDS {
                        let name = format!("s{}", (saver + round) % 4);
                        let tar = archive(saver * 1000 + round);
                        store.import(&name, tar.as_slice()).unwrap();
                        store.remove(&format!("s{}", (saver + round + 1) % 4)).unwrap();
                    }
                })
            })
            .collect();
        let is_over = &is_over;
        let collector = scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                open().collect().unwrap();
            }
        });
        let verifier = scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                let report = open().verify(None, None).unwrap();
                assert!(report.is_intact(), "{report:?}");
                match open().verify(Some("s1"), None) {
                    Ok(report) => assert!(report.is_intact(), "{report:?}"),
                    Err(error) => assert!(is_gone(&error), "{error:?}"),
                }
            }
        });
        let reader = scope.spawn(move || {
            while !is_over.load(Ordering::Acquire) {
                if let Err(error) = open().export("s2", std::io::sink()) {
                    assert!(is_gone(&error), "{error:?}");
                }
            }
        });
        let saved: Vec<_> = savers.into_iter().map(|saver| saver.join()).collect();
        is_over.store(true, Ordering::Release);
        for ended in saved.into_iter().chain([collector.join(), verifier.join(), reader.join()]) {
            if let Err(panic) = ended {
                std::panic::resume_unwind(panic);
            }
        }
    });
    assert!(open().verify(None, None).unwrap().is_intact());
}
