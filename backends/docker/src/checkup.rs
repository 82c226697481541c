//! What a daemon can do here, for whoever asks why something does not work.

use bastide::Result;

use crate::EngineAddress;
use crate::engine::{Engine, SMALL};
use crate::receipt::EngineInfo;

/// What a daemon reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineReport {
    /// The daemon's version.
    pub version: String,
    /// The default runtime of containers.
    pub runtime: String,
    /// Whether the daemon runs without root.
    pub rootless: bool,
    /// What is missing or weaker than it could be, and what would change that.
    pub missing: Vec<(String, Option<String>)>,
}

impl EngineReport {
    /// Asks the daemon at an address about itself.
    ///
    /// # Errors
    ///
    /// [`BackendLost`](bastide::ErrorKind::BackendLost) if it cannot be reached; the hint says what
    /// to do.
    pub async fn of(address: &EngineAddress) -> Result<Self> {
        let engine = Engine::connect(address).await?;
        let info = engine.ask(SMALL, "ask the daemon about itself", engine.docker.info()).await?;
        let about = EngineInfo::from(info);
        Ok(Self {
            missing: missing(&about, address),
            version: about.version,
            runtime: about.runtime,
            rootless: about.rootless,
        })
    }
}

fn missing(about: &EngineInfo, address: &EngineAddress) -> Vec<(String, Option<String>)> {
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
        let what = "a warden: sessions whose maker is killed stay until they are removed";
        add(what, Some("use a daemon of this machine, by its socket"));
    }
    missing
}

#[cfg(test)]
mod tests {
    use bollard::models::SystemInfo;

    use super::*;

    /// What a daemon says of itself that runs without root, and what is made of it.
    fn rootless(delegated: bool) -> EngineInfo {
        let security = ["name=seccomp,profile=default", "name=rootless", "name=cgroupns"];
        EngineInfo::from(SystemInfo {
            security_options: Some(security.map(str::to_owned).to_vec()),
            memory_limit: Some(delegated),
            pids_limit: Some(delegated),
            cpu_cfs_quota: Some(delegated),
            ..SystemInfo::default()
        })
    }

    #[test]
    fn names_what_a_rootless_daemon_cannot_do() {
        let about = rootless(false);
        assert!(about.rootless && about.seccomp && !about.user_namespace);
        let missing = missing(&about, &EngineAddress::default());
        let begins: Vec<_> =
            missing.iter().map(|(what, _)| what.split(':').next().unwrap_or_default()).collect();
        let limits = ["the limit on memory", "the limit on processes", "the limit on processors"];
        assert_eq!(begins, [&limits[..], &["rootless"]].concat());
        // What would change that is said of every limit.
        for (what, fix) in &missing[..3] {
            assert!(fix.as_ref().is_some_and(|fix| fix.contains("Delegate=yes")), "{what}");
        }
    }

    #[test]
    fn names_no_limit_that_a_rootless_daemon_holds() {
        let missing = missing(&rootless(true), &EngineAddress::default());
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].0.starts_with("rootless: "), "{missing:?}");
    }

    #[test]
    fn says_of_a_daemon_with_root_whose_ids_are_inside() {
        let about = |options: &[&str]| {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            EngineInfo::from(SystemInfo {
                security_options: Some(options),
                ..SystemInfo::default()
            })
        };
        let names_ids = |options: &[&str]| {
            let missing = missing(&about(options), &EngineAddress::default());
            missing.iter().any(|(what, fix)| what.starts_with("ids: ") && fix.is_some())
        };
        assert!(names_ids(&["name=seccomp"]));
        assert!(!names_ids(&["name=seccomp", "name=userns"]));
    }
}
