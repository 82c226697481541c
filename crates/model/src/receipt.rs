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

    /// What is not enforced of the limits that were asked for.
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
