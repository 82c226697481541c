//! When a session ends by itself, as options.

use std::time::Duration;

use bastide::{ExpiryAction, LeaseOptions};

use super::values::parse_time;

/// When a new session ends by itself
#[derive(Debug, clap::Args)]
#[command(
    next_help_heading = "Lease",
    group = clap::ArgGroup::new("lease_time").args(["ttl", "idle"]).multiple(true)
)]
pub(crate) struct LeaseArgs {
    /// End the session after this long (such as 30m, 2h), whoever is there
    #[arg(long, value_name = "TIME", value_parser = parse_lease)]
    ttl: Option<Duration>,

    /// End the session once nothing happened in it for this long: no command, no terminal, no traffic on a port
    #[arg(long, value_name = "TIME", value_parser = parse_lease)]
    idle: Option<Duration>,

    /// What its end by itself leaves: its files, or no files; `stop` unless said
    #[arg(long, value_name = "END", requires = "lease_time")]
    then: Option<ExpiryArg>,
}

/// What becomes of a session whose lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ExpiryArg {
    /// Everything in it ends, and its files stay
    Stop,
    /// Its files go, too; snapshots of it stay
    Delete,
}

impl From<ExpiryArg> for ExpiryAction {
    fn from(then: ExpiryArg) -> Self {
        match then {
            ExpiryArg::Stop => Self::Stop,
            ExpiryArg::Delete => Self::Delete,
        }
    }
}

impl LeaseArgs {
    /// The lease, if one is asked for.
    pub(crate) fn options(&self) -> Option<LeaseOptions> {
        if self.ttl.is_none() && self.idle.is_none() {
            return None;
        }
        let mut options =
            LeaseOptions::default().then(self.then.map_or(ExpiryAction::Stop, Into::into));
        (options.ttl, options.idle) = (self.ttl, self.idle);
        Some(options)
    }
}

/// A time that a lease can have.
pub(crate) fn parse_lease(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match time.as_millis() {
        0 => Err("expected a time of a millisecond at least, such as 30s or 2h".to_owned()),
        _ => Ok(time),
    }
}
