//! Networks with a policy: what the warden is handed to serve one, what of it is inside, and how its proxy is asked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bastide::backend::EgressNetworks;
use bastide::egress::{EgressRequest, EgressResponse};
use bastide::host::egress::{
    MACHINE_BUNDLES, ask_proxy, machine_bundle, proxy_start, seal_secrets, trust_variables,
};
use bastide::{
    Backend, Error, ErrorKind, Isolation, Machine, MachineSpec, Result, Rung, SessionId,
};
use bastide_guest_bin::InstalledProgram;
use bastide_proto::boot::{EgressBoot, RootStep, TrustBundle};

use crate::LocalBackend;
use crate::backend::copied;
use crate::layout::ACCOUNTS;
use crate::plan::PlanInput;

/// The certificates programs inside trust, in the session's folder, and inside.
const BUNDLE: &str = "trusted.pem";
const BUNDLE_INSIDE: &str = "/run/accounts/trusted.pem";

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
        let secrets = seal_secrets(self.home(), id, egress)?;
        Ok(Some(EgressHandout { program: self.sidecar().await?, secrets }))
    }
}

/// What the warden is told of the network of a session, if it has a policy.
pub(crate) fn boot(input: &PlanInput<'_>) -> Option<EgressBoot> {
    let egress = input.spec.egress.as_ref()?;
    let start = proxy_start(input.home, input.id, egress);
    let path = input.dir.join(BUNDLE);
    let bundle = egress.reads().then(|| TrustBundle { path, machine: machine_bundle() });
    Some(EgressBoot { start, bundle })
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
    trust_variables(spec, BUNDLE_INSIDE)
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
        ask_proxy(&dir, &machine.id, request).await
    }
}
