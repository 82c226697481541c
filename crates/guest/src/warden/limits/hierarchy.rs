//! Where this machine keeps its cgroups.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What can be limited by a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// A place where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// The folder to make groups in.
    pub(crate) folder: PathBuf,
    /// What groups there can limit.
    pub(crate) controllers: Vec<Controller>,
    /// Whether it is the one hierarchy of version 2.
    pub(crate) unified: bool,
}

/// Every place where this process can make groups, the newer version first.
pub(crate) fn find() -> io::Result<Vec<Hierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let mut found = places(&mounts, &own);
    for hierarchy in found.iter_mut().filter(|hierarchy| hierarchy.unified) {
        // A group gives its children only what it was told to.
        let given = fs::read_to_string(hierarchy.folder.join("cgroup.subtree_control"));
        hierarchy.controllers = named(&given.unwrap_or_default(), char::is_whitespace);
    }
    found.retain(|hierarchy| !hierarchy.controllers.is_empty());
    Ok(found)
}

fn named(text: &str, between: impl Fn(char) -> bool) -> Vec<Controller> {
    let words: Vec<_> = text.split(between).collect();
    Controller::ALL.into_iter().filter(|one| words.contains(&one.name())).collect()
}

/// The places to try: the own group of each hierarchy, and in version 2 those around it, because a group
/// with processes in it cannot have limited children.
fn places(mounts: &str, own: &str) -> Vec<Hierarchy> {
    let mut unified = Vec::new();
    let mut separate = Vec::new();
    for line in mounts.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let fields: Vec<_> = place.split(' ').collect();
        let (Some(root), Some(at)) = (fields.get(3), fields.get(4)) else { continue };
        let mut kind = kind.split(' ');
        match kind.next() {
            Some("cgroup2") => {
                let Some(folder) = own_group(own, "").and_then(|group| beneath(root, at, group))
                else {
                    continue;
                };
                let around = folder.ancestors().take_while(|one| one.starts_with(at));
                unified.extend(around.map(|folder| Hierarchy {
                    folder: folder.to_owned(),
                    controllers: Vec::new(),
                    unified: true,
                }));
            }
            Some("cgroup") => {
                let controllers = named(kind.nth(1).unwrap_or_default(), |letter| letter == ',');
                let Some(first) = controllers.first() else { continue };
                let group = own_group(own, first.name());
                let Some(folder) = group.and_then(|group| beneath(root, at, group)) else {
                    continue;
                };
                separate.push(Hierarchy { folder, controllers, unified: false });
            }
            _ => {}
        }
    }
    unified.into_iter().chain(separate).collect()
}

/// This process's group in the hierarchy with a controller; version 2 has no name.
fn own_group<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers) = (fields.next()?, fields.next()?);
        let wanted = match controller {
            "" => number == "0" && controllers.is_empty(),
            name => controllers.split(',').any(|one| one == name),
        };
        fields.next().filter(|_| wanted)
    })
}

/// Where a group is in the file system: the mount may show only a part of the hierarchy.
fn beneath(root: &str, at: &str, group: &str) -> Option<PathBuf> {
    let rest = Path::new(group).strip_prefix(root).ok()?;
    Some(Path::new(at).join(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_groups_of_either_version() {
        let hybrid = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      33 31 0:30 / /sys/fs/cgroup/memory rw shared:3 - cgroup cgroup rw,memory\n\
                      34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/api/one\n1:cpu:/\n0::/\n";
        let found = places(hybrid, own);
        let folders: Vec<_> = found.iter().map(|one| one.folder.as_path()).collect();
        let want =
            ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory/api/one"];
        assert_eq!(folders, want.map(Path::new));
        assert_eq!(found[2].controllers, [Controller::Memory]);

        let pure = "24 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let own = "0::/user.slice/user-1000.slice/session-2.scope\n";
        let found = places(pure, own);
        let folders: Vec<_> = found.iter().map(|one| one.folder.as_path()).collect();
        let want = [
            "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope",
            "/sys/fs/cgroup/user.slice/user-1000.slice",
            "/sys/fs/cgroup/user.slice",
            "/sys/fs/cgroup",
        ];
        assert_eq!(folders, want.map(Path::new));
    }

    #[test]
    fn knows_the_part_a_container_sees() {
        let mounts = "9 8 0:1 /docker/abc /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n";
        let found = places(mounts, "8:pids:/docker/abc/inner\n");
        assert_eq!(found[0].folder, Path::new("/sys/fs/cgroup/pids/inner"));
        assert_eq!(places(mounts, "8:pids:/elsewhere\n"), []);
    }
}
