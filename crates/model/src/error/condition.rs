//! What an error says beyond its kind, as types: programs branch on these, never on words or on keys
//! of the context.

use super::{Error, ErrorKind, FieldError};

/// A condition that more than one failure of a kind can be told apart by.
///
/// Most have a [hint](Self::hint) that names what the library offers against them. A front end that
/// offers the same under another name, such as a flag of a command line, says that instead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Condition {
    /// Something in the snapshot store is not what was written.
    StoreDamaged,
    /// There is no such snapshot.
    SnapshotMissing,
    /// What a snapshot needs cannot be told, so nothing of the store was removed.
    SnapshotUnreadable,
    /// The folder of sessions cannot be used.
    HomeUnusable,
    /// A later version wrote the home.
    HomeNewer,
    /// There is no room for another session.
    NoRoom,
    /// The record of a session is not what was written.
    RecordDamaged,
    /// A session has files, and no record.
    RecordMissing,
    /// There is no such session.
    SessionMissing,
    /// The session of that id is being removed, or its removal was interrupted.
    SessionBeingRemoved(String),
    /// The making of the session of that id was interrupted.
    SessionNeverMade(String),
    /// The session of that id is being stopped.
    SessionBeingStopped(String),
    /// The session of that id is stopped.
    SessionStopped(String),
    /// The lease of the session of that id ran out.
    SessionExpired(String),
    /// The session of that id runs, started by an earlier version that cannot do what is asked for.
    SessionOfEarlierVersion(String),
    /// The session of that id was copied here, and the machine is the original's.
    SessionCopied(String),
    /// The session of that id has mounts whose keys are not on record.
    MountKeysMissing(String),
    /// A mount is unmounted, and not all that was written to it is in its store.
    MountNotStored,
    /// A member of an archive is refused, or goes beyond a limit.
    MemberRefused,
    /// What should be at that path inside could not be made.
    EntryNotMade(String),
    /// An agent cannot work without these variables, which hold its keys.
    CredentialsMissing(Vec<String>),
    /// A run cannot have the repository itself; a clone of it, it can.
    CloneAdvised,
    /// No image is named for a container.
    ImageUnnamed,
    /// The container engine has no network `bridge`.
    BridgeMissing,
    /// The container engine does not see the files of this host.
    EngineElsewhere,
    /// How a session was confined before cannot be told.
    RungUnknown,
    /// A grant at another path than its own, on a rung that has the host's paths.
    GrantMoved,
    /// A read-only grant in a writable one, on a rung that cannot hold that.
    GrantOverlaps,
    /// Commands would be root, because a folder they may write to is root's.
    FolderIsRoots,
    /// Folders that commands may write to belong to different users.
    FoldersOfTwoUsers,
    /// There is no loopback on this rung without a network.
    LoopbackMissing,
    /// A session has no points yet.
    NoPoints,
    /// There is nothing to undo in a session.
    NothingToUndo,
    /// A session has no such point.
    PointMissing,
    /// A point was removed, as there were too many or it was too old.
    PointThinned,
    /// A terminal is open in a session, and files would be replaced: ids of the session and of its process.
    TerminalOpen(String, u64),
    /// Something says no two points of a session.
    PointRangeMalformed,
    /// The files of a point are not in the store any more.
    PointDamaged,
    /// There is nothing at a path in that point.
    PathNotInPoint(String),
    /// Nobody knows who changed files of a folder of the caller's.
    EditsUnattributed,
    /// Others than commands changed what would be replaced.
    EditsInTheWay,
    /// Nobody saw the command of a point end.
    CommandEndUnseen,
    /// The workspace changed since something in it was undone.
    ChangedSinceUndo,
    /// Neither of two sessions is a fork of the other, nor are both of a third.
    NothingInCommon,
    /// A session is to have a network with a policy, and no policy.
    PolicyUnnamed,
    /// The network of a session has no policy.
    PolicyMissing,
    /// Nothing waits for an approval under that number in the session of that id.
    ApprovalMissing(String),
    /// The session of that id does not run.
    SessionNotRunning(String),
}

impl Condition {
    /// What the library offers against it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::StoreDamaged => "`Store::verify` says which snapshots and files are affected",
            Self::SnapshotMissing => "`Store::list` lists them",
            Self::SnapshotUnreadable => {
                "nothing was removed; `Store::remove` gives up a snapshot that is lost"
            }
            Self::HomeUnusable => "choose another folder as the home",
            Self::HomeNewer => {
                "use the version that wrote it, or another folder as the home; nothing was changed"
            }
            Self::NoRoom => {
                "wait longer with `CreateOptions::wait`, end a session, or change `config.toml` in the home"
            }
            Self::RecordDamaged => {
                "`Client::delete` removes the session; what it left in its folder can be copied before"
            }
            Self::RecordMissing => {
                "`Client::delete` removes the session; what it left can be copied before"
            }
            Self::SessionMissing => "`Client::list` lists those there are",
            Self::SessionBeingRemoved(_) => {
                "if that was interrupted, `Client::delete` or `Client::sweep` finishes it"
            }
            Self::SessionNeverMade(_) => "delete it: `Client::delete`",
            Self::SessionBeingStopped(_) => "resume it then: `Client::resume`",
            Self::SessionStopped(_) => "resume it first: `Client::resume`",
            Self::SessionExpired(_) => "resume it first: `Client::resume`; its lease begins anew",
            Self::SessionOfEarlierVersion(_) => {
                "stop it and resume it: `Client::stop`, `Client::resume`"
            }
            Self::SessionCopied(_) => "go on with the copy: `Client::resume`",
            Self::MountKeysMissing(_) => {
                "resume it with the manifest it was made with: `ResumeOptions::manifest`"
            }
            Self::CloneAdvised => "use `WorkspaceMode::Clone`, which shares nothing with it",
            Self::ImageUnnamed => "name one with `DockerOptions::image`",
            Self::BridgeMissing => {
                "start the daemon without `--bridge=none`, or take `NetworkAccess::None` or \
                 `NetworkAccess::Host`"
            }
            Self::CredentialsMissing(_) => {
                "give it with the run's environment; whatever the agent runs can read it there"
            }
            Self::MemberRefused
            | Self::EntryNotMade(_)
            | Self::EngineElsewhere
            | Self::MountNotStored => return None,
            Self::RungUnknown => {
                "make a new session from its snapshot; what it left in its folder can be copied before"
            }
            Self::GrantMoved => {
                "grant it at its own path, or use `Isolation::Exactly(Rung::Namespaces)`"
            }
            Self::GrantOverlaps => {
                "use `Isolation::Exactly(Rung::Namespaces)`, or move one out of the other"
            }
            Self::FolderIsRoots => {
                "use `Isolation::Exactly(Rung::Namespaces)`, give the folder to another user with \
                 `chown`, or leave it out"
            }
            Self::FoldersOfTwoUsers => {
                "use `Isolation::Exactly(Rung::Namespaces)`, or grant one of them read-only"
            }
            Self::LoopbackMissing => {
                "use `Isolation::Exactly(Rung::Namespaces)`, which has a loopback of its own"
            }
            Self::NoPoints => {
                "`SessionJournal::checkpoint` makes one; `JournalOptions::commands` makes one \
                 of every command"
            }
            Self::NothingToUndo => {
                "`SessionJournal::checkpoint` makes a point; `JournalOptions::commands` makes \
                 one of every command"
            }
            Self::PointMissing => "`Client::log` lists them",
            Self::PointThinned => {
                "`JournalOptions::most` and `age` keep more, `SessionJournal::save_point` one for ever"
            }
            Self::TerminalOpen(..) => {
                "processes end before files are replaced: leave the terminal, or end it with `Session::signal`"
            }
            Self::PointRangeMalformed => {
                "write A..B with points of `Client::log`, `0` for the beginning"
            }
            Self::PointDamaged => "`Store::verify` says what else is missing",
            Self::PathNotInPoint(_) => "`SessionJournal::diff` says what is different since",
            Self::EditsUnattributed => {
                "nothing was changed: only a session with `JournalOptions::commands` tells \
                 your edits from those of its commands; `SessionJournal::restore_path` brings \
                 single files back"
            }
            Self::EditsInTheWay => {
                "nothing was changed; `SessionJournal::checkpoint` keeps what is there now, \
                 and can be followed by this"
            }
            Self::CommandEndUnseen => {
                "in a folder of yours, what it changed cannot be told from what you changed; \
                 `SessionJournal::restore_path` brings single files back"
            }
            Self::ChangedSinceUndo => {
                "`SessionJournal::checkpoint` keeps what is there now, and gives up what was \
                 undone"
            }
            Self::NothingInCommon => {
                "a session can take over what was changed in its forks: `Client::fork`"
            }
            Self::PolicyUnnamed => "give it one: `CreateOptions::policy`",
            Self::PolicyMissing => "create one with `CreateOptions::policy`",
            Self::ApprovalMissing(_) => "`Client::egress_pending` says what does",
            Self::SessionNotRunning(_) => "`Client::resume` has it run again",
        })
    }
}

impl Error {
    /// Says which condition this error reports; its hint becomes that of the condition, if it has
    /// one. A hint that is added after that says more, and wins.
    #[must_use]
    pub fn with_condition(mut self, condition: Condition) -> Self {
        if let Some(hint) = condition.hint() {
            self.data.hint = Some(hint.to_owned());
        }
        self.data.condition = Some(condition);
        self
    }

    /// Adds the error number of the system call that failed, which the context shows as `errno`.
    #[must_use]
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.data.detail.errno = Some(errno);
        self.with_context("errno", errno)
    }

    /// Adds the HTTP status that a server answered with, which the context shows as `status`.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.data.detail.status = Some(status);
        self.with_context("status", status)
    }

    /// The condition this error reports, where it is one that programs tell apart.
    #[must_use]
    pub fn condition(&self) -> Option<&Condition> {
        self.data.condition.as_ref()
    }

    /// The error number of the system call that failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.data.detail.errno
    }

    /// The HTTP status that a server answered with.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.data.detail.status
    }

    /// The fields of an input that do not validate, where this error is about those.
    #[must_use]
    pub fn field_errors(&self) -> &[FieldError] {
        &self.data.detail.fields
    }

    /// Says which fields of an input do not validate.
    pub(crate) fn with_field_errors(mut self, fields: Vec<FieldError>) -> Self {
        self.data.detail.fields = fields;
        self
    }

    /// Whether something named by the caller does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.data.kind == ErrorKind::NotFound
    }

    /// Whether a deadline passed.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.data.kind == ErrorKind::Timeout
    }

    /// Whether something in the snapshot store is not what was written.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.data.condition == Some(Condition::StoreDamaged)
    }

    /// Whether a command certainly did not start, so that starting it again cannot run it twice.
    ///
    /// The reference's transports say so in the context, as `retry_safe`.
    #[must_use]
    pub fn is_retry_safe(&self) -> bool {
        self.data.context.get("retry_safe").and_then(serde_json::Value::as_bool) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_by_type_what_the_context_only_shows() {
        let by_key = Error::new(ErrorKind::Io, "x")
            .with_context("errno", 2)
            .with_context("status", 404)
            .with_context("reason", "damaged");
        assert_eq!((by_key.errno(), by_key.status(), by_key.is_damaged()), (None, None, false));

        let typed = Error::new(ErrorKind::Io, "x")
            .with_errno(2)
            .with_status(404)
            .with_condition(Condition::StoreDamaged);
        assert_eq!((typed.errno(), typed.status()), (Some(2), Some(404)));
        assert!(typed.is_damaged() && !typed.is_not_found() && !typed.is_timeout());
        assert_eq!(typed.context()["errno"], 2);
        assert_eq!(typed.context()["status"], 404);

        let redacted = typed.redacted();
        assert_eq!((redacted.errno(), redacted.status()), (None, None));
        assert_eq!(redacted.condition(), None);
    }
}
