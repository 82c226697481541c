//! Why a sandbox could not be built, and the one command that would allow it.

use std::fs;
use std::io;

use bastide::{Error, ErrorKind};
use bastide_proto::boot::BootFailure;
use rustix::io::Errno;

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

/// What a boot failed at, in words.
pub(crate) fn because(failure: &BootFailure) -> String {
    let system = io::Error::from_raw_os_error(failure.errno);
    format!("cannot {}: {system}", failure.step)
}

/// What helps where user namespaces can be had but are of no use.
fn way_out(failure: &BootFailure) -> Option<String> {
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

/// The error of a boot that failed.
pub(crate) fn refused(failure: &BootFailure) -> Error {
    let message = because(failure);
    if !failure.no_user_namespaces {
        let error = Error::new(ErrorKind::Unsupported, message)
            .with("step", failure.step.as_str())
            .with("errno", failure.errno);
        return match way_out(failure) {
            Some(hint) => error.hint(hint),
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
    .with("step", failure.step.as_str())
    .with("errno", failure.errno);
    error.hint(match setting {
        Some((_, _, command)) => format!("allow them with `{command}`"),
        None => "if this is a container, start it with `--security-opt seccomp=unconfined`; \
                 otherwise allow them with `sudo sysctl -w user.max_user_namespaces=15000`"
            .to_owned(),
    })
}
