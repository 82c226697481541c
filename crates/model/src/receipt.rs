//! What isolation and limits are really in force in a session.

use serde::{Deserialize, Serialize};

/// The isolation receipt of a session: what was asked for, what enforces it, and what does not hold.
///
/// ```
/// use bastide_model::receipt::{NetworkAccess, Receipt, Rung};
///
/// let receipt = Receipt::new(Rung::Namespaces, NetworkAccess::None, "root (0)");
/// assert_eq!(serde_json::to_value(&receipt).unwrap()["rung"], "namespaces");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Receipt {
    /// The rung of the session.
    pub rung: Rung,
    /// Which network commands can use.
    pub network: NetworkAccess,
    /// The default user of commands.
    pub user: String,
    /// The walls in force, as text for people.
    pub walls: Vec<String>,
    /// Each limit, as requested and as enforced.
    pub limits: Limits,
    /// What a user could expect to be enforced here and is not.
    pub not_enforced: Vec<String>,
    /// How points of the workspace are made.
    #[serde(default)]
    pub points: Mechanism,
}

/// How points of a workspace are made, which it can go back to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mechanism {
    /// Files that changed are put into the content-addressed store.
    #[default]
    Store,
}

impl Mechanism {
    /// The word programs see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
        }
    }
}

impl Receipt {
    /// A receipt without walls and limits.
    pub fn new(rung: Rung, network: NetworkAccess, user: impl Into<String>) -> Self {
        Self {
            rung,
            network,
            user: user.into(),
            walls: Vec::new(),
            limits: Limits::default(),
            not_enforced: Vec::new(),
            points: Mechanism::default(),
        }
    }

    /// The requested limits that are not enforced.
    ///
    /// ```
    /// use bastide_model::receipt::{NetworkAccess, Receipt, Rung};
    ///
    /// let mut receipt = Receipt::new(Rung::Landlock, NetworkAccess::None, "agent (1000)");
    /// let gap = "the limit on pids: nothing here can hold it";
    /// receipt.not_enforced = vec!["file names: can be seen".to_owned(), gap.to_owned()];
    /// assert_eq!(receipt.unheld_limits().collect::<Vec<_>>(), [gap]);
    /// ```
    pub fn unheld_limits(&self) -> impl Iterator<Item = &str> {
        let is_one = |gap: &&str| {
            let what = gap.split(':').next().unwrap_or_default();
            what.starts_with("the limit on ") || what.ends_with(" as a whole")
        };
        self.not_enforced.iter().map(String::as_str).filter(is_one)
    }
}

/// How far a session is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Rung {
    /// Namespaces of its own, with Landlock and seccomp on the commands.
    Namespaces,
    /// A container of an engine, with walls on the commands.
    Container,
    /// A virtual machine of its own, with walls on the commands.
    MicroVm,
    /// Landlock and seccomp on the commands, over the host's own paths.
    Landlock,
    /// Nothing.
    Unconfined,
}

impl Rung {
    /// The name of the rung, as users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Container => "container",
            Self::MicroVm => "microvm",
            Self::Landlock => "landlock",
            Self::Unconfined => "unconfined",
        }
    }
}

/// How a session is to be confined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Isolation {
    /// On the highest rung that this machine supports: [`Rung::Namespaces`], else
    /// [`Rung::Landlock`]; if it supports neither, creating the session fails.
    #[default]
    Auto,
    /// On this rung; if this machine does not support it, creating the session fails.
    #[serde(untagged)]
    Exactly(Rung),
}

/// Which network commands can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NetworkAccess {
    /// None but a loopback interface of their own.
    None,
    /// A bridge network that leads out, and a loopback interface of their own.
    Bridge,
    /// The host's network, its loopback interface included.
    Host,
    /// The places that a policy names, by way of a proxy outside, and a loopback interface of their own.
    Policy,
}

impl NetworkAccess {
    /// The name, as users write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bridge => "bridge",
            Self::Host => "host",
            Self::Policy => "policy",
        }
    }
}

/// All limits of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory: Limit,
    /// Number of processes.
    pub pids: Limit,
    /// Processor time, in thousandths of a processor.
    pub cpu: Limit,
    /// Disk, in bytes.
    pub disk: Limit,
}

/// One limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// What was requested.
    pub asked: Option<u64>,
    /// What enforces it.
    pub enforced_by: Option<String>,
}
