//! What the presets of a policy stand for: the places that this machine's own package managers are set to use.
//!
//! Each manager is asked for its settings where it can say them, and has its built-in default where nothing is set or the
//! manager is not here. What is set is passed to the managers inside, without names and passwords.
//! A mirror may also have the usual names: where this machine's name service leads one of them to a private address,
//! so do sessions.

mod settings;

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use bastide_model::policy::{HostPattern, Policy, PresetHost, SpecialAddress, special_address};
use futures::future::join_all;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::time::timeout;

use settings::PresetContents;

use super::EnvironmentReader;
use crate::{Error, ErrorKind, Result};

/// How long a package manager may take to say its settings.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How long the name service may take to say where the usual names lead.
const LOOKUP: Duration = Duration::from_secs(2);

/// What `packages` is.
const PACKAGES: [&str; 6] = ["pip", "npm", "cargo", "go", "apt", "git"];

/// The variables by which a hook of git names the repository it runs for.
const REPOSITORY_VARIABLES: [&str; 3] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR"];

/// A policy without presets, and what package managers inside are told.
pub(super) struct Resolved {
    pub(super) policy: Policy,
    /// Variables, and what they are set to.
    pub(super) variables: Vec<(String, String)>,
    /// Variables for files with the certificates of authorities, and where these files are on this machine.
    pub(super) certificates: Vec<(String, PathBuf)>,
    /// The configuration of cargo, which no variable can give.
    pub(super) cargo_config: Option<String>,
}

/// The same policy with the places that its presets stand for on this machine.
///
/// # Errors
///
/// If it names a preset that does not exist, or that stands for nothing here, or if a package manager does not say its
/// settings in time.
pub async fn resolve_presets(policy: &Policy, env: &EnvironmentReader) -> Result<Policy> {
    Ok(resolve(policy, env).await?.policy)
}

/// As [`resolve_presets`], and what tells the managers inside.
pub(super) async fn resolve(policy: &Policy, env: &EnvironmentReader) -> Result<Resolved> {
    let asked = policy.presets();
    let is_asked = |name: &str| asked.iter().any(|asked| *asked == name || *asked == "packages");
    // Each of them starts an interpreter of its own.
    let managers = PACKAGES.into_iter().filter(|name| is_asked(name));
    let found = managers.map(async |name| (name, contents(name, env).await));
    let mut known: BTreeMap<&str, PresetContents> = BTreeMap::new();
    for (name, contents) in join_all(found).await {
        known.insert(name, contents?);
    }
    let usual = known.values_mut().flat_map(|contents| &mut contents.places);
    join_all(usual.filter(|place| !place.configured).map(allow_mirror)).await;
    let resolved = policy.with_presets(|name| {
        let places: Vec<_> = match name {
            "packages" => known.values().flat_map(|contents| contents.places.clone()).collect(),
            name => known.get(name)?.places.clone(),
        };
        (!places.is_empty()).then_some(places)
    })?;
    let mut found = Resolved {
        policy: resolved,
        variables: Vec::new(),
        certificates: Vec::new(),
        cargo_config: None,
    };
    for contents in known.into_values() {
        found.variables.extend(contents.variables);
        found.certificates.extend(contents.certificates);
        found.cargo_config = found.cargo_config.or(contents.cargo_config);
    }
    Ok(found)
}

/// Lets a usual name lead to a private address where this machine's name service says that it does: there is a mirror.
async fn allow_mirror(place: &mut PresetHost) {
    let HostPattern::Name(name) = &place.host else { return };
    let name = name.clone();
    let (sender, addresses) = oneshot::channel();
    // The runtime would wait for a thread of its own, however long the name service takes.
    let lookup = thread::Builder::new().spawn(move || {
        let found = (name.as_str(), 0).to_socket_addrs();
        drop(sender.send(found.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>())));
    });
    if lookup.is_ok()
        && let Ok(Ok(Ok(addresses))) = timeout(LOOKUP, addresses).await
    {
        place.configured = is_mirror(&addresses);
    }
}

/// Whether these are the addresses of a mirror in a private network. A name that leads to this machine itself was more
/// likely blocked.
fn is_mirror(addresses: &[IpAddr]) -> bool {
    let is_private = |address: &IpAddr| {
        matches!(special_address(*address), Some(SpecialAddress::Other(_)))
            && !address.is_unspecified()
            && !address.is_multicast()
    };
    !addresses.is_empty() && addresses.iter().all(is_private)
}

async fn contents(preset: &str, env: &EnvironmentReader) -> Result<PresetContents> {
    Ok(match preset {
        "pip" => settings::pip(&output_of("pip", &["config", "list"]).await?, env),
        "npm" => {
            settings::npm(&output_of("npm", &["config", "get", "registry", "cafile"]).await?, env)
        }
        "cargo" => settings::cargo(env),
        "go" => settings::go(&output_of("go", &["env", "GOPROXY", "GOSUMDB"]).await?),
        "apt" => settings::apt(
            &output_of("apt-get", &["indextargets", "--format", "$(REPO_URI)"]).await?,
        ),
        _ => {
            let names = r"^(url\..*\.insteadof|http\.sslcainfo)$";
            settings::git(&output_of("git", &["config", "--get-regexp", names]).await?, env)
        }
    })
}

/// What a program of this machine prints; nothing where it is missing or fails.
///
/// It runs where no project is: what somebody's `.npmrc` or repository says is not what this machine is set to, and would
/// let whoever wrote it say where the session may go.
async fn output_of(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
    for variable in REPOSITORY_VARIABLES {
        command.env_remove(variable);
    }
    command.kill_on_drop(true);
    match timeout(TIMEOUT, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(_) => Ok(String::new()),
        // Its defaults may be what it is set never to reach.
        Err(_) => {
            let seconds = TIMEOUT.as_secs();
            let message =
                format!("{program} did not say within {seconds} seconds where it is set to go");
            Err(Error::new(ErrorKind::Timeout, message)
                .with_hint("try again, or name the hosts themselves under `allow`"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_private_address_of_a_usual_name_for_a_mirror() {
        let is = |addresses: &[&str]| {
            let parsed: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            is_mirror(&parsed)
        };
        assert!(is(&["10.1.2.3"]) && is(&["192.168.0.9", "fd00::9"]) && is(&["203.0.113.9"]));
        // Names that lead nowhere, outside, here, or where machines ask who they are.
        assert!(!is(&[]) && !is(&["151.101.0.223"]) && !is(&["10.1.2.3", "151.101.0.223"]));
        for other in ["127.0.0.1", "0.0.0.0", "::", "::1", "169.254.169.254", "224.0.0.1"] {
            assert!(!is(&[other]), "{other}");
        }
    }
}
