use super::*;

fn folder(room: Option<u64>) -> LogFolder {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    LogFolder::new(rustix::fs::open(std::env::temp_dir(), flags, Mode::empty()).unwrap(), room)
}

static CHUNK: [u8; 60_000] = [b'x'; 60_000];

#[tokio::test]
async fn keeps_no_more_than_there_is_room_for() {
    let folder = folder(Some(1_000_000));
    let (one, other) = (OutputLog::new(), OutputLog::new());
    for _ in 0..100 {
        one.append(&folder, Tag::Stdout, &CHUNK).await;
    }
    let kept = 6_000_000 - one.lost();
    assert!((900_000..=1_000_000).contains(&kept), "{kept}");
    assert_eq!(read_all(&one, 0).0.len() as u64, kept);
    assert!(folder.is_short());
    drop(one);
    for _ in 0..10 {
        other.append(&folder, Tag::Stdout, &CHUNK).await;
    }
    assert_eq!(other.lost(), 0, "what is forgotten makes room");
}

#[tokio::test]
async fn loses_nothing_for_a_reader_that_is_waited_for() {
    let folder = folder(Some(300_000));
    let log = OutputLog::new();
    let mut cursor = log.cursor(0).unwrap();
    log.wait_for(Some(&cursor));
    let writing = async {
        for _ in 0..100 {
            log.append(&folder, Tag::Stdout, &CHUNK).await;
        }
        log.close();
    };
    let reading = async {
        let mut received = 0;
        loop {
            log.ready(&cursor).await;
            match log.next(&mut cursor).unwrap() {
                Some((_, data)) => received += data.len(),
                None => return received,
            }
        }
    };
    let ((), received) = tokio::join!(writing, reading);
    assert_eq!((received, log.lost(), log.length()), (6_000_000, 0, 6_000_000));
    assert!(log.cursor(0).unwrap().offset() > 0, "what was heard is forgotten");
}

fn read_all(log: &OutputLog, from: u64) -> (Vec<u8>, Vec<u8>) {
    let mut cursor = log.cursor(from).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some((tag, data)) = log.next(&mut cursor).unwrap() {
        if tag == Tag::Stderr { err.extend(data) } else { out.extend(data) }
    }
    (out, err)
}

#[tokio::test]
async fn replays_from_any_offset_without_losing_a_byte() {
    let (log, folder) = (OutputLog::new(), folder(None));
    let mut all = Vec::new();
    // Odd sizes, past the point where the log moves to a file and past a few marks.
    for number in 0..300u32 {
        let chunk: Vec<u8> = (0..9973 + number).map(|byte| (byte % 251) as u8).collect();
        log.append(&folder, Tag::Stdout, &chunk).await;
        all.extend(chunk);
    }
    assert!(!log.is_small());
    let length = u64::try_from(all.len()).unwrap();
    for from in [0, 1, 9972, 9973, 9974, 300_000, 1_048_576, length - 1, length, length + 9] {
        let start = usize::try_from(from.min(length)).unwrap();
        let (out, err) = read_all(&log, from);
        assert!(out == all[start..] && err.is_empty(), "from {from}");
    }
}

#[tokio::test]
async fn keeps_the_streams_apart_and_in_order() {
    let (log, folder) = (OutputLog::new(), folder(None));
    log.append(&folder, Tag::Stdout, b"one").await;
    log.append(&folder, Tag::Stderr, b"two").await;
    log.append(&folder, Tag::Stdout, b"three").await;
    assert_eq!(read_all(&log, 0), (b"onethree".to_vec(), b"two".to_vec()));
    assert_eq!(read_all(&log, 4), (b"three".to_vec(), b"wo".to_vec()));
}
