//! Why a sandbox could not be built, and the one command that would allow it.

use std::fs;
use std::io;

use bastide::{Error, ErrorKind};
use bastide_proto::boot::BootFailure;
use rustix::io::Errno;

use crate::{ladder, namespaces};

/// Settings that forbid user namespaces: the file, the value that forbids, and the command that allows.
const SETTINGS: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sudo sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    ("/proc/sys/user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
];

/// What a setting says that limits nothing.
const UNLIMITED: u64 = i32::MAX.unsigned_abs() as u64;

/// What a boot failed at, in words.
pub(crate) fn because(failure: &BootFailure) -> String {
    let system = io::Error::from_raw_os_error(failure.errno);
    format!("cannot {}: {system}", failure.step)
}

/// What helps where user namespaces can be had but are of no use.
fn remedy(failure: &BootFailure) -> Option<String> {
    let denied = [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error).contains(&failure.errno);
    let (file, forbids, command) = SETTINGS[0];
    if denied && fs::read_to_string(file).is_ok_and(|value| value.trim() == forbids) {
        return Some(format!("allow them with `{command}`"));
    }
    // In a container parts of it are covered, and the kernel shows nobody a whole one.
    (denied && failure.step.contains("proc")).then(|| {
        "start the container with `docker run --security-opt systempaths=unconfined \
         --security-opt seccomp=unconfined …`"
            .to_owned()
    })
}

/// The error where the machine has what a sandbox is made of, but no room for one more.
fn no_room(failure: &BootFailure, message: &str) -> Option<Error> {
    let (why, hint) = match Errno::from_raw_os_error(failure.errno) {
        _ if ladder::is_missing(failure) => return None,
        Errno::NOSPC if failure.no_namespaces => {
            let all: Vec<_> = namespaces::all()
                .iter()
                .filter(|setting| setting.value < UNLIMITED)
                .map(|setting| format!("{}={}", setting.name, setting.value))
                .collect();
            let why =
                format!("as many namespaces exist as this machine allows ({})", all.join(", "));
            (why, "end sandboxes that are not needed, or raise the setting with `sudo sysctl -w`")
        }
        Errno::USERS if failure.no_namespaces => (
            "namespaces are nested as deep as the kernel allows".to_owned(),
            "start it outside the sandboxes it is in",
        ),
        Errno::AGAIN => (
            "as many processes exist as this user or its control group may have".to_owned(),
            "end some, or raise `ulimit -u` or the group's `pids.max`",
        ),
        Errno::MFILE | Errno::NFILE => (
            "as many files are open as may be".to_owned(),
            "close some, or raise `ulimit -n` or `fs.file-max`",
        ),
        Errno::NOMEM => ("the machine is out of memory".to_owned(), "end something else"),
        _ => return None,
    };
    Some(Error::new(ErrorKind::LimitExceeded, format!("{message}: {why}")).with_hint(hint))
}

/// The error of a boot that failed.
pub(crate) fn refused(failure: &BootFailure) -> Error {
    let message = because(failure);
    if let Some(error) = no_room(failure, &message) {
        return error.with_context("step", failure.step.as_str()).with_errno(failure.errno);
    }
    let is_missing = ladder::is_missing(failure);
    if !failure.no_namespaces || !is_missing {
        // A step that knows a way out failed because of what was asked for.
        let is_asked = failure.hint.is_some();
        let kind = if is_missing || is_asked { ErrorKind::Unsupported } else { ErrorKind::Io };
        let error = Error::new(kind, message)
            .with_context("step", failure.step.as_str())
            .with_errno(failure.errno);
        return match failure.hint.clone().or_else(|| remedy(failure)) {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
    }
    let setting = SETTINGS.iter().find(|(file, forbids, _)| {
        fs::read_to_string(file).is_ok_and(|value| value.trim() == *forbids)
    });
    let error = Error::new(
        ErrorKind::Unsupported,
        match setting {
            Some((file, value, _)) => {
                format!("this machine forbids user namespaces ({file} is {value}): {message}")
            }
            None => format!("this machine forbids user namespaces: {message}"),
        },
    )
    .with_context("step", failure.step.as_str())
    .with_errno(failure.errno);
    error.with_hint(match setting {
        Some((_, _, command)) => format!("allow them with `{command}`"),
        None => "if this is a container, start it with `--security-opt seccomp=unconfined`; \
                 otherwise allow them with `sudo sysctl -w user.max_user_namespaces=15000`"
            .to_owned(),
    })
}
