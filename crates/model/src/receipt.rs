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
    /// Which rung of the ladder the session stands on.
    pub rung: Rung,
    /// What network commands have.
    pub network: NetworkAccess,
    /// Who commands are inside, by default.
    pub user: String,
    /// The walls that stand, for people.
    pub walls: Vec<String>,
    /// Each limit, as asked and as enforced.
    pub limits: Limits,
    /// What somebody could expect to hold here and does not.
    pub not_enforced: Vec<String>,
}

impl Receipt {
    /// A receipt with no walls named yet and no limits asked for.
    pub fn new(rung: Rung, network: NetworkAccess, user: impl Into<String>) -> Self {
        Self {
            rung,
            network,
            user: user.into(),
            walls: Vec::new(),
            limits: Limits::default(),
            not_enforced: Vec::new(),
        }
    }
}

/// How far a session is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Rung {
    /// Namespaces of its own, and walls on the commands.
    Namespaces,
    /// A container of an engine, and walls on the commands.
    Container,
    /// Walls on the commands, over the host's own paths.
    Landlock,
    /// Nothing.
    Unconfined,
}

impl Rung {
    /// The word users write.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Container => "container",
            Self::Landlock => "landlock",
            Self::Unconfined => "unconfined",
        }
    }
}

/// How a session shall be confined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Isolation {
    /// By the highest rung of the ladder that this machine has: [`Rung::Namespaces`], else
    /// [`Rung::Landlock`], else not at all, and then there is no session.
    #[default]
    Auto,
    /// By this rung, or there is no session.
    #[serde(untagged)]
    Exactly(Rung),
}

/// What network commands have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum NetworkAccess {
    /// Loopback of their own, and nothing else.
    None,
    /// A network that leads out, and loopback of their own.
    Bridge,
    /// The host's, its loopback included.
    Host,
}

impl NetworkAccess {
    /// The word users write.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bridge => "bridge",
            Self::Host => "host",
        }
    }
}

/// Every limit a session can have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Limit,
    /// How many processes.
    pub pids: Limit,
    /// Thousandths of a processor.
    pub cpu: Limit,
    /// Bytes of disk.
    pub disk: Limit,
}

/// One limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// What was asked for.
    pub asked: Option<u64>,
    /// What enforces it.
    pub enforced_by: Option<String>,
}
