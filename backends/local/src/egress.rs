//! Networks with a policy: what the warden is handed to serve one, what of it is inside, and how its proxy is asked.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::EgressNetworks;
use bastide::egress::{Egress, EgressRequest, EgressResponse};
use bastide::events::egress_notes;
use bastide::host::make_private;
use bastide::{
    Backend, Error, ErrorKind, Isolation, Machine, MachineSpec, Result, Rung, SessionId,
    warden_client,
};
use bastide_guest_bin::InstalledProgram;
use bastide_proto::boot::{EgressBoot, RootStep, TrustBundle};
use bastide_proto::egress::{EgressStart, NAME_RANGE};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::LocalBackend;
use crate::backend::copied;
use crate::layout::ACCOUNTS;
use crate::plan::PlanInput;

/// How long the proxy may take to answer. A change of policy ends connections.
const ANSWER: Duration = Duration::from_secs(20);

/// The certificates programs inside trust, in the session's folder, and inside.
const BUNDLE: &str = "trusted.pem";
const BUNDLE_INSIDE: &str = "/run/accounts/trusted.pem";

/// Where machines keep the certificates that programs trust, in one file.
const MACHINE_BUNDLES: [&str; 3] =
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

/// How many seconds a session may live at most, as the certificate of its authority is to outlast it.
const LEASE_SECONDS: u64 = 30 * 24 * 3600;

/// What a warden is handed to serve a network.
#[derive(Debug)]
pub(crate) struct EgressHandout {
    program: Arc<InstalledProgram>,
    secrets: Option<OwnedFd>,
}

impl EgressHandout {
    /// In the order in which the warden takes them.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.program.as_fd()].into_iter().chain(self.secrets.iter().map(AsFd::as_fd))
    }
}

impl LocalBackend {
    /// What the warden of a session is handed, if its network has a policy.
    pub(crate) async fn egress_handout(
        &self,
        id: &SessionId,
        spec: &MachineSpec,
    ) -> Result<Option<EgressHandout>> {
        let Some(egress) = &spec.egress else { return Ok(None) };
        let failed = |error: io::Error| {
            let message = format!("cannot prepare the network of a session: {error}");
            Error::new(ErrorKind::Io, message)
        };
        if let Some(folder) = egress_notes(self.home(), id).parent() {
            make_private(folder).map_err(failed)?;
        }
        let secrets = sealed_secrets(egress).map_err(failed)?;
        Ok(Some(EgressHandout { program: self.sidecar().await?, secrets }))
    }
}

/// The secrets of a network in memory that nobody can change; none if it has none.
fn sealed_secrets(egress: &Egress) -> io::Result<Option<OwnedFd>> {
    if egress.secrets.is_empty() {
        return Ok(None);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create("bastide-secrets", flags)?);
    file.write_all(&bastide_proto::encode(&egress.secrets).map_err(io::Error::other)?)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(Some(file.into()))
}

/// What the warden is told of the network of a session, if it has a policy.
pub(crate) fn boot(input: &PlanInput<'_>) -> Option<EgressBoot> {
    let egress = input.spec.egress.as_ref()?;
    let start = EgressStart {
        session_id: input.id.to_string(),
        policy: egress.policy.to_value().to_string(),
        has_secrets: !egress.secrets.is_empty(),
        has_authority: false,
        notes: egress_notes(input.home, input.id),
        resolv_conf: PathBuf::from("/etc/resolv.conf"),
        hosts: PathBuf::from("/etc/hosts"),
        roots: None,
        name_range: NAME_RANGE,
        lease_seconds: LEASE_SECONDS,
    };
    let bundle =
        egress.reads().then(|| TrustBundle { path: input.dir.join(BUNDLE), machine: bundle() });
    Some(EgressBoot { start, bundle })
}

/// The file in which this machine has the certificates that programs trust.
fn bundle() -> Option<PathBuf> {
    MACHINE_BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file())
}

/// What shows the certificates inside: where our variables point, and where programs look by themselves.
pub(crate) fn bundle_steps(bundle: &TrustBundle) -> Vec<RootStep> {
    let shown = |target: &str| RootStep::Bind {
        source: bundle.path.clone(),
        target: target.to_owned(),
        writable: false,
        version: 0,
    };
    let place = RootStep::File { target: BUNDLE_INSIDE.to_owned(), content: String::new() };
    let mut steps = vec![place, shown(BUNDLE_INSIDE)];
    // A link leads to a file that is among them, or to one that is not inside.
    let is_file = |path: &&&str| {
        std::fs::symlink_metadata(Path::new(path)).is_ok_and(|found| found.is_file())
    };
    steps.extend(MACHINE_BUNDLES.iter().filter(is_file).map(|path| shown(path)));
    steps
}

/// The variables of a session whose TLS is read.
pub(crate) fn variables(spec: &MachineSpec) -> Vec<(String, String)> {
    debug_assert!(BUNDLE_INSIDE.starts_with(ACCOUNTS), "nowhere else can files be made");
    let reads = spec.egress.as_ref().is_some_and(Egress::reads);
    let names = TRUST_VARIABLES.iter().filter(|_| reads);
    names.map(|name| ((*name).to_owned(), BUNDLE_INSIDE.to_owned())).collect()
}

/// The refusal on rungs that have no network of the sandbox's own.
pub(crate) fn needs_namespaces(rung: Rung) -> Error {
    let message = format!(
        "a network with a policy needs the rung `namespaces`; on `{}` commands have no network of their own",
        rung.as_str()
    );
    Error::new(ErrorKind::Unsupported, message).with_hint("ask for the network `none` or `host`")
}

#[async_trait]
impl EgressNetworks for LocalBackend {
    fn check(&self, spec: &MachineSpec) -> Result<()> {
        let asked = match spec.isolation {
            Isolation::Auto => self.isolation,
            asked => asked,
        };
        match asked {
            Isolation::Exactly(rung) if rung != Rung::Namespaces => Err(needs_namespaces(rung)),
            _ => Ok(()),
        }
    }

    async fn ask(
        &self,
        machine: &Machine,
        request: &EgressRequest,
    ) -> Result<Option<EgressResponse>> {
        let (dir, Some(_)) = self.own(machine)? else { return Err(copied(machine)) };
        warden_client::egress(&dir, request, ANSWER).await.map_err(|error| {
            let id = &machine.id;
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
}
