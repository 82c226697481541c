//! A mount as a warden would make it: the descriptor is kept here, the program answers.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bastide_mount::{Cache, Channel, Counts, Event, MountSpec, Report, Start};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::servers::DEADLINE;

/// A mount; unmounted, and its program ended, with the value.
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    folder: tempfile::TempDir,
    device: OwnedFd,
    spec: MountSpec,
    cache: Option<Cache>,
    staging_size: Option<u64>,
    program: Option<Program>,
}

struct Program {
    child: Child,
    channel: std::sync::Arc<Channel>,
    reports: mpsc::Receiver<Report>,
}

/// Whether this process may mount; only root may here.
pub(crate) fn may_mount() -> bool {
    let may = rustix::process::geteuid().is_root() && File::open("/dev/fuse").is_ok();
    if !may {
        crate::servers::skip("/dev/fuse for this user");
    }
    may
}

impl Mounted {
    pub(crate) fn new(spec: MountSpec) -> Self {
        let cache = tempfile::tempdir().unwrap().keep();
        Self::with_cache(spec, Some(Cache { folder: cache, size: 1 << 30 }))
    }

    pub(crate) fn with_cache(spec: MountSpec, cache: Option<Cache>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mount");
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(folder.path().join("staging")).unwrap();
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("bastide", &path, "fuse.bastide", flags, Some(options.as_c_str()))
            .unwrap();
        let device = device.into();
        let mut mounted =
            Self { path, folder, device, spec, cache, staging_size: None, program: None };
        mounted.start().unwrap();
        mounted
    }

    /// Starts the program again with a bound on what waits for the store.
    pub(crate) fn bounded(mut self, bytes: u64) -> Self {
        self.staging_size = Some(bytes);
        self.kill_and_restart();
        self
    }

    fn start(&mut self) -> Result<(), String> {
        let (channel, theirs) = Channel::pair().unwrap();
        let mut command = Command::new(program());
        command.arg0("bastide-mount").stdin(Stdio::from(theirs)).env_clear().process_group(0);
        let child = command.spawn().unwrap();
        let staging = self.folder.path().join("staging");
        let start = Start {
            cache: self.cache.clone(),
            staging,
            staging_size: self.staging_size,
            mounts: vec![self.spec.clone()],
        };
        let device = self.device.try_clone().unwrap();
        channel.send_with(&bastide_mount::Command::Start(start), &[device]).unwrap();
        let channel = std::sync::Arc::new(channel);
        let (sender, reports) = mpsc::channel();
        let reading = std::sync::Arc::clone(&channel);
        std::thread::spawn(move || {
            while let Ok(Some((report, _))) = reading.receive::<Report>() {
                if sender.send(report).is_err() {
                    return;
                }
            }
        });
        let first = reports.recv_timeout(DEADLINE);
        self.program = Some(Program { child, channel, reports });
        match first {
            Ok(Report::Ready) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    fn program(&self) -> &Program {
        self.program.as_ref().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.program().child.id()
    }

    /// Kills the program as the kernel would, and starts another one for the same mount.
    pub(crate) fn kill_and_restart(&mut self) {
        self.kill();
        self.spec.resumed = true;
        self.start().unwrap();
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut program) = self.program.take() {
            drop(program.child.kill());
            program.child.wait().unwrap();
        }
    }

    /// Has the program store what was written within some time, and end: what it could not store, and where that is kept.
    pub(crate) fn stop(&mut self, within: Duration) -> Vec<(String, Option<PathBuf>)> {
        let mut program = self.program.take().unwrap();
        let within_ms = u64::try_from(within.as_millis()).ok();
        program.channel.send(&bastide_mount::Command::Stop { within_ms }).unwrap();
        let mut unstored = Vec::new();
        // Its end is the end of the reports.
        while let Ok(report) = program.reports.recv_timeout(DEADLINE) {
            if let Report::Unstored { path, kept, .. } = report {
                unstored.push((path, kept));
            }
        }
        drop(program.child.kill());
        program.child.wait().unwrap();
        unstored
    }

    /// Events that have come so far and until the next counts.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.ask().0
    }

    pub(crate) fn counts(&self) -> Counts {
        self.ask().1
    }

    fn ask(&self) -> (Vec<Event>, Counts) {
        let program = self.program();
        program.channel.send(&bastide_mount::Command::Counts).unwrap();
        let mut events = Vec::new();
        loop {
            match program.reports.recv_timeout(DEADLINE).unwrap() {
                Report::Event(event) => events.push(event),
                Report::Counts { counts, .. } => return (events, counts),
                _ => {}
            }
        }
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.join(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Forced, so that whoever still waits for an answer gets one, whatever has become of the program.
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::FORCE);
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
        self.kill();
        if let Some(cache) = &self.cache {
            drop(std::fs::remove_dir_all(&cache.folder));
        }
    }
}

/// Has the kernel forget the pages and names it has, so that it asks the program.
pub(crate) fn drop_pages() {
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// The program; another one, built for speed, where the benchmark says so.
fn program() -> std::ffi::OsString {
    let given = std::env::var_os("BASTIDE_TEST_MOUNT_PROGRAM");
    given.unwrap_or_else(|| env!("CARGO_BIN_EXE_bastide-sidecar").into())
}

/// Whether the big counts are wanted.
pub(crate) fn full() -> bool {
    std::env::var_os("BASTIDE_TEST_FULL").is_some()
}

/// Where random tests start.
pub(crate) fn seed() -> u64 {
    let given = std::env::var_os("BASTIDE_TEST_SEED");
    given.and_then(|seed| seed.to_str()?.parse().ok()).unwrap_or(1)
}
