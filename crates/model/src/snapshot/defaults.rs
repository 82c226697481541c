//! Where local snapshots are by default, and how long they stay there.

use crate::posix_path::PosixPath;
use crate::windows_path::WindowsPath;

/// How old a snapshot may become, in seconds: 30 days.
pub const STALE_AFTER_SECONDS: i64 = 60 * 60 * 24 * 30;

/// Which system's customs decide where a program keeps its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Platform {
    /// macOS.
    Mac,
    /// Windows.
    Windows,
    /// Linux and everything else.
    Other,
}

/// The folder in which the reference keeps local snapshots if nobody says where.
///
/// `variable` looks up an environment variable.
///
/// ```
/// use bastide_model::PosixPath;
/// use bastide_model::snapshot::{Platform, default_local_snapshot_base_dir};
///
/// let home = PosixPath::new("/home/ada");
/// let dir = default_local_snapshot_base_dir(&home, |_| None, Platform::Other);
/// assert_eq!(dir.as_str(), "/home/ada/.local/state/openai-agents-python/sandbox/snapshots");
/// ```
#[must_use]
pub fn default_local_snapshot_base_dir<'a>(
    home: &PosixPath,
    variable: impl Fn(&str) -> Option<&'a str>,
    platform: Platform,
) -> PosixPath {
    let below_home = |path: &str| home.join(&PosixPath::new(path));
    let base = match platform {
        Platform::Mac => below_home("Library/Application Support"),
        Platform::Windows => {
            let named = ["LOCALAPPDATA", "APPDATA"].into_iter().filter_map(variable);
            let mut absolute = named.filter(|path| WindowsPath::new(path).is_absolute());
            absolute.next().map_or_else(|| below_home("AppData/Local"), PosixPath::new)
        }
        Platform::Other => match variable("XDG_STATE_HOME") {
            Some(path) if path.starts_with('/') => PosixPath::new(path),
            _ => below_home(".local/state"),
        },
    };
    base.join(&PosixPath::new("openai-agents-python/sandbox/snapshots"))
}

/// Which snapshots are too old to keep.
///
/// ```
/// use bastide_model::snapshot::StaleSnapshots;
///
/// let stale = StaleSnapshots::before(1000.0, 100).unwrap();
/// assert!(stale.covers("a.tar", 899.0));
/// assert!(!stale.covers("a.tar", 900.0) && !stale.covers("a.zip", 1.0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StaleSnapshots {
    cutoff: f64,
}

impl StaleSnapshots {
    /// Those older than `max_age_seconds` at the time `now`; a negative age covers none.
    #[must_use]
    pub fn before(now: f64, max_age_seconds: i64) -> Option<Self> {
        // Ages are far below what a fraction holds exactly; beyond that nothing is that old.
        #[expect(clippy::cast_precision_loss, reason = "a second more or less in a billion years")]
        let age = max_age_seconds as f64;
        (max_age_seconds >= 0).then_some(Self { cutoff: now - age })
    }

    /// Whether a regular file of that name, last changed at `modified`, is to be removed.
    #[must_use]
    pub fn covers(&self, name: &str, modified: f64) -> bool {
        name.ends_with(".tar") && modified < self.cutoff
    }
}
