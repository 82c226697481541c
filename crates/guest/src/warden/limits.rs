//! Limits on what commands may use, by cgroups where the machine has them.
//!
//! The group holds commands only: launchers join it, guest and init stay outside, so that a command that
//! runs out of memory takes nobody else with it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bastide_proto::boot::{Enforced, ResourceLimits};
use rustix::io::Errno;

mod hierarchy;

use hierarchy::{Controller, Hierarchy};

/// The period of the CPU quota, in microseconds.
const PERIOD_US: u64 = 100_000;

/// Where the groups of a session are noted, in its folder, before they are made: whoever removes the
/// folder removes them too, if nobody did before.
const NOTE: &str = "groups";

/// The most such a note can hold.
const MAX_NOTE: u64 = 64 * 1024;

/// The groups of one session.
#[derive(Debug, Default)]
pub(crate) struct Cgroups {
    folders: Vec<PathBuf>,
    /// Open `cgroup.procs` files: a process that writes 0 to one joins.
    pub(crate) cgroup_procs: Vec<OwnedFd>,
    /// Where the kernel counts OOM kills.
    pub(crate) oom_events: Option<OwnedFd>,
    /// What enforces which limit.
    pub(crate) enforced: Enforced,
}

impl Cgroups {
    /// Makes what groups this machine allows for the limits that are asked for. A limit that no group can
    /// hold is left to others.
    pub(crate) fn make(session_dir: &Path, limits: &ResourceLimits) -> Self {
        let mut cgroups = Self::default();
        let wanted = [
            (Controller::Memory, limits.memory),
            (Controller::Pids, limits.pids),
            (Controller::Cpu, limits.cpu_millis),
        ];
        if wanted.iter().all(|(_, limit)| limit.is_none()) {
            return cgroups;
        }
        let hierarchies = hierarchy::find().unwrap_or_default();
        for (controller, limit) in wanted {
            let Some(limit) = limit else { continue };
            let held = hierarchies.iter().filter(|one| one.controllers.contains(&controller));
            for hierarchy in held {
                if let Ok(by) = cgroups.limit(hierarchy, session_dir, controller, limit) {
                    *field_of(&mut cgroups.enforced, controller) = Some(by);
                    break;
                }
            }
        }
        cgroups
    }

    /// Puts one limit on the group of one hierarchy, making the group if it is not there yet.
    fn limit(
        &mut self,
        hierarchy: &Hierarchy,
        session_dir: &Path,
        controller: Controller,
        limit: u64,
    ) -> io::Result<String> {
        let name = session_dir.file_name().unwrap_or_default().to_string_lossy();
        let folder = hierarchy.folder.join(format!("bastide-{name}"));
        let is_new = !self.folders.contains(&folder);
        if is_new {
            note(session_dir, &folder)?;
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let made = apply(hierarchy, &folder, controller, limit).and_then(|()| {
            if is_new {
                let procs_file = File::options().write(true).open(folder.join("cgroup.procs"))?;
                self.cgroup_procs.push(procs_file.into());
            }
            Ok(())
        });
        if let Err(error) = made {
            if is_new {
                // It is empty, and nobody knows of it.
                drop(fs::remove_dir(&folder));
            }
            return Err(error);
        }
        if controller == Controller::Memory {
            let events_file =
                if hierarchy.unified { "memory.events" } else { "memory.oom_control" };
            self.oom_events = File::open(folder.join(events_file)).ok().map(Into::into);
        }
        if is_new {
            self.folders.push(folder);
        }
        let version = if hierarchy.unified { 2 } else { 1 };
        Ok(format!("cgroup v{version} {}", controller.name()))
    }

    /// Removes the groups; their processes must be gone.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for folder in &self.folders {
            remove(folder)?;
        }
        Ok(())
    }
}

fn note(session_dir: &Path, group: &Path) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).open(session_dir.join(NOTE))?;
    file.write_all(&[group.as_os_str().as_bytes(), b"\n"].concat())
}

/// Removes the groups that are noted in a session's folder. Nobody of the session lives any more.
pub(super) fn remove_noted(session_dir: &Path) -> io::Result<()> {
    let mut noted = Vec::new();
    match File::open(session_dir.join(NOTE)) {
        Ok(file) => file.take(MAX_NOTE).read_to_end(&mut noted)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for line in noted.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        remove(Path::new(OsStr::from_bytes(line)))?;
    }
    Ok(())
}

fn field_of(enforced: &mut Enforced, controller: Controller) -> &mut Option<String> {
    match controller {
        Controller::Memory => &mut enforced.memory,
        Controller::Pids => &mut enforced.pids,
        Controller::Cpu => &mut enforced.cpu,
    }
}

fn apply(
    hierarchy: &Hierarchy,
    folder: &Path,
    controller: Controller,
    limit: u64,
) -> io::Result<()> {
    let write = |file: &str, text: String| fs::write(folder.join(file), text);
    match (controller, hierarchy.unified) {
        (Controller::Memory, true) => {
            write("memory.max", limit.to_string())?;
            // Without this, what does not fit goes to the disk, very slowly; a kernel without swap has
            // no such file.
            drop(write("memory.swap.max", "0".to_owned()));
            Ok(())
        }
        (Controller::Memory, false) => {
            write("memory.limit_in_bytes", limit.to_string())?;
            drop(write("memory.memsw.limit_in_bytes", limit.to_string()));
            Ok(())
        }
        (Controller::Pids, _) => write("pids.max", limit.to_string()),
        (Controller::Cpu, unified) => {
            let quota = (limit * PERIOD_US / 1000).max(1000);
            if unified {
                write("cpu.max", format!("{quota} {PERIOD_US}"))
            } else {
                write("cpu.cfs_period_us", PERIOD_US.to_string())?;
                write("cpu.cfs_quota_us", quota.to_string())
            }
        }
    }
}

/// Removes a group that may still be letting go of its last process.
fn remove(folder: &Path) -> io::Result<()> {
    const TRIES: usize = 200;
    for _ in 0..TRIES {
        match rustix::fs::rmdir(folder) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Where groups can be read only, as in a container, the one that was noted was never made.
            Err(Errno::ROFS) if !folder.exists() => return Ok(()),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno.into()),
        }
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        // Nothing is waited for but time.
        let _ = rustix::event::poll(&mut [], Some(&pause));
    }
    Err(io::ErrorKind::ResourceBusy.into())
}
