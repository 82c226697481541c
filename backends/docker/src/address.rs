//! Where an engine is reached.

use std::fmt;
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// Where an engine listens unless somebody says otherwise.
const USUAL: &str = "/var/run/docker.sock";

/// The address of an engine, in the forms of `DOCKER_HOST`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum EngineAddress {
    /// A Unix socket of this machine.
    Unix(PathBuf),
    /// A host and port, without authentication.
    Tcp(String),
    /// A host and port, with mutual TLS.
    Tls {
        /// The host and port.
        host: String,
        /// The folder with `ca.pem`, `cert.pem` and `key.pem`.
        certificates: PathBuf,
    },
}

impl EngineAddress {
    /// Parses the value of `DOCKER_HOST`, with the folder of `DOCKER_CERT_PATH` if TLS is wanted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if it is not an address that is supported.
    pub fn parse(host: &str, certificates: Option<PathBuf>) -> Result<Self> {
        if let Some(path) = host.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let tcp = ["tcp://", "http://", "https://"].iter().find_map(|kind| host.strip_prefix(kind));
        match (tcp.filter(|tcp| !tcp.is_empty()), certificates) {
            (Some(tcp), Some(certificates)) => Ok(Self::Tls { host: tcp.to_owned(), certificates }),
            (Some(_), None) if host.starts_with("https://") => {
                let message = format!("{host:?} needs certificates, and none are given");
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("name their folder with DOCKER_CERT_PATH"))
            }
            (Some(tcp), None) => Ok(Self::Tcp(tcp.to_owned())),
            (None, _) => {
                let message = format!("{host:?} is no address of a Docker daemon");
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("addresses begin with unix:/// or tcp://"))
            }
        }
    }

    /// The path of the Unix socket, if it is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) | Self::Tls { .. } => None,
        }
    }
}

impl Default for EngineAddress {
    fn default() -> Self {
        Self::Unix(PathBuf::from(USUAL))
    }
}

impl fmt::Display for EngineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(host) | Self::Tls { host, .. } => write!(f, "tcp://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_docker_host_says() {
        let keys = || Some(PathBuf::from("/keys"));
        let cases = [
            ("unix:///run/docker.sock", None, Some("unix:///run/docker.sock")),
            ("tcp://localhost:2375", None, Some("tcp://localhost:2375")),
            ("tcp://localhost:2376", keys(), Some("tcp://localhost:2376")),
            ("https://localhost:2376", None, None),
            ("unix://relative", None, None),
            ("tcp://", None, None),
            ("ssh://host", None, None),
            ("", None, None),
        ];
        for (text, certificates, want) in cases {
            let read = EngineAddress::parse(text, certificates).ok();
            assert_eq!(read.map(|address| address.to_string()).as_deref(), want, "{text}");
        }
    }
}
