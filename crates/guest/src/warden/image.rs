//! A workspace on a file system of its own, whose size is the limit on all that is in it.
//!
//! The file system lies in a file of the session's folder. The kernel reads it as it reads a disk, and
//! must not be given one that somebody forged: the file lies outside the sandbox, is made by a program
//! of the machine, and from then on only the kernel writes to it.
//!
//! Nothing has to be taken down. The mount is attached nowhere but inside and goes with the sandbox,
//! the loop device goes with the mount, and the file stays for the session's next start.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use bastide_proto::boot::{BootSpec, Image, UserAndGroup};
use rustix::fs::{AtFlags, unlinkat};

use super::sandbox_base::SandboxBase;
use crate::jail::{BindOverride, StepContext, StepError, file_system, shift};
use crate::sys::{attach_loop, behind_loop, free_loop};

/// What holds the limit on disk.
const SIZED: &str = "size of the workspace's own file system, /tmp and /dev/shm";

/// The same where commands may also write to files of the host.
const SIZED_AND_EACH_FILE: &str = "size of the workspace's own file system, /tmp and /dev/shm; \
                                   rlimit fsize, each file elsewhere";

/// How often somebody else may take the device that was free a moment ago.
const TRIES: usize = 64;

/// From this size on a file system has a journal of [`JOURNAL_MIB`]. All of the journal is taken from the
/// host's disk at once, and what its maker would choose grows to a gigabyte.
const LARGE: u64 = 1 << 30;
const JOURNAL_MIB: &str = "size=16";

/// What becomes of the file system of a session's workspace.
#[derive(Debug, Default)]
pub(super) struct Workspace<'a> {
    /// The mount, in the place of the folder that would be the workspace.
    pub(super) bind_override: Option<BindOverride<'a>>,
    /// Its device, or why there is none; nothing where none was asked for.
    pub(super) device: Option<Result<u64, String>>,
    /// What holds the limit on disk, if it does.
    pub(super) limited_by: Option<String>,
}

impl<'a> Workspace<'a> {
    /// Mounts the file system of the workspace, where it is to have one. A session that can do without
    /// has the folder instead; one whose files lie in the image cannot.
    pub(super) fn mount(spec: &'a BootSpec, base: &SandboxBase) -> Result<Self, StepError> {
        let Some(image) = &spec.image else { return Ok(Self::default()) };
        match mount(image, base) {
            Ok((mount, device)) => {
                let by = if spec.writable.len() > 1 { SIZED_AND_EACH_FILE } else { SIZED };
                Ok(Self {
                    bind_override: Some(BindOverride { of: &image.instead_of, mount }),
                    device: Some(Ok(device)),
                    limited_by: spec.limits.disk.map(|_| by.to_owned()),
                })
            }
            // A machine that cannot is not one that has no room just now.
            Err(why) if image.maker.is_some() && why.is_missing() => {
                // Where there is an image, the files are in it.
                drop(fs::remove_file(&image.path));
                Ok(Self { device: Some(Err(why.to_string())), ..Self::default() })
            }
            // That its files cannot be had on this rung is no reason to have none on another.
            Err(why) => Err(why.of_session()),
        }
    }
}

/// Mounts an image, attached nowhere, and says what its device is.
fn mount(image: &Image, base: &SandboxBase) -> Result<(OwnedFd, u64), StepError> {
    // Whoever made the file system owns its top folder.
    let owners = base.namespace_of(Some(UserAndGroup { uid: 0, gid: 0 }))?;
    if let Some(maker) = &image.maker {
        make(image, maker)?;
    }
    let open = || format!("open {}", image.path.display());
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&image.path)
        .step(open)?;
    let found = file.metadata().step(open)?;
    if found.len() != image.bytes {
        let step = format!(
            "use {}, which has {} bytes and not the {} of the limit on disk",
            image.path.display(),
            found.len(),
            image.bytes
        );
        return Err(StepError::from_errno(&step, libc::EINVAL));
    }
    let device = || format!("find a loop device for {}", image.path.display());
    // Held until it is mounted: it lets go of the file when nobody has it any more.
    let (name, _held) = match attached(image, (found.dev(), found.ino())).step(device)? {
        Some(device) => device,
        None => attach(&file).step(device)?,
    };
    let name = CString::new(name).map_err(io::Error::from).step(device)?;
    // A disk that fails is left alone from then on, so that what is on it can be saved.
    let options = [(c"source", name.as_c_str()), (c"errors", c"remount-ro")];
    let mount = file_system(c"ext4", &options)?;
    if image.maker.is_some() {
        // For a repair that nobody makes, and nothing of the session's.
        let removed = unlinkat(&mount, c"lost+found", AtFlags::REMOVEDIR);
        removed.step(|| "empty the workspace".to_owned())?;
    }
    shift(&mount, owners.as_fd())?;
    let device = rustix::fs::fstat(&mount).step(|| "look at the workspace".to_owned())?.st_dev;
    Ok((mount, device))
}

/// Makes an image. It has its name once it is whole: a session whose image is there has its files in it.
fn make(image: &Image, maker: &Path) -> Result<(), StepError> {
    let step = || format!("make {}", image.path.display());
    let unfinished = image.path.with_extension("new");
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&unfinished)
        .step(step)?;
    // Full of holes: it takes from the host's disk what is written to it.
    file.set_len(image.bytes).step(step)?;
    drop(file);
    let journal: &[&str] = if image.bytes >= LARGE { &["-J", JOURNAL_MIB] } else { &[] };
    let made = Command::new(maker)
        // Nothing is set aside for the machine's root, who is not inside.
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-E", "root_owner=0:0"])
        .args(journal)
        .arg(&unfinished)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .step(|| format!("run {}", maker.display()))?;
    if !made.success() {
        drop(fs::remove_file(&unfinished));
        let step = format!("make a file system of {} bytes", image.bytes);
        return Err(StepError::from_errno(&step, libc::EINVAL));
    }
    fs::rename(&unfinished, &image.path).step(step)
}

/// The loop device that still stands for an image: whoever had a file of it open may have it open yet.
/// Two devices for one image would not know of each other, and between them destroy it.
fn attached(image: &Image, file: (u64, u64)) -> io::Result<Option<(String, File)>> {
    // The path may be another to whoever attached it, but for its end.
    let mut parts = image.path.components().rev();
    let (name, session) = (parts.next(), parts.next());
    for entry in fs::read_dir("/sys/block")? {
        let Ok(number) = entry?.file_name().into_string() else { continue };
        let Ok(behind) = fs::read(format!("/sys/block/{number}/loop/backing_file")) else {
            continue;
        };
        let behind = behind.strip_suffix(b"\n").unwrap_or(&behind);
        let mut parts = Path::new(std::ffi::OsStr::from_bytes(behind)).components().rev();
        if (parts.next(), parts.next()) != (name, session) {
            continue;
        }
        let path = format!("/dev/{number}");
        let device = File::options().read(true).write(true).open(&path)?;
        match behind_loop(&device) {
            Ok(found) if found == file => return Ok(Some((path, device))),
            Ok(_) => {}
            // It let go of its file just now.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Has a loop device that nobody uses stand for a file.
fn attach(file: &File) -> io::Result<(String, File)> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..TRIES {
        let path = format!("/dev/loop{}", free_loop(&control)?);
        let device = File::options().read(true).write(true).open(&path)?;
        match attach_loop(&device, file) {
            Ok(()) => return Ok((path, device)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}
