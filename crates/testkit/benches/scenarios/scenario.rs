//! The scenarios, and what is promised about them.
//!
//! `SPECIFICATION.md` says the same promises to people; a test holds the two together.

use std::time::Duration;

use crate::operation::Operation::{self, *};
use crate::who::Subject::{self, *};
use crate::workload::Workload;

/// One row: an operation of ours beside the same of others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// What people call it.
    pub(crate) title: &'static str,
    /// What is done.
    pub(crate) operation: Operation,
    /// Which of our ways does it.
    pub(crate) ours: Subject,
    /// Who does it besides.
    pub(crate) peers: &'static [Subject],
    /// What is promised.
    pub(crate) promises: &'static [Promise],
    /// How long one round takes.
    pub(crate) pace: Pace,
}

/// How long a round of a scenario takes, and so how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Under ten milliseconds.
    Fast,
    /// Under ten milliseconds for us, tens of them for the slowest peer.
    Brisk,
    /// Up to a second or so.
    Slow,
    /// Seconds.
    Long,
}

impl Pace {
    /// The rounds of a whole run, and of a quick one.
    pub(crate) fn rounds(self, quick: bool) -> usize {
        match (self, quick) {
            (Self::Fast, false) => 300,
            (Self::Fast, true) => 50,
            (Self::Brisk, false) => 210,
            (Self::Brisk, true) => 20,
            (Self::Slow, false) => 12,
            (Self::Slow, true) => 3,
            (Self::Long, false) => 5,
            (Self::Long, true) => 1,
        }
    }

    /// After how long no further round begins.
    pub(crate) fn patience(self) -> Duration {
        match self {
            Self::Fast | Self::Brisk => Duration::from_secs(25),
            Self::Slow | Self::Long => Duration::from_secs(60),
        }
    }

    /// The rounds there are in any case.
    pub(crate) fn least(self) -> usize {
        match self {
            Self::Fast | Self::Brisk => 200,
            Self::Slow => 10,
            Self::Long => 2,
        }
    }
}

/// Something a reader may rely on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Promise {
    /// We take at most so many times as long as a peer.
    Times(f64, Subject),
    /// We take at most so many milliseconds.
    Milliseconds(f64),
}

impl Promise {
    /// The promise in words.
    pub(crate) fn text(self) -> String {
        match self {
            Self::Times(bound, peer) if bound < 0.9 => {
                format!("≤ 1/{} of {}", shortest(1.0 / bound), peer.name())
            }
            Self::Times(bound, peer) => format!("≤ {} × {}", shortest(bound), peer.name()),
            Self::Milliseconds(bound) => format!("≤ {} ms", shortest(bound)),
        }
    }
}

fn shortest(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Every scenario, in the order they run.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        title: "local: create → first output",
        operation: Create,
        ours: Local,
        peers: &[Bwrap, Sandlock, Nono, Reference],
        promises: &[
            Promise::Times(1.0, Bwrap),
            Promise::Times(1.0, Reference),
            Promise::Milliseconds(10.0),
        ],
        pace: Pace::Fast,
    },
    Scenario {
        title: "CLI: `bastide run -- true`",
        operation: Create,
        ours: Cli,
        peers: &[Bwrap, Sandlock, Nono],
        promises: &[Promise::Times(3.0, Bwrap)],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: exec round trip",
        operation: Exec,
        ours: Local,
        peers: &[Spawn, Reference],
        promises: &[Promise::Times(1.4, Spawn), Promise::Times(0.5, Reference)],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: exec on record",
        operation: Exec,
        ours: Audited,
        peers: &[Local],
        promises: &[Promise::Times(1.1, Local)],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: an event to an outbox",
        operation: Events(1000),
        ours: Local,
        peers: &[],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 64 execs at once",
        operation: ExecMany(64),
        ours: Local,
        peers: &[Spawn, Reference],
        promises: &[],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: delete an idle session",
        operation: Delete,
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 1 MiB of stdout",
        operation: Output(MIB),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 1 KiB read",
        operation: Read(KIB),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 1 KiB write",
        operation: Write(KIB),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 1 MiB read",
        operation: Read(MIB),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 1 MiB write",
        operation: Write(MIB),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: 64 MiB read",
        operation: Read(64 * MIB),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.1, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: 64 MiB write",
        operation: Write(64 * MIB),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.3, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: listing 1,000 entries",
        operation: List(1_000),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: listing 10,000 entries",
        operation: List(10_000),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 3.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: terminal, key to echo",
        operation: Echo,
        ours: Local,
        peers: &[],
        promises: &[Promise::Milliseconds(2.0)],
        pace: Pace::Fast,
    },
    Scenario {
        title: "local: sessions, one at a time",
        operation: Sessions(1),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: sessions, 8 at once",
        operation: Sessions(8),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.5, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: sessions, 64 at once",
        operation: Sessions(64),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: a folder of 10,000 files in",
        operation: FolderIn(Workload::Files(10_000)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 8.0, Reference)],
        pace: Pace::Long,
    },
    Scenario {
        title: "local: snapshot of 10,000 files",
        operation: Save(Workload::Files(10_000)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 4.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: snapshot after 1 % of 10,000 files changed",
        operation: SaveAgain(Workload::Files(10_000)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 20.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: restore of 10,000 files",
        operation: Restore(Workload::Files(10_000)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 6.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: snapshot of 512 MiB",
        operation: Save(Workload::Large(512 * MIB)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 2.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: snapshot of 512 MiB saved before",
        operation: SaveAgain(Workload::Large(512 * MIB)),
        ours: Local,
        peers: &[Reference],
        promises: &[Promise::Times(1.0 / 20.0, Reference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: restore of 512 MiB",
        operation: Restore(Workload::Large(512 * MIB)),
        ours: Local,
        peers: &[Copy, Reference],
        promises: &[Promise::Times(1.5, Copy)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: checkpoint of 10,000 files, unchanged",
        operation: Checkpoint(Workload::Files(10_000)),
        ours: Local,
        peers: &[Walk, Git, Reflink],
        promises: &[Promise::Times(3.0, Walk)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: checkpoint after 1 % of 10,000 files changed",
        operation: CheckpointChanged(Workload::Files(10_000)),
        ours: Local,
        // Not a part of `tar`: who looks for what changed looks at every entry, and an archive in memory takes only four
        // times as long as that.
        peers: &[Walk, Tar, Git, Reflink],
        promises: &[Promise::Times(6.0, Walk)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: exec with a journal, in 10,000 files (beside exec and two walks)",
        operation: JournaledExec(Workload::Files(10_000)),
        ours: Local,
        // One look through the workspace, after the command: before it nothing can have changed.
        peers: &[Walk],
        promises: &[Promise::Times(1.5, Walk)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: undo of one file of 1,000",
        operation: UndoFile(Workload::Files(1_000)),
        ours: Local,
        peers: &[],
        promises: &[Promise::Milliseconds(20.0)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: fork of 1 GiB",
        operation: Fork(Workload::Large(1 << 30)),
        ours: Local,
        // Both write every byte, which is most of it; ours are taken apart and checked as well, by all processors.
        peers: &[CopyAll, Reflink],
        promises: &[Promise::Times(1.5, CopyAll)],
        pace: Pace::Long,
    },
    Scenario {
        title: "local: 16 forks, up to the first output of the last",
        operation: Forks(16),
        ours: Local,
        peers: &[Once],
        promises: &[Promise::Times(4.0, Once)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "local: install of 300 packages",
        operation: Install,
        ours: Local,
        peers: &[Host],
        promises: &[Promise::Times(1.3, Host)],
        pace: Pace::Long,
    },
    Scenario {
        // Last: whoever keeps the memory of a gigabyte is quicker at everything large after it.
        title: "local: 1 GiB of stdout",
        operation: Output(1 << 30),
        ours: Local,
        peers: &[Reference],
        promises: &[],
        pace: Pace::Long,
    },
    Scenario {
        title: "docker: create → first output",
        operation: Create,
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 2.0, DockerReference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "docker: exec round trip",
        operation: Exec,
        ours: Docker,
        peers: &[DockerReference, Local],
        promises: &[Promise::Times(1.0 / 30.0, DockerReference), Promise::Times(2.0, Local)],
        pace: Pace::Brisk,
    },
    Scenario {
        // Apart: what a daemon does after each one goes on into the next turn.
        title: "docker: exec beside the command line",
        operation: Exec,
        ours: Docker,
        peers: &[DockerExec],
        promises: &[],
        pace: Pace::Slow,
    },
    Scenario {
        title: "docker: 1 KiB read",
        operation: Read(KIB),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 100.0, DockerReference)],
        pace: Pace::Brisk,
    },
    Scenario {
        title: "docker: 1 KiB write",
        operation: Write(KIB),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 100.0, DockerReference)],
        pace: Pace::Brisk,
    },
    Scenario {
        title: "docker: 64 MiB read",
        operation: Read(64 * MIB),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 20.0, DockerReference)],
        pace: Pace::Long,
    },
    Scenario {
        title: "docker: 64 MiB write",
        operation: Write(64 * MIB),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 2.0, DockerReference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "docker: listing 10,000 entries",
        operation: List(10_000),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 15.0, DockerReference)],
        pace: Pace::Slow,
    },
    Scenario {
        title: "docker: a folder of 10,000 files in (reference: reckoned from 20)",
        operation: FolderIn(Workload::Files(10_000)),
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 500.0, DockerReference)],
        pace: Pace::Long,
    },
    Scenario {
        title: "docker: delete an idle session",
        operation: Delete,
        ours: Docker,
        peers: &[DockerReference],
        promises: &[Promise::Times(1.0 / 50.0, DockerReference)],
        pace: Pace::Long,
    },
];
