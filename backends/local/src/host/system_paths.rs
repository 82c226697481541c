//! Places of the host that are no sandbox's.

use std::path::Path;

use bastide::{Error, ErrorKind, Result};

use crate::user::ID_LOCKS;

/// Where the kernel and hardware show themselves: nothing of it is anybody's workspace or grant.
const KERNEL: [&str; 3] = ["/dev", "/proc", "/sys"];

/// What a system runs from.
const SYSTEM: [&str; 10] = [
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/sbin",
    "/usr",
    "/var/lib/dpkg",
];

/// Folders in those that are people's own.
const PEOPLES: [&str; 2] = ["/usr/local", "/usr/src"];

/// Folders that are something else inside, or have to be there for others.
const SHARED: [&str; 8] =
    ["/home", "/opt", "/root", "/run", "/tmp", "/usr/local", "/var", "/var/tmp"];

/// Refuses a place that must not be a sandbox's: on the host, where links lead, and inside.
pub(super) fn refuse_system_path(
    what: &str,
    place: &Path,
    home: &Path,
    writable: bool,
) -> Result<()> {
    let refused = |why: &str| {
        let error = Error::new(ErrorKind::InvalidInput, format!("{what}: {why}"));
        Err(error.with_context("path", place.display().to_string()))
    };
    let holds = |other: &str| Path::new(other).starts_with(place);
    let is_in = |other: &str| place.starts_with(other);
    if place == Path::new("/") {
        return refused("it is all of the file system");
    }
    let own = [home, Path::new(ID_LOCKS)];
    if own.iter().any(|own| own.starts_with(place) || place.starts_with(own)) {
        return refused("Bastide keeps its own state there");
    }
    if KERNEL.iter().any(|system| holds(system) || is_in(system)) {
        return refused("it belongs to the kernel");
    }
    if SYSTEM.iter().any(|system| holds(system)) || SHARED.iter().any(|shared| holds(shared)) {
        return refused("it lies over a system folder");
    }
    let is_peoples = PEOPLES.iter().any(|peoples| is_in(peoples));
    if writable && !is_peoples && SYSTEM.iter().any(|system| is_in(system)) {
        return refused("it lies in a system folder");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_a_sandboxs() {
        let home = Path::new("/home/user/.local/share/bastide");
        let cases = [
            ("/home/user/project", true, true),
            ("/tmp/project", true, true),
            ("/opt/app", true, true),
            ("/usr/local/app", true, true),
            ("/srv", true, true),
            ("/etc/app", false, true),
            ("/usr/share/doc", false, true),
            ("/", false, false),
            ("/home", true, false),
            ("/home/user", true, false),
            ("/home/user", false, false),
            ("/home/user/.local/share/bastide/sessions", false, false),
            ("/run/bastide/id-ranges", true, false),
            ("/run", false, false),
            ("/tmp", true, false),
            ("/usr", true, false),
            ("/usr/local", true, false),
            ("/usr/lib/app", true, false),
            ("/etc", false, false),
            ("/etc/app", true, false),
            ("/proc/1/root", false, false),
            ("/dev/shm/x", true, false),
            ("/sys/fs", false, false),
            ("/var", true, false),
        ];
        for (place, writable, fine) in cases {
            let checked = refuse_system_path("it", Path::new(place), home, writable);
            assert_eq!(checked.is_ok(), fine, "{place} writable {writable}: {checked:?}");
        }
    }
}
