//! Networks with a policy, as far as the backends of this host have them in common: what the proxy of one is started with, what
//! programs inside trust, and how the proxy is asked.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::egress::{EgressStart, NAME_RANGE};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use super::make_private;
use crate::backend::MachineSpec;
use crate::egress::{Egress, EgressRequest, EgressResponse};
use crate::events::egress_notes;
use crate::{Error, ErrorKind, Result, SessionId, warden_client};

/// How long the proxy may take to answer. A change of policy ends connections.
const ANSWER: Duration = Duration::from_secs(20);

/// How many seconds a session may live at most, as the certificate of its authority is to outlast it.
const LEASE_SECONDS: u64 = 30 * 24 * 3600;

/// Where machines keep the certificates that programs trust, in one file.
pub const MACHINE_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The variables by which programs that carry certificates of their own are told others.
const TRUST_VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
];

/// The file in which this machine has the certificates that programs trust.
#[must_use]
pub fn machine_bundle() -> Option<PathBuf> {
    MACHINE_BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// The variables of a session whose TLS is read; `bundle` is where the file of certificates is inside.
#[must_use]
pub fn trust_variables(spec: &MachineSpec, bundle: &str) -> Vec<(String, String)> {
    let reads = spec.egress.as_ref().is_some_and(Egress::reads);
    let names = TRUST_VARIABLES.iter().filter(|_| reads);
    names.map(|name| ((*name).to_owned(), bundle.to_owned())).collect()
}

/// What the proxy of a session is told.
#[must_use]
pub fn proxy_start(home: &Path, id: &SessionId, egress: &Egress) -> EgressStart {
    EgressStart {
        session_id: id.to_string(),
        policy: egress.policy.to_value().to_string(),
        has_secrets: !egress.secrets.is_empty(),
        has_authority: false,
        notes: egress_notes(home, id),
        resolv_conf: PathBuf::from("/etc/resolv.conf"),
        hosts: PathBuf::from("/etc/hosts"),
        roots: None,
        name_range: NAME_RANGE,
        lease_seconds: LEASE_SECONDS,
        package_cache: keeps_packages(egress).then(|| home.join(PACKAGE_CACHE)),
    }
}

/// The folder of a home in which packages are kept for other sessions.
const PACKAGE_CACHE: &str = "package-cache";

/// Whether packages that a session fetches are kept.
fn keeps_packages(egress: &Egress) -> bool {
    egress.policy.rules.iter().any(|rule| rule.cache)
}

/// The secrets of a network in memory that nobody can change; none if it has none. The folder for what its proxy notes is
/// there after that.
///
/// # Errors
///
/// [`ErrorKind::Io`] if the system refuses either.
pub fn seal_secrets(home: &Path, id: &SessionId, egress: &Egress) -> Result<Option<OwnedFd>> {
    let sealed = || -> io::Result<Option<OwnedFd>> {
        if let Some(folder) = egress_notes(home, id).parent() {
            make_private(folder)?;
        }
        if keeps_packages(egress) {
            make_private(&home.join(PACKAGE_CACHE))?;
        }
        if egress.secrets.is_empty() {
            return Ok(None);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("bastide-secrets", flags)?);
        file.write_all(&bastide_proto::encode(&egress.secrets).map_err(io::Error::other)?)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(Some(file.into()))
    };
    sealed().map_err(|error| {
        let message = format!("cannot prepare the network of a session: {error}");
        Error::new(ErrorKind::Io, message)
    })
}

/// Asks the proxy of the session whose folder that is. `None` if its network was closed because no proxy stayed alive.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if its network has no policy, [`ErrorKind::BackendLost`] if the proxy does not answer in time.
pub async fn ask_proxy(
    dir: &Path,
    id: &SessionId,
    request: &EgressRequest,
) -> Result<Option<EgressResponse>> {
    warden_client::egress(dir, request, ANSWER).await.map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::OPNOTSUPP) => {
                let message = format!("the network of session {id} has no policy");
                Error::new(ErrorKind::Conflict, message)
            }
            _ => {
                let message =
                    format!("the proxy of session {id}'s network does not answer: {error}");
                Error::new(ErrorKind::BackendLost, message)
            }
        }
    })
}
