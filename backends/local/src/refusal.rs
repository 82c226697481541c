//! Why a sandbox could not be built, and the one command that would allow it.

use std::fs;
use std::io;

use bastide::{Error, ErrorKind};
use bastide_proto::boot::BootFailure;

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

/// The error of a boot that failed.
pub(crate) fn refused(failure: &BootFailure) -> Error {
    let message = because(failure);
    if !failure.no_user_namespaces {
        return Error::new(ErrorKind::Unsupported, message)
            .with("step", failure.step.as_str())
            .with("errno", failure.errno);
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
