//! Everything Bastide reads from its environment.
#![expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]

use std::env;
use std::path::PathBuf;

use bastide::model::HOST_ENVIRONMENT_ALLOWLIST;
use bastide::{Error, ErrorKind, Result, check_home, runs_home};
use bastide_docker::EngineAddress;
use bastide_remote::BucketOptions;
use bastide_sbx::Sbx;

/// Where sessions are kept: `BASTIDE_HOME`, or `bastide` in the user's data folder.
pub(crate) fn home() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("BASTIDE_HOME")
        .or_else(|| set("XDG_DATA_HOME").map(|data| data.join("bastide")))
        .or_else(|| set("HOME").map(|home| home.join(".local/share/bastide")));
    let Some(home) = home else {
        let error = Error::new(ErrorKind::InvalidInput, "there is no folder to keep sessions in");
        return Err(error.with_hint("set HOME, or set BASTIDE_HOME to a folder of yours"));
    };
    let home = std::path::absolute(&home).map_err(|error| {
        let message = format!("cannot use {} as a home: {error}", home.display());
        Error::new(ErrorKind::InvalidInput, message)
    })?;
    check_home(&home)?;
    Ok(home)
}

/// Where runs of agents are kept: beside the home, because no agent may work in the home itself.
pub(crate) fn runs() -> Result<PathBuf> {
    Ok(runs_home(&home()?))
}

/// Where the Docker daemon is: what `DOCKER_HOST` says, with the certificates of `DOCKER_CERT_PATH` where
/// `DOCKER_TLS_VERIFY` asks for them.
pub(crate) fn engine() -> Result<EngineAddress> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let Some(host) = set("DOCKER_HOST") else { return Ok(EngineAddress::default()) };
    let certificates = set("DOCKER_TLS_VERIFY").and_then(|_| {
        let folder = set("DOCKER_CERT_PATH").map(PathBuf::from);
        folder.or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".docker")))
    });
    EngineAddress::parse(&host.to_string_lossy(), certificates)
}

/// The files that say which Kubernetes clusters there are: what `KUBECONFIG` says, else `kubectl`'s own place for it. None where
/// there is neither, as inside a pod.
pub(crate) fn kubeconfig() -> Vec<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(list) = set("KUBECONFIG") {
        let given = env::split_paths(&list).filter(|path| !path.as_os_str().is_empty());
        let files: Vec<_> = given.filter_map(|path| std::path::absolute(path).ok()).collect();
        // One of a list that is not there is left out, as `kubectl` does; one alone is said to be missing.
        let found: Vec<_> = files.iter().filter(|path| path.exists()).cloned().collect();
        return if found.is_empty() { files } else { found };
    }
    let own = set("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    own.filter(|path| path.exists()).into_iter().collect()
}

/// The program that drives Docker's microVMs: `sbx` on the search path.
pub(crate) fn sbx() -> Sbx {
    Sbx::new("sbx")
}

/// The part of the caller's environment that commands see. Where temporary files go is not part of it:
/// a session has a `/tmp` of its own, and the caller's folder does not exist inside.
pub(crate) fn shared_environment() -> Vec<(String, String)> {
    let shared = HOST_ENVIRONMENT_ALLOWLIST.iter().filter(|name| **name != "TMPDIR");
    shared.filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?))).collect()
}

/// A variable of the caller's that an option or a manifest names. One that is empty says nothing.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Who hears of events, as the caller's environment says.
#[derive(Debug)]
pub(crate) struct EventSettings {
    /// `BASTIDE_AUDIT`: `off` keeps nothing on record.
    pub(crate) audit: Option<String>,
    /// `BASTIDE_AUDIT_KEY`: the file of the key that signs what is on record.
    pub(crate) audit_key: Option<PathBuf>,
    /// `BASTIDE_EVENTS`: a file, an address of a server, or `-` for standard output.
    pub(crate) sink: Option<String>,
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`: where spans and metrics go.
    pub(crate) otel: Option<String>,
    /// `TRACEPARENT`: the trace of the caller.
    pub(crate) traceparent: Option<String>,
}

/// Reads who hears of events.
pub(crate) fn events() -> EventSettings {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    EventSettings {
        audit: set("BASTIDE_AUDIT"),
        audit_key: set("BASTIDE_AUDIT_KEY").map(PathBuf::from),
        sink: set("BASTIDE_EVENTS"),
        otel: set("OTEL_EXPORTER_OTLP_ENDPOINT"),
        traceparent: set("TRACEPARENT"),
    }
}

/// Who we are on S3-compatible storage, in the words everybody uses.
pub(crate) fn bucket() -> BucketOptions {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let mut options = BucketOptions::default();
    options.endpoint = set("AWS_ENDPOINT_URL_S3").or_else(|| set("AWS_ENDPOINT_URL"));
    options.region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION"));
    options.access_key = set("AWS_ACCESS_KEY_ID");
    options.secret_key = set("AWS_SECRET_ACCESS_KEY");
    options.session_token = set("AWS_SESSION_TOKEN");
    options
}
