//! The cache on disk, which sessions share.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use bastide_mount::{Cache, MountSpec, Source};

use crate::harness::{Mounted, drop_pages, may_mount};
use crate::proxy::{ProxyAction, proxy};
use crate::servers::{Kind, Server};

fn disk_usage(folder: &Path) -> u64 {
    let mut total = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let Ok(meta) = entry.metadata() else { continue };
        total += if meta.is_dir() { disk_usage(&entry.path()) } else { meta.blocks() * 512 };
    }
    total
}

#[test]
fn a_second_session_reads_what_a_first_one_fetched() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let way = proxy(server.port, || ProxyAction::Pass);
    let spec = MountSpec {
        source: server.source_at(&way.endpoint()),
        metadata_ttl_ms: 60_000,
        ..server.spec()
    };
    let shared = tempfile::tempdir().unwrap();
    let cache = Some(Cache { folder: shared.path().join("cache"), size: 1 << 30 });
    {
        let writer = Mounted::with_cache(spec.clone(), None);
        for number in 0..20 {
            fs::write(writer.at(format!("f{number}")), vec![number; 5000]).unwrap();
        }
        fs::write(writer.at("large"), vec![9; 5 << 20]).unwrap();
    }
    let read = |mount: &Mounted| {
        drop_pages();
        for number in 0..20 {
            assert!(fs::read(mount.at(format!("f{number}"))).unwrap() == vec![number; 5000]);
        }
        assert!(fs::read(mount.at("large")).unwrap() == vec![9; 5 << 20]);
    };
    let first = Mounted::with_cache(spec.clone(), cache.clone());
    read(&first);
    let before = way.connections.load(Ordering::SeqCst);
    let second = Mounted::with_cache(MountSpec { id: "n".into(), ..spec.clone() }, cache.clone());
    read(&second);
    let requests = way.connections.load(Ordering::SeqCst) - before;
    assert!(requests <= 2, "{requests} requests for what is in the cache");
    assert!(second.counts().cache_hits >= 25, "{:?}", second.counts());
    // Whoever has another key may see that something is there, and not be allowed to read it.
    let mut stranger = MountSpec { id: "o".into(), ..spec.clone() };
    if let Source::S3 { keys: Some(keys), .. } = &mut stranger.source {
        keys.access_key_id = "OTHER".into();
    }
    let before = way.connections.load(Ordering::SeqCst);
    let stranger = Mounted::with_cache(stranger, cache.clone());
    read(&stranger);
    let requests = way.connections.load(Ordering::SeqCst) - before;
    assert!(requests > 20, "{requests} requests for what another key has fetched");

    // Other content has another version: nobody is given the old one.
    let writer = Mounted::with_cache(MountSpec { id: "w".into(), ..spec.clone() }, None);
    fs::write(writer.at("f3"), vec![77; 5000]).unwrap();
    let third = Mounted::with_cache(MountSpec { id: "o".into(), ..spec }, cache);
    assert!(fs::read(third.at("f3")).unwrap() == vec![77; 5000]);
}

#[test]
fn the_cache_stays_within_its_size() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let shared = tempfile::tempdir().unwrap();
    let folder = shared.path().join("cache");
    let size = 32 << 20;
    let mount = Mounted::with_cache(server.spec(), Some(Cache { folder: folder.clone(), size }));
    for number in 0..5 {
        fs::write(mount.at(format!("large{number}")), vec![number; 16 << 20]).unwrap();
    }
    drop_pages();
    for number in 0..5 {
        assert!(fs::read(mount.at(format!("large{number}"))).unwrap() == vec![number; 16 << 20]);
        assert!(disk_usage(&folder) <= size, "{} bytes", disk_usage(&folder));
    }
    assert!(disk_usage(&folder) > 0, "nothing was kept at all");
}

#[test]
fn reading_on_takes_few_requests_and_stopping_leaves_none_behind() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let way = proxy(server.port, || ProxyAction::Pass);
    let spec = MountSpec { source: server.source_at(&way.endpoint()), ..server.spec() };
    let content: Vec<u8> = (0..48_u32 << 20).map(|at| (at >> 12).to_le_bytes()[0]).collect();
    fs::write(Mounted::with_cache(spec.clone(), None).at("large"), &content).unwrap();
    let mount = Mounted::with_cache(MountSpec { id: "r".into(), ..spec }, None);
    let before = way.connections.load(Ordering::SeqCst);
    assert!(fs::read(mount.at("large")).unwrap() == content);
    let requests = way.connections.load(Ordering::SeqCst) - before;
    assert!(requests <= 8, "{requests} requests");
    // Who stops in the middle and comes back gets the same bytes, from there as well.
    drop_pages();
    let mut file = fs::File::open(mount.at("large")).unwrap();
    let mut read = vec![0; 20 << 20];
    std::io::Read::read_exact(&mut file, &mut read).unwrap();
    assert!(read == content[..20 << 20]);
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, 28 << 20).unwrap();
    assert!(read == content[28 << 20..]);
}
