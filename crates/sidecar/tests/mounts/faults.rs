//! Stores that fail, and ways to them that do.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bastide_mount::MountSpec;
use rustix::io::Errno;

use crate::harness::{Mounted, drop_pages, may_mount, seed};
use crate::proxy::{Listener, ProxyAction, Rng, bad_proxy, proxy};
use crate::servers::{DEADLINE, Kind, Server};

fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut chance = Rng::new(seed);
    (0..size.div_ceil(8)).flat_map(|_| chance.next().to_le_bytes()).take(size).collect()
}

#[test]
fn nothing_synced_is_lost_and_nothing_is_corrupt_on_a_bad_way() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let way = bad_proxy(server.port, seed());
    let spec = MountSpec { source: server.source_at(&way.endpoint()), ..server.spec() };
    let mount = Mounted::with_cache(spec, None);
    let mut synced = Vec::new();
    let mut chance = Rng::new(seed());
    for number in 0..60 {
        let size = usize::try_from([0, 17, 4096, 200_000, 9_500_000][number % 5]).unwrap();
        let size = if size > 1 << 20 && number > 10 { 3000 } else { size };
        let bytes = content(chance.next(), size);
        let name = format!("f{number}");
        let stored = File::create(mount.at(&name)).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        if stored.is_ok() {
            synced.push((name, bytes));
        }
    }
    assert!(synced.len() >= 58, "only {} of 60 came through", synced.len());
    drop(mount);
    // Another mount, without the proxy, has nothing from memory.
    let mount = Mounted::with_cache(server.spec(), None);
    for (name, bytes) in synced {
        assert!(fs::read(mount.at(&name)).unwrap() == bytes, "{name} is not what was synced");
    }
}

#[test]
fn what_is_read_on_a_bad_way_is_right_or_an_error() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let bytes = content(seed(), 12 << 20);
    fs::write(Mounted::new(server.spec()).at("file"), &bytes).unwrap();
    let way = bad_proxy(server.port, seed() + 1);
    let spec = MountSpec { source: server.source_at(&way.endpoint()), ..server.spec() };
    let mount = Mounted::with_cache(spec, None);
    let mut whole = 0;
    for _ in 0..5 {
        drop_pages();
        let Ok(mut file) = File::open(mount.at("file")) else { continue };
        let mut read = Vec::new();
        if file.read_to_end(&mut read).is_ok() {
            assert!(read == bytes);
            whole += 1;
        } else {
            assert!(bytes.starts_with(&read));
        }
    }
    assert!(whole > 0, "nothing came through at all");
}

#[test]
fn a_store_that_is_killed_is_an_error_and_goes_on_when_it_is_back() {
    if !may_mount() {
        return;
    }
    let Some(mut server) = Server::start(Kind::S3rver) else { return };
    let spec = MountSpec { metadata_ttl_ms: 0, ..server.spec() };
    let mount = Mounted::with_cache(spec, None);
    let bytes = content(1, 6 << 20);
    fs::write(mount.at("file"), &bytes).unwrap();
    drop_pages();
    let reader = File::open(mount.at("file")).unwrap();
    let mut first = [0; 4096];
    reader.read_exact_at(&mut first, 0).unwrap();
    let mut writer = File::create(mount.at("new")).unwrap();
    writer.write_all(&bytes).unwrap();

    server.kill();
    let errno = |error: std::io::Error| error.raw_os_error();
    let io = Some(Errno::IO.raw_os_error());
    let mut rest = vec![0; 4096];
    assert_eq!(errno(reader.read_exact_at(&mut rest, 5 << 20).unwrap_err()), io);
    assert_eq!(errno(writer.sync_all().unwrap_err()), io);
    assert_eq!(errno(fs::read_dir(&mount.path).unwrap().next().unwrap().unwrap_err()), io);

    server.restart();
    writer.sync_all().unwrap();
    drop(writer);
    assert!(fs::read(mount.at("file")).unwrap() == bytes);
    drop_pages();
    assert!(fs::read(mount.at("new")).unwrap() == bytes);
}

#[test]
fn a_store_that_is_silent_hangs_nobody() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let silent = Arc::new(AtomicBool::new(false));
    let fate = Arc::clone(&silent);
    let between = proxy(server.port, move || {
        if fate.load(Ordering::SeqCst) { ProxyAction::Silence } else { ProxyAction::Pass }
    });
    let source = server.source_at(&between.endpoint());
    let spec = MountSpec { source, timeout_ms: 1500, metadata_ttl_ms: 0, ..server.spec() };
    let mount = Mounted::with_cache(spec, None);
    // More than one block: that is not remembered from being written.
    fs::write(mount.at("file"), vec![1; 3 << 20]).unwrap();
    drop_pages();
    let reader = File::open(mount.at("file")).unwrap();
    let mut writer = File::create(mount.at("new")).unwrap();
    writer.write_all(&vec![2; 1 << 20]).unwrap();
    silent.store(true, Ordering::SeqCst);
    let (done, is_done) = mpsc::channel();
    let folder = mount.path.clone();
    thread::spawn(move || {
        let mut bytes = [0; 10];
        let outcomes = [
            reader.read_exact_at(&mut bytes, 1000).unwrap_err(),
            writer.sync_all().unwrap_err(),
            fs::metadata(folder.join("other")).unwrap_err(),
            fs::create_dir(folder.join("folder")).unwrap_err(),
        ];
        done.send(outcomes.map(|error| error.raw_os_error())).unwrap();
    });
    let outcomes = is_done.recv_timeout(DEADLINE).unwrap();
    assert_eq!(outcomes, [Some(Errno::IO.raw_os_error()); 4]);
}

/// A mount whose store refuses everything while the flag is set, and the proxy that does so.
fn refusable(server: &Server) -> (Listener, Arc<AtomicBool>, Mounted) {
    let refuses = Arc::new(AtomicBool::new(false));
    let fate = Arc::clone(&refuses);
    let between = proxy(server.port, move || {
        if fate.load(Ordering::SeqCst) { ProxyAction::Unavailable } else { ProxyAction::Pass }
    });
    let source = server.source_at(&between.endpoint());
    let spec = MountSpec { source, timeout_ms: 1500, ..server.spec() };
    (between, refuses, Mounted::with_cache(spec, None))
}

#[test]
fn a_rename_that_fails_leaves_both_names_what_they_were() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let (_between, refuses, mount) = refusable(&server);
    fs::write(mount.at("target"), "precious").unwrap();
    let held = File::options().read(true).write(true).open(mount.at("target")).unwrap();
    let mut draft = File::create(mount.at("draft")).unwrap();
    draft.write_all(b"not stored yet").unwrap();
    refuses.store(true, Ordering::SeqCst);
    let failed = fs::rename(mount.at("draft"), mount.at("target")).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    refuses.store(false, Ordering::SeqCst);
    draft.write_all(b", but now").unwrap();
    draft.sync_all().unwrap();
    drop(draft);
    // Whoever had the second one open goes on with it, too.
    held.write_all_at(b"PRE", 0).unwrap();
    held.sync_all().unwrap();
    drop((held, mount));
    let mount = Mounted::with_cache(server.spec(), None);
    assert_eq!(fs::read_to_string(mount.at("draft")).unwrap(), "not stored yet, but now");
    assert_eq!(fs::read_to_string(mount.at("target")).unwrap(), "PREcious");
    fs::rename(mount.at("draft"), mount.at("target")).unwrap();
    drop_pages();
    assert_eq!(fs::read_to_string(mount.at("target")).unwrap(), "not stored yet, but now");
    assert!(!mount.at("draft").exists());
}

#[test]
fn a_file_that_is_renamed_while_it_is_stored_is_as_long_as_it_was() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let slow = Arc::new(AtomicBool::new(false));
    let fate = Arc::clone(&slow);
    let (asked, is_asked) = mpsc::channel();
    let between = proxy(server.port, move || {
        if !fate.load(Ordering::SeqCst) {
            return ProxyAction::Pass;
        }
        let _ = asked.send(());
        ProxyAction::Delay(Duration::from_millis(500))
    });
    let source = server.source_at(&between.endpoint());
    let spec = MountSpec { source, metadata_ttl_ms: 60_000, ..server.spec() };
    let mount = Mounted::with_cache(spec, None);
    // From here on it is known what is there, and the store is asked for nothing but the file.
    assert!(!mount.at("new").exists());
    let mut draft = File::create(mount.at("draft")).unwrap();
    draft.write_all(b"first").unwrap();
    slow.store(true, Ordering::SeqCst);
    let closing = thread::spawn(move || drop(draft));
    is_asked.recv_timeout(DEADLINE).unwrap();
    fs::rename(mount.at("draft"), mount.at("new")).unwrap();
    closing.join().unwrap();
    slow.store(false, Ordering::SeqCst);
    drop_pages();
    assert_eq!(fs::metadata(mount.at("new")).unwrap().len(), 5);
    let mut file = File::options().append(true).open(mount.at("new")).unwrap();
    file.write_all(b", second").unwrap();
    drop(file);
    drop_pages();
    assert_eq!(fs::read_to_string(mount.at("new")).unwrap(), "first, second");
}

#[test]
fn what_was_not_stored_is_not_read_from_the_kernel_either() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let (_between, refuses, mount) = refusable(&server);
    fs::write(mount.at("file"), "stored").unwrap();
    let file = File::options().read(true).write(true).open(mount.at("file")).unwrap();
    refuses.store(true, Ordering::SeqCst);
    // As long as before, so that the kernel has no reason of its own to read anew.
    file.write_all_at(b"UNSAVE", 0).unwrap();
    file.sync_all().unwrap_err();
    drop(file);
    refuses.store(false, Ordering::SeqCst);
    // The kernel says that it is closed when it comes to it; until then it may be read as it is open, or not at all.
    let (_keep, never) = mpsc::channel::<()>();
    let deadline = Instant::now() + DEADLINE;
    while fs::read_to_string(mount.at("file")).ok().as_deref() != Some("stored") {
        assert!(Instant::now() < deadline, "what no store has is read");
        let _ = never.recv_timeout(Duration::from_millis(100));
    }
}

#[test]
fn whoever_closes_hears_why_it_was_not_stored() {
    if !may_mount() {
        return;
    }
    let answers = [
        ("403 Forbidden", "AccessDenied", Errno::ACCESS),
        ("507 Insufficient Storage", "XMinioStorageFull", Errno::NOSPC),
        ("403 Forbidden", "QuotaExceeded", Errno::DQUOT),
        ("400 Bad Request", "EntityTooLarge", Errno::FBIG),
        ("501 Not Implemented", "NotImplemented", Errno::IO),
    ];
    for (status, code, errno) in answers {
        let store = crate::hostile::store(move |head| {
            if head.starts_with("PUT") {
                return (status.to_owned(), format!("<Error><Code>{code}</Code></Error>"));
            }
            ("200 OK".to_owned(), crate::hostile::page(""))
        });
        let mount = Mounted::with_cache(crate::hostile::spec(&store), None);
        let mut file = File::create(mount.at("file")).unwrap();
        file.write_all(b"x").unwrap();
        let error = file.sync_all().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{code}");
        drop(file);
        // A program that does not sync hears it when it closes.
        let mut closes = std::process::Command::new("dd");
        closes.args(["if=/dev/zero", "bs=1", "count=1", "status=none"]);
        closes
            .arg(format!("of={}", mount.at("other").display()))
            .stderr(std::process::Stdio::null());
        assert!(!closes.status().unwrap().success(), "{code}");
        let events = mount.events();
        assert!(
            events.iter().all(|event| event.op == "write" && event.outcome != "ok"),
            "{events:?}"
        );
    }
}
