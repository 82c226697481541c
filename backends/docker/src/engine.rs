//! Talking to an engine: every wait has a deadline, and every failure says what to do next.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::path::Path;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use bollard::errors::Error as EngineError;
use bollard::{API_DEFAULT_VERSION, Docker};

use crate::EngineAddress;

/// How long the engine may take for something small.
pub(crate) const SMALL: Duration = Duration::from_secs(10);

/// How long the engine may take to make, start, stop or remove something.
pub(crate) const LARGE: Duration = Duration::from_secs(60);

/// An engine that answered.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) docker: Docker,
    pub(crate) address: EngineAddress,
}

impl Engine {
    /// Finds out whether an engine is there, and which version of its interface it speaks.
    pub(crate) async fn connect(address: &EngineAddress) -> Result<Self> {
        let most = LARGE.as_secs() * 2;
        let made = match address {
            EngineAddress::Unix(path) => {
                Docker::connect_with_unix(&path.to_string_lossy(), most, API_DEFAULT_VERSION)
            }
            EngineAddress::Tcp(host) => {
                Docker::connect_with_http(&format!("http://{host}"), most, API_DEFAULT_VERSION)
            }
            EngineAddress::Tls { host, certificates } => {
                let file = |name: &str| certificates.join(name);
                let (key, cert, ca) = (file("key.pem"), file("cert.pem"), file("ca.pem"));
                let host = format!("https://{host}");
                // A program that links more than one implementation has to choose; a choice that was
                // made already stands.
                drop(rustls::crypto::ring::default_provider().install_default());
                Docker::connect_with_ssl(&host, &key, &cert, &ca, most, API_DEFAULT_VERSION)
            }
        };
        let docker = made.map_err(|error| unreachable_engine(address, error))?;
        let negotiated = tokio::time::timeout(SMALL, docker.negotiate_version()).await;
        let docker = negotiated
            .map_err(|_| silent(address))?
            .map_err(|error| failed(address, "agree with the Docker daemon", error))?;
        Ok(Self { docker, address: address.clone() })
    }

    /// Waits for the engine, but not for ever. The failure says what was being done.
    pub(crate) async fn ask<T>(
        &self,
        most: Duration,
        what: &str,
        call: impl Future<Output = std::result::Result<T, EngineError>>,
    ) -> Result<T> {
        match tokio::time::timeout(most, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failed(&self.address, what, error)),
            Err(_) => Err(silent(&self.address).with_context("doing", what)),
        }
    }
}

/// What the engine says there is not any more is what was wanted.
pub(crate) fn unless_missing<T>(done: Result<T>) -> Result<()> {
    match done {
        Err(error) if error.status() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

fn failed(address: &EngineAddress, what: &str, error: EngineError) -> Error {
    let EngineError::DockerResponseServerError { status_code, message } = &error else {
        return unreachable_engine(address, error).with_context("doing", what);
    };
    let kind = match status_code {
        400 => ErrorKind::InvalidInput,
        401 | 403 => ErrorKind::PermissionDenied,
        404 => ErrorKind::NotFound,
        409 => ErrorKind::Conflict,
        _ => ErrorKind::Io,
    };
    let message = format!("cannot {what}: {}", message.trim());
    let passing = [500, 502, 503, 504].contains(status_code).then_some(true);
    Error::new(kind, message).with_status(*status_code).with_retryable(passing)
}

/// Whether an engine did not answer, or nobody was there to.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    error.kind() == ErrorKind::BackendLost
}

pub(crate) fn silent(address: &EngineAddress) -> Error {
    let message = format!("the Docker daemon at {address} does not answer");
    Error::new(ErrorKind::BackendLost, message)
        .with_context("reason", "backend_lost")
        .with_hint("look at its log; its containers may still run")
}

/// Nobody is there, or nobody that may be talked to.
fn unreachable_engine(address: &EngineAddress, error: EngineError) -> Error {
    // A socket in a folder that is closed to this user may be there all the same.
    let found = address.socket().map(Path::try_exists);
    let kind = match &found {
        Some(Err(error)) => Some(error.kind()),
        _ => io_kind(&error),
    };
    let (why, hint) = match kind {
        _ if matches!(found, Some(Ok(false))) => (
            "nothing listens there".to_owned(),
            "install Docker and start its daemon, or say where it is with DOCKER_HOST",
        ),
        Some(io::ErrorKind::PermissionDenied) => (
            "this user may not".to_owned(),
            "join its group with `sudo usermod --append --groups docker $USER` (that is as good as \
             being root), or use a rootless daemon",
        ),
        Some(io::ErrorKind::ConnectionRefused) => {
            ("nobody listens there any more".to_owned(), "start the Docker daemon")
        }
        _ => (innermost(&error), "look at the daemon's log"),
    };
    let message = format!("cannot reach the Docker daemon at {address}: {why}");
    Error::new(ErrorKind::BackendLost, message)
        .with_context("reason", "backend_lost")
        .with_hint(hint)
}

fn io_kind(error: &EngineError) -> Option<io::ErrorKind> {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        source = error.source();
    }
    None
}

/// What went wrong at the bottom: what lies above only says that something did.
fn innermost(error: &EngineError) -> String {
    let mut error: &dyn StdError = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Whether a path of this host can be named to an engine at all.
pub(crate) fn named(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        let message = format!("{} is no text, which engines want", path.display());
        Error::new(ErrorKind::InvalidInput, message)
    })
}
