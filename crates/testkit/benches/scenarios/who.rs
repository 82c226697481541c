//! Who does what is measured: us, and what users would use instead.

/// One of those who do an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// This project's library, sessions on this machine, fully confined.
    Local,
    /// The same with everything on record.
    Audited,
    /// This project's command line, sessions on this machine.
    Cli,
    /// This project's library, sessions in containers.
    Docker,
    /// The reference's local client.
    Reference,
    /// The reference's Docker client, on the same daemon.
    DockerReference,
    /// `docker exec` in a container of the same image.
    DockerExec,
    /// bubblewrap.
    Bwrap,
    /// `sandlock run`.
    Sandlock,
    /// `nono run`.
    Nono,
    /// Starting a program and waiting for it.
    Spawn,
    /// The same on this machine, without a sandbox.
    Host,
    /// A plain copy of the file, on this machine.
    Copy,
    /// `lstat` of everything in the workspace; of a command, the command and two of those.
    Walk,
    /// `tar` of the workspace.
    Tar,
    /// `git add -A && git commit` of the workspace.
    Git,
    /// `cp -a` of the workspace.
    CopyAll,
    /// `cp -a --reflink=auto` of the workspace.
    Reflink,
    /// The same of ours, once.
    Once,
}

impl Subject {
    /// What tables and options call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Local => "bastide",
            Self::Audited => "bastide-audited",
            Self::Cli => "bastide-cli",
            Self::Docker => "bastide-docker",
            Self::Reference => "reference",
            Self::DockerReference => "reference-docker",
            Self::DockerExec => "docker-exec",
            Self::Bwrap => "bwrap",
            Self::Sandlock => "sandlock",
            Self::Nono => "nono",
            Self::Spawn => "posix_spawn",
            Self::Host => "host",
            Self::Copy => "copy",
            Self::Walk => "lstat-walk",
            Self::Tar => "tar",
            Self::Git => "git-commit",
            Self::CopyAll => "cp-a",
            Self::Reflink => "cp-reflink",
            Self::Once => "bastide-once",
        }
    }

    /// The backend of ours that does it; `None` for others.
    pub(crate) fn backend(self) -> Option<&'static str> {
        match self {
            Self::Local | Self::Audited | Self::Cli => Some("local"),
            Self::Docker => Some("docker"),
            _ => None,
        }
    }
}
