//! Beside `rclone mount` on the same server; run by hand:
//! `BASTIDE_TEST_MOUNT_PROGRAM=… cargo test --release -p bastide-mount --test mounts bench -- --ignored --nocapture`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bastide_mount::{Cache, MountSpec};

use crate::harness::{Mounted, drop_pages, full, may_mount};
use crate::servers::{DEADLINE, Kind, Server, tools};

/// How much of everything; a tenth unless `BASTIDE_TEST_FULL` is set.
struct Amounts {
    files: usize,
    listed: usize,
    large_mib: usize,
    rounds: usize,
}

fn amounts() -> Amounts {
    if full() {
        return Amounts { files: 2000, listed: 10_000, large_mib: 512, rounds: 3 };
    }
    Amounts { files: 200, listed: 1000, large_mib: 64, rounds: 3 }
}

type Work = fn(&Path);

/// A mount by rclone.
struct Rclone {
    child: Child,
    folder: tempfile::TempDir,
}

impl Rclone {
    fn new(server: &Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let remote = format!(
            ":s3,provider=Other,access_key_id=AKID,secret_access_key=s3cr3t,region=us-east-1,endpoint='{}':data",
            server.endpoint()
        );
        let child = Command::new(tools().join("venv/bin/rclone"))
            .args(["mount", &remote])
            .arg(folder.path())
            .args(["--config", "/dev/null", "--log-level", "ERROR"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        let path = folder.path().to_str().unwrap().to_owned();
        while !fs::read_to_string("/proc/self/mounts").unwrap().contains(&path) {
            assert!(begin.elapsed() < DEADLINE, "rclone does not mount");
            std::thread::yield_now();
        }
        Self { child, folder }
    }
}

impl Drop for Rclone {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.folder.path(), rustix::mount::UnmountFlags::FORCE);
        let _ = rustix::mount::unmount(self.folder.path(), rustix::mount::UnmountFlags::DETACH);
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    drop_pages();
    let begin = Instant::now();
    work();
    begin.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

fn read_large(root: &Path) {
    let mut file = File::open(root.join("large")).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    while let Ok(size @ 1..) = file.read(&mut buffer) {
        total += size;
    }
    assert_eq!(total, amounts().large_mib << 20);
}

fn read_small(root: &Path) {
    for number in 0..amounts().files {
        let content = fs::read(root.join(format!("small/f{number:05}"))).unwrap();
        assert_eq!(content.len(), 4096);
    }
}

fn write_small(root: &Path, folder: &str) {
    let folder: PathBuf = root.join(folder);
    fs::create_dir(&folder).unwrap();
    for number in 0..amounts().files {
        let mut file = File::create(folder.join(format!("f{number:05}"))).unwrap();
        file.write_all(&[7; 4096]).unwrap();
    }
}

fn list(root: &Path) {
    let entries = fs::read_dir(root.join("many")).unwrap();
    let total: u64 = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(total, amounts().listed as u64);
}

fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "a benchmark"]
fn bench_beside_rclone() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    {
        let mount = Mounted::with_cache(server.spec(), None);
        let mut large = File::create(mount.at("large")).unwrap();
        for number in 0..amounts().large_mib {
            large.write_all(&vec![u8::try_from(number % 251).unwrap(); 1 << 20]).unwrap();
        }
        large.sync_all().unwrap();
        write_small(&mount.path, "small");
        fs::create_dir(mount.at("many")).unwrap();
        for number in 0..amounts().listed {
            fs::write(mount.at(format!("many/f{number:05}")), "x").unwrap();
        }
    }
    let cache = tempfile::tempdir().unwrap();
    let settings = |name: &str| Some(Cache { folder: cache.path().join(name), size: 4 << 30 });
    let spec = |id: &str| MountSpec { id: id.into(), ..server.spec() };
    let works: [(&str, Work); 3] =
        [("sequential", read_large), ("small reads", read_small), ("listing", list)];
    for (name, work) in works {
        let (mut ours, mut theirs, mut second) = (Vec::new(), Vec::new(), Vec::new());
        let mut peak = 0;
        for round in 0..amounts().rounds {
            let folder = format!("{name}-{round}");
            {
                let mount = Mounted::with_cache(spec("a"), settings(&folder));
                ours.push(timed(|| work(&mount.path)));
                peak = peak_kib(mount.pid()).max(peak);
                let other = Mounted::with_cache(spec("b"), settings(&folder));
                second.push(timed(|| work(&other.path)));
            }
            let rclone = Rclone::new(&server);
            theirs.push(timed(|| work(rclone.folder.path())));
        }
        let (ours, theirs, second) = (median(ours), median(theirs), median(second));
        eprintln!(
            "{name}: ours {ours:.2} s, rclone {theirs:.2} s, ratio {:.2}; second session {second:.2} s, {:.2} of the first; peak {peak} KiB",
            ours / theirs,
            second / ours
        );
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..amounts().rounds {
        let mount = Mounted::with_cache(spec("w"), None);
        ours.push(timed(|| write_small(&mount.path, &format!("ours{round}"))));
        drop(mount);
        let rclone = Rclone::new(&server);
        theirs.push(timed(|| write_small(rclone.folder.path(), &format!("theirs{round}"))));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    eprintln!("small writes: ours {ours:.2} s, rclone {theirs:.2} s, ratio {:.2}", ours / theirs);
}
