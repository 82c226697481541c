//! Compilers and interpreters that the caller keeps outside the system folders.
//!
//! A folder of the search path is shown with those of its neighbours that programs in it need, such as
//! `lib` beside `bin`. The folder around them is never shown whole: that is where credentials lie.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use crate::homes::Homes;

/// Neighbours of a folder of programs that hold programs and libraries, and nobody's secrets.
const NEIGHBOURS: [&str; 15] = [
    "bin",
    "git",
    "include",
    "jre",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "pkg",
    "plugins",
    "registry",
    "sbin",
    "shims",
    "toolchains",
    "versions",
];

/// What else a folder of programs needs, by the name of the folder around it.
const COMPANIONS: [(&str, &str); 4] = [
    (".cargo", "../.rustup/toolchains"),
    (".cargo", "../.rustup/settings.toml"),
    (".cargo", "../.rustup/update-hashes"),
    (".pyenv", "../.pyenv/version"),
];

/// How programs are told where they are installed, since their user's home is another one inside: by
/// the name of the folder around them, the variable, and the place.
const VARIABLES: [(&str, &str, &str); 2] =
    [(".cargo", "RUSTUP_HOME", "../.rustup"), (".pyenv", "PYENV_ROOT", "../.pyenv")];

/// Folders that only exist for the machine, and must not be shown even if somebody searches them.
const NEVER: [&str; 9] = ["/", "/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var"];

/// What is known of the host.
#[derive(Clone, Copy)]
pub(crate) struct HostView<'a> {
    /// Whether a path is in a folder that is shown anyway.
    pub(crate) is_system: &'a dyn Fn(&Path) -> bool,
    /// Whether a path exists.
    pub(crate) exists: &'a dyn Fn(&Path) -> bool,
    pub(crate) homes: &'a Homes,
}

/// What to show, and what to tell programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Toolchains {
    /// Files and folders of the host, none of them inside another.
    pub(crate) shown: Vec<PathBuf>,
    /// The variables that tell programs where they are.
    pub(crate) variables: Vec<(String, String)>,
}

impl Toolchains {
    /// What the folders of a search path need, beyond the system folders that are there anyway.
    pub(crate) fn find<'a>(
        search_path: impl IntoIterator<Item = &'a Path>,
        look: HostView<'_>,
    ) -> Self {
        let HostView { is_system, exists, homes } = look;
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for folder in search_path {
            // Many a search path names a folder twice.
            if is_system(folder) || !seen.insert(folder) || !is_plain(folder) || !exists(folder) {
                continue;
            }
            let Some(around) = folder.parent() else { continue };
            if NEVER.iter().any(|never| Path::new(never) == around || Path::new(never) == folder) {
                continue;
            }
            // Somebody's home is nobody's toolchain, however it got into the search path.
            if homes.has_home(folder) {
                continue;
            }
            found.show(folder.to_owned());
            // Beside `bin` in a home lies whatever its owner keeps there under the same names.
            if homes.is_home(around) {
                continue;
            }
            // In a folder of programs that is no `bin`, such as a project's own, only the programs
            // themselves are meant.
            let conventional = folder.file_name().is_some_and(|name| {
                NEIGHBOURS.iter().any(|neighbour| Path::new(neighbour) == Path::new(name))
            });
            if !conventional {
                continue;
            }
            for neighbour in NEIGHBOURS.iter().map(|name| around.join(name)) {
                if exists(&neighbour) {
                    found.show(neighbour);
                }
            }
            for (name, companion) in COMPANIONS {
                if around.file_name().is_some_and(|around| around == name)
                    && let Some(companion) = resolve(around, companion)
                    && exists(&companion)
                {
                    found.show(companion);
                }
            }
            for (name, variable, place) in VARIABLES {
                if around.file_name().is_some_and(|around| around == name)
                    && let Some(place) = resolve(around, place)
                {
                    found.set_variable(variable, &place);
                }
            }
        }
        found
    }

    fn set_variable(&mut self, variable: &str, place: &Path) {
        let is_set = self.variables.iter().any(|(known, _)| known == variable);
        if let Some(place) = place.to_str().filter(|_| !is_set) {
            self.variables.push((variable.to_owned(), place.to_owned()));
        }
    }

    fn show(&mut self, path: PathBuf) {
        if self.shown.iter().any(|shown| path.starts_with(shown)) {
            return;
        }
        self.shown.retain(|shown| !shown.starts_with(&path));
        self.shown.push(path);
    }
}

/// Absolute, and without steps back: nothing that means another place inside than outside.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// A path beside `folder`, written with leading `..` only.
fn resolve(folder: &Path, relative: &str) -> Option<PathBuf> {
    match relative.strip_prefix("../") {
        Some(rest) => resolve(folder.parent()?, rest),
        None => Some(folder.join(relative)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [&str; 26] = [
        "/usr/bin",
        "/home/me/.cargo",
        "/home/me/.cargo/bin",
        "/home/me/.cargo/registry",
        "/home/me/.cargo/credentials.toml",
        "/home/me/.rustup",
        "/home/me/.rustup/toolchains",
        "/home/me/.rustup/settings.toml",
        "/home/me/.pyenv/shims",
        "/home/me/.pyenv/bin",
        "/home/me/.pyenv/versions",
        "/home/me/.pyenv/libexec",
        "/home/me/.local/bin",
        "/home/me/.local/lib",
        "/home/me/.local/share",
        "/home/me/.nvm/versions/node/v20/bin",
        "/home/me/.nvm/versions/node/v20/lib",
        "/home/me/project",
        "/home/me/project/scripts",
        "/tmp/bin",
        "/opt/tool/bin",
        "/home/me",
        "/home/me/bin",
        "/home/me/git",
        "/home/me/lib",
        "/home",
    ];

    fn find(search: &[&str]) -> (Vec<String>, Vec<String>) {
        let look = HostView {
            is_system: &|path| path.starts_with("/usr") || path.starts_with("/opt"),
            exists: &|path| HOST.iter().any(|known| Path::new(known) == path),
            homes: &Homes::default(),
        };
        let found = Toolchains::find(search.iter().map(Path::new), look);
        let shown = found.shown.into_iter().map(|path| path.display().to_string()).collect();
        let is_set = found.variables.into_iter().map(|(name, value)| format!("{name}={value}"));
        (shown, is_set.collect())
    }

    #[test]
    fn shows_programs_and_their_libraries_but_no_credentials() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["/usr/bin", "/opt/tool/bin"], &[]),
            (
                &["/home/me/.cargo/bin"],
                &[
                    "/home/me/.cargo/bin",
                    "/home/me/.cargo/registry",
                    "/home/me/.rustup/toolchains",
                    "/home/me/.rustup/settings.toml",
                ],
            ),
            (
                &["/home/me/.pyenv/shims", "/home/me/.pyenv/bin"],
                &[
                    "/home/me/.pyenv/shims",
                    "/home/me/.pyenv/bin",
                    "/home/me/.pyenv/libexec",
                    "/home/me/.pyenv/versions",
                ],
            ),
            (&["/home/me/.local/bin"], &["/home/me/.local/bin", "/home/me/.local/lib"]),
            (&["/home/me/project/scripts"], &["/home/me/project/scripts"]),
            (&["/home/me/bin"], &["/home/me/bin"]),
            (&["/home/me", "/home"], &[]),
            (&["/tmp/bin", "relative", "/home/me/../other/bin", "/missing/bin"], &[]),
        ];
        for (search, want) in cases {
            assert_eq!(find(search).0, *want, "{search:?}");
        }
    }

    #[test]
    fn tells_programs_where_they_are() {
        let search = ["/home/me/.cargo/bin", "/home/me/.pyenv/shims", "/home/me/.pyenv/bin"];
        let want = ["RUSTUP_HOME=/home/me/.rustup", "PYENV_ROOT=/home/me/.pyenv"];
        assert_eq!(find(&search).1, want);
    }
}
