//! Which cluster sessions run on, and as whom it is spoken to.

use std::path::PathBuf;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::failure::{innermost, not_signed_in, unreachable};
use crate::kubeconfig;

/// How long a program that gives credentials may take.
const CREDENTIALS: Duration = Duration::from_secs(60);

/// How long the server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long it may take to accept a piece of a request.
const WRITE: Duration = Duration::from_secs(30);

/// The files that say which clusters there are, and which of them is meant. No credential is in here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClusterAccess {
    /// Files in the form of `kubectl`, the first counts most. Without any, this process is in a pod
    /// and uses the service account of that.
    pub kubeconfig: Vec<PathBuf>,
    /// The context in those files; without it, their current one.
    pub context: Option<String>,
    /// The namespace; without it, that of the context.
    pub namespace: Option<String>,
}

impl ClusterAccess {
    /// Access by these files.
    #[must_use]
    pub fn new(kubeconfig: Vec<PathBuf>) -> Self {
        Self { kubeconfig, context: None, namespace: None }
    }

    /// Uses that context.
    #[must_use]
    pub fn context(mut self, context: Option<String>) -> Self {
        self.context = context;
        self
    }

    /// Uses that namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: Option<String>) -> Self {
        self.namespace = namespace;
        self
    }

    /// What people are told they came from.
    pub(crate) fn described(&self) -> String {
        let files: Vec<_> = self.kubeconfig.iter().map(|path| path.display().to_string()).collect();
        match (files.is_empty(), &self.context) {
            (true, _) => "the service account of this pod".to_owned(),
            (false, Some(context)) => format!("context {context:?} of {}", files.join(":")),
            (false, None) => format!("the current context of {}", files.join(":")),
        }
    }

    /// Reads the files, and names what is missing in them.
    pub(crate) async fn load(&self) -> Result<LoadedAccess> {
        let (mut config, context) = match self.kubeconfig.is_empty() {
            true => (self.in_cluster()?, String::new()),
            false => self.by_files().await?,
        };
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = None;
        config.write_timeout = Some(WRITE);
        // What is tried again is decided where the deadline is known.
        config.default_retry = false;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        check_namespace(&namespace)?;
        Ok(LoadedAccess { config, context, namespace })
    }

    fn in_cluster(&self) -> Result<Config> {
        Config::incluster().map_err(|error| {
            let message =
                format!("no cluster is known: there is no kubeconfig, and this is no pod: {error}");
            lost(message).with_hint("name a file with `ClusterAccess::new`")
        })
    }

    async fn by_files(&self) -> Result<(Config, String)> {
        let mut all: Option<Kubeconfig> = None;
        for path in &self.kubeconfig {
            let read = kubeconfig::read(path)?;
            all = Some(match all {
                Some(all) => all.merge(read).map_err(|error| lost(error.to_string()))?,
                None => read,
            });
        }
        let all = all.unwrap_or_default();
        let context = self.context.clone().or_else(|| all.current_context.clone());
        let names: Vec<_> = all.contexts.iter().map(|named| named.name.clone()).collect();
        let Some(context) = context else {
            let message = format!("{} has no current context", self.described());
            return Err(lost(message).with_hint(known(&names)));
        };
        let proxy = proxy_of(&all, &context);
        let options =
            KubeConfigOptions { context: Some(context.clone()), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(all, &options).await;
        let mut config = config.map_err(|error| match error {
            KubeconfigError::LoadContext(name) => {
                lost(format!("there is no context {name:?} in {}", self.files()))
                    .with_hint(known(&names))
            }
            KubeconfigError::LoadClusterOfContext(name) => lost(format!(
                "context {context:?} names the cluster {name:?}, which {} does not have",
                self.files()
            )),
            error => lost(format!("cannot use {}: {}", self.described(), innermost(&error))),
        })?;
        // A proxy of the environment is for other servers; one for this cluster is in its own entry.
        config.proxy_url = proxy;
        Ok((config, context))
    }

    fn files(&self) -> String {
        let files: Vec<_> = self.kubeconfig.iter().map(|path| path.display().to_string()).collect();
        files.join(":")
    }
}

/// What the files say.
pub(crate) struct LoadedAccess {
    pub(crate) config: Config,
    pub(crate) context: String,
    pub(crate) namespace: String,
}

impl LoadedAccess {
    /// A client with these credentials. A program may have to be run for them, which nobody can be made to end.
    pub(crate) async fn client(&self, access: &ClusterAccess) -> Result<Client> {
        // A program that links more than one implementation has to choose; a choice that was made already stands.
        drop(rustls::crypto::ring::default_provider().install_default());
        let runs =
            self.config.auth_info.exec.is_some() || self.config.auth_info.auth_provider.is_some();
        let config = self.config.clone();
        let explain = |error: kube::Error| match &error {
            kube::Error::Auth(auth) => not_signed_in(&access.described(), auth),
            other => unreachable(&server_of(&self.config), &access.described(), &innermost(other)),
        };
        if !runs {
            return Client::try_from(config).map_err(explain);
        }
        let (sender, received) = oneshot::channel();
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let _entered = runtime.enter();
            // Nobody waits any more where this fails.
            drop(sender.send(Client::try_from(config)));
        });
        match tokio::time::timeout(CREDENTIALS, received).await {
            Ok(Ok(made)) => made.map_err(explain),
            _ => {
                let message =
                    format!("the credential plug-in of {} does not end", access.described());
                Err(Error::new(ErrorKind::PermissionDenied, message)
                    .with_hint("run it by hand, as `kubectl` would, and see what it waits for"))
            }
        }
    }
}

/// Where the server is, without whatever else an address can hold.
pub(crate) fn server_of(config: &Config) -> String {
    let url = &config.cluster_url;
    let authority = url.authority().map(|all| all.as_str()).unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let path = url.path().trim_end_matches('/');
    format!("{}://{host}{path}", url.scheme_str().unwrap_or("https"))
}

/// The proxy that the cluster's own entry names.
fn proxy_of(all: &Kubeconfig, context: &str) -> Option<http::Uri> {
    let context = all.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster =
        all.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.as_deref().filter(|url| !url.is_empty())?.parse().ok()
}

fn known(names: &[String]) -> String {
    match names.is_empty() {
        true => "the file has no contexts".to_owned(),
        false => format!("choose one with `ClusterAccess::context`: {}", names.join(", ")),
    }
}

pub(crate) fn lost(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BackendLost, message).with_context("reason", "backend_lost")
}

/// Whether a namespace can be called that.
#[must_use]
pub fn is_namespace(name: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (1..=63).contains(&name.len()) && name.bytes().all(is_name);
    fits && !name.starts_with('-') && !name.ends_with('-')
}

/// Refuses what is no name of a namespace, before it becomes part of an address.
fn check_namespace(name: &str) -> Result<()> {
    if is_namespace(name) {
        return Ok(());
    }
    let message = format!("{name:?} is no name of a namespace");
    Err(Error::new(ErrorKind::InvalidInput, message)
        .with_context("option", "ClusterAccess::namespace")
        .with_hint("it has lower-case letters, digits and `-`, and at most 63 of them"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_no_namespace_that_would_lead_elsewhere() {
        for bad in ["", "a/b", "..", "A", "-a", "a-", "a b", "a?x=y", &"a".repeat(64)] {
            assert!(check_namespace(bad).is_err(), "{bad:?}");
        }
        assert!(check_namespace("team-1").is_ok());
    }

    #[test]
    fn names_a_server_without_its_credentials() {
        let url = "https://user:secret@127.0.0.1:6443/k8s/".parse().unwrap();
        assert_eq!(server_of(&Config::new(url)), "https://127.0.0.1:6443/k8s");
    }
}
