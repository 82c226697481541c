//! What a daemon can do here, for whoever asks why something does not work.

use bastide::Result;

use crate::EngineAddress;
use crate::engine::{Engine, SMALL};
use crate::receipt::About;

/// What was found out about a daemon that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkup {
    /// The daemon's version.
    pub version: String,
    /// The runtime containers have where nobody asks for another.
    pub runtime: String,
    /// Whether the daemon runs without root.
    pub rootless: bool,
    /// What is missing or weaker than it could be, and what would change that.
    pub missing: Vec<(String, Option<String>)>,
}

impl Checkup {
    /// Asks the daemon at an address about itself.
    ///
    /// # Errors
    ///
    /// [`BackendLost`](bastide::ErrorKind::BackendLost) if it cannot be reached; the hint says what to
    /// do.
    pub async fn of(address: &EngineAddress) -> Result<Self> {
        let engine = Engine::connect(address).await?;
        let info = engine.ask(SMALL, "ask the daemon about itself", engine.docker.info()).await?;
        let about = About::from(info);
        Ok(Self {
            missing: missing(&about, address),
            version: about.version,
            runtime: about.runtime,
            rootless: about.rootless,
        })
    }
}

fn missing(about: &About, address: &EngineAddress) -> Vec<(String, Option<String>)> {
    let mut missing = Vec::new();
    let mut add = |what: &str, fix: Option<&str>| {
        missing.push((what.to_owned(), fix.map(str::to_owned)));
    };
    if !about.user_namespace && !about.rootless {
        let what = "ids: those inside containers are the host's own";
        add(what, Some("run a rootless daemon, or start it with `--userns-remap=default`"));
    }
    if !about.seccomp {
        add("seccomp: the daemon was built without it; our own filter stands alone", None);
    }
    let limits = [
        ("memory", about.limits_memory),
        ("processes", about.limits_pids),
        ("processors", about.limits_cpu),
    ];
    for (name, holds) in limits {
        if !holds {
            let fix = about.rootless.then_some(
                "delegate control groups to the user: `systemctl --user edit docker`, Delegate=yes",
            );
            add(&format!("the limit on {name}: the daemon cannot hold it"), fix);
        }
    }
    if about.rootless {
        add(
            "rootless: uid 0 inside is the daemon's user, and ports below 1024 are not its to give",
            None,
        );
    }
    if address.socket().is_none() {
        let what = "a warden: sessions whose maker is killed stay until `bastide rm`";
        add(what, Some("use a daemon of this machine, by its socket"));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_a_rootless_daemon_cannot_do() {
        let about = About { rootless: true, seccomp: true, limits_cpu: true, ..About::default() };
        let missing = missing(&about, &EngineAddress::default());
        let named: Vec<_> = missing.iter().map(|(what, _)| what.as_str()).collect();
        assert!(named.iter().any(|what| what.starts_with("the limit on memory")), "{named:?}");
        assert!(named.iter().any(|what| what.starts_with("rootless")), "{named:?}");
        assert!(!named.iter().any(|what| what.starts_with("ids")), "{named:?}");
    }
}
