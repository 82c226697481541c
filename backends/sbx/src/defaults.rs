//! What a sandbox says about itself.

use std::time::Duration;

use bastide::{Error, ErrorKind, Result};

use crate::program::Sbx;

/// The most variables a sandbox is believed to have.
const MOST_VARIABLES: usize = 1000;

/// Whom commands are, and with which variables they start: sentinels and proxies are among them.
#[derive(Debug, Default)]
pub(crate) struct SandboxDefaults {
    /// Uid and gid, with a colon between them.
    pub(crate) user: String,
    pub(crate) environment: Vec<(String, String)>,
}

impl SandboxDefaults {
    /// Asks a sandbox, which may have to start for it.
    pub(crate) async fn read(sbx: &Sbx, sandbox: &str, time_limit: Duration) -> Result<Self> {
        let script = "id -u && id -g && exec env -0";
        let output = sbx.check_call(&["exec", sandbox, "sh", "-c", script], time_limit).await?;
        let text = output.text();
        let mut lines = text.splitn(3, '\n');
        let (uid, gid) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let is_id = |text: &str| text.parse::<u32>().is_ok();
        if !is_id(uid) || !is_id(gid) {
            let message = format!("the sandbox {sandbox} does not say whom commands are");
            return Err(Error::new(ErrorKind::BackendLost, message));
        }
        // Each user has a home of its own, which the guest knows.
        let own = ["HOME", "PWD", "OLDPWD", "SHLVL", "_", "TERM"];
        let variables = lines.next().unwrap_or_default().split('\0').take(MOST_VARIABLES);
        let variables = variables.filter_map(|variable| variable.split_once('='));
        let environment = variables
            .filter(|(name, _)| !own.contains(name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Ok(Self { user: format!("{uid}:{gid}"), environment })
    }
}
