//! Leaving walls out, to see which trials notice (`cargo xtask walls`).
//!
//! Only a guest that was built with `--cfg bastide_removable_walls` can do without one. In every other
//! guest the answer is a constant, and nothing of this is left; `cargo xtask check` looks.

#[cfg(not(bastide_removable_walls))]
use bastide_proto::boot::{BaseSpec, BootSpec};

/// What can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(bastide_removable_walls), expect(dead_code, reason = "some change only the orders"))]
pub(crate) enum Wall {
    /// The filter of system calls.
    Seccomp,
    /// The filters of guest and init themselves.
    OwnFilters,
    /// Landlock over files.
    LandlockFiles,
    /// Landlock over signals and abstract sockets.
    LandlockScope,
    /// Giving capabilities up.
    Capabilities,
    /// That no program gives privileges, and with it the filter and Landlock, which take it along.
    NoNewPrivileges,
    /// That mounts ignore set-user-id bits.
    SetUserId,
    /// That mounts of the host's files are read-only.
    ReadOnly,
    /// The network namespace.
    Network,
    /// The ipc namespace.
    Ipc,
    /// Ending what descends from a session without namespaces.
    Ending,
    /// That our own processes cannot be traced.
    Untraceable,
    /// That descriptors close when a command starts.
    CloseOnExec,
    /// That folders handed to the guest are mounts of their own.
    FoldersAlone,
    /// That only what is meant is in the new root.
    OwnRoot,
    /// The pid namespace, and a `/proc` of its own.
    Processes,
    /// That nothing with a set-id mode is left in folders of the host.
    SetIdModes,
    /// That what is left there has the owner of the folder.
    OneOwner,
}

/// Whether this guest does without a wall.
#[cfg(not(bastide_removable_walls))]
pub(crate) const fn is_removed(_: Wall) -> bool {
    false
}

/// Changes the base of a guest that does without walls.
#[cfg(not(bastide_removable_walls))]
pub(crate) const fn alter_base_spec(_: &mut BaseSpec) {}

/// What it builds besides.
#[cfg(not(bastide_removable_walls))]
pub(crate) const fn alter_session(_: &BaseSpec, _: &mut BootSpec) {}

#[cfg(bastide_removable_walls)]
pub(crate) use removable::{alter_base_spec, alter_session, is_removed};

#[cfg(bastide_removable_walls)]
mod removable {
    use std::path::{Path, PathBuf};

    use bastide_proto::boot::{BaseSpec, BootSpec, Ids, RootStep, Rung};

    use super::Wall;

    /// Which walls are left out, written over in the program itself: their names, with spaces around.
    static LIST: [u8; 160] = list();

    const fn list() -> [u8; 160] {
        let (mut list, mark, mut at) = ([b' '; 160], b"bastide-without:", 0);
        while at < mark.len() {
            list[at] = mark[at];
            at += 1;
        }
        list
    }

    /// What of the host the new root has besides where it is not the sandbox's own.
    const BESIDES: [&str; 5] = ["/home", "/root", "/tmp", "/var", "/run"];

    pub(crate) fn is_removed(wall: Wall) -> bool {
        let list = std::hint::black_box(&LIST);
        let name = format!("{wall:?}");
        list.split(|byte| *byte == b' ').any(|word| word == name.as_bytes())
    }

    pub(crate) fn alter_base_spec(base_spec: &mut BaseSpec) {
        if is_removed(Wall::OneOwner)
            && let Ids::Range { only, .. } = &mut base_spec.ids
        {
            *only = None;
        }
        if is_removed(Wall::Network) {
            base_spec.own_network = false;
            if let Rung::Landlock(walls) = &mut base_spec.rung {
                walls.network = true;
            }
        }
        if is_removed(Wall::Processes) {
            for step in &mut base_spec.steps {
                if let RootStep::Proc { target } = step {
                    let target = target.clone();
                    *step = RootStep::Bind {
                        source: PathBuf::from("/proc"),
                        target,
                        writable: true,
                        version: 0,
                    };
                }
            }
        }
    }

    pub(crate) fn alter_session(base_spec: &BaseSpec, spec: &mut BootSpec) {
        if is_removed(Wall::OneOwner) {
            for step in &mut spec.steps {
                if let RootStep::BindOwned { owner, .. } = step {
                    *owner = None;
                }
            }
            spec.single_user_reason = None;
        }
        if base_spec.rung != Rung::Namespaces || !is_removed(Wall::OwnRoot) {
            return;
        }
        for folder in BESIDES.into_iter().filter(|folder| Path::new(folder).is_dir()) {
            let target = folder.to_owned();
            spec.steps.push(RootStep::Dir { target: target.clone(), mode: 0o755 });
            let source = PathBuf::from(folder);
            spec.steps.push(RootStep::Bind { source, target, writable: false, version: 0 });
        }
    }
}
