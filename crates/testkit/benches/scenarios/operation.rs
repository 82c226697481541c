//! What is measured, whoever does it.

use std::fmt;

use crate::workload::Workload;

/// One thing a user waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// A new sandbox, up to the output of its first command.
    Create,
    /// The end of a sandbox in which nothing runs.
    Delete,
    /// A command in a live sandbox, to its end.
    Exec,
    /// As many commands at the same time, until all are over.
    ExecMany(usize),
    /// A command that prints so many bytes, until they are here.
    Output(u64),
    /// A file of so many bytes, out of the sandbox.
    Read(u64),
    /// A file of so many bytes, into the sandbox.
    Write(u64),
    /// A folder with so many files, listed.
    List(usize),
    /// A key typed into a terminal, until its echo is here.
    Echo,
    /// A sandbox made, used for one command and removed, so many at a time: the time for each.
    Sessions(usize),
    /// A folder of the host, copied into a new sandbox's workspace.
    FolderIn(Workload),
    /// A workspace, saved where nothing of it was saved before, until the snapshot is there.
    Save(Workload),
    /// A workspace that was saved before: a hundredth of its files changed since, or nothing where it is one
    /// file.
    SaveAgain(Workload),
    /// A snapshot, restored into the empty workspace of a new sandbox.
    Restore(Workload),
    /// So many events, told to an outbox until all are there: the time for each.
    Events(usize),
    /// Three hundred packages installed from a folder.
    Install,
    /// A point of a workspace that has not changed since the last one.
    Checkpoint(Workload),
    /// A point of a workspace of which a hundredth of the files changed since the last one.
    CheckpointChanged(Workload),
    /// A command of which a journal makes a point, in this workspace.
    JournaledExec(Workload),
    /// One changed file taken back, in this workspace.
    UndoFile(Workload),
    /// A fork with this workspace.
    Fork(Workload),
    /// So many forks at once, up to the first output of the last.
    Forks(usize),
}

impl Operation {
    /// What it works on, if that lies on the host.
    pub(crate) fn workload(self) -> Option<Workload> {
        match self {
            Self::FolderIn(work)
            | Self::Save(work)
            | Self::SaveAgain(work)
            | Self::Restore(work)
            | Self::Checkpoint(work)
            | Self::CheckpointChanged(work)
            | Self::JournaledExec(work)
            | Self::UndoFile(work)
            | Self::Fork(work) => Some(work),
            _ => None,
        }
    }

    /// Whether it is measured on a disk: files in memory (tmpfs) are read at every save, because their
    /// times do not show what is written through a mapping.
    pub(crate) fn is_on_disk(self) -> bool {
        matches!(self, Self::SaveAgain(_)) || self.is_of_points()
    }

    /// The same of one thing, where it is about many.
    pub(crate) fn once(self) -> Self {
        match self {
            Self::Forks(_) => Self::Forks(1),
            other => other,
        }
    }

    /// Whether it is about points of a workspace.
    pub(crate) fn is_of_points(self) -> bool {
        matches!(
            self,
            Self::Checkpoint(_)
                | Self::CheckpointChanged(_)
                | Self::JournaledExec(_)
                | Self::UndoFile(_)
                | Self::Fork(_)
                | Self::Forks(_)
        )
    }
}

impl fmt::Display for Operation {
    /// The words the program that drives the reference understands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("create"),
            Self::Delete => f.write_str("delete"),
            Self::Exec => f.write_str("exec"),
            Self::ExecMany(count) => write!(f, "exec_many {count}"),
            Self::Output(bytes) => write!(f, "output {bytes}"),
            Self::Read(bytes) => write!(f, "read {bytes}"),
            Self::Write(bytes) => write!(f, "write {bytes}"),
            Self::List(count) => write!(f, "list {count}"),
            Self::Echo => f.write_str("echo"),
            Self::Sessions(count) => write!(f, "sessions {count}"),
            Self::FolderIn(work) => write!(f, "folder_in {}", work.folder().display()),
            Self::Save(work) => write!(f, "save {}", work.folder().display()),
            Self::SaveAgain(work) => write!(f, "save_again {}", work.folder().display()),
            Self::Restore(work) => write!(f, "restore {}", work.folder().display()),
            Self::Events(count) => write!(f, "events {count}"),
            Self::Install => f.write_str("install"),
            Self::Checkpoint(work) => write!(f, "checkpoint {work}"),
            Self::CheckpointChanged(work) => write!(f, "checkpoint_changed {work}"),
            Self::JournaledExec(work) => write!(f, "journaled_exec {work}"),
            Self::UndoFile(work) => write!(f, "undo_file {work}"),
            Self::Fork(work) => write!(f, "fork {work}"),
            Self::Forks(count) => write!(f, "forks {count}"),
        }
    }
}
