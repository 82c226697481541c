//! Networks with a policy: the warden beside the container joins its network namespace and leads it to a proxy, so no
//! capability for that is ever inside. That takes root of the machine that containers run on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bastide::backend::EgressNetworks;
use bastide::egress::{EgressRequest, EgressResponse};
use bastide::host::egress::{ask_proxy, machine_bundle, proxy_start, seal_secrets};
use bastide::{Backend, Error, ErrorKind, Machine, MachineSpec, Result, SessionId};
use bastide_guest_bin::InstalledProgram;
use bastide_proto::boot::{EgressBoot, TrustBundle};

use crate::boot::is_own_kernel;
use crate::ownership::{copied, own_state};
use crate::receipt::EngineInfo;
use crate::{DockerBackend, DockerOptions, EngineAddress};

/// The name server of such a container, and how long programs wait for it. Any other address is the same server.
pub(crate) const NAME_SERVER: &str = "198.18.0.1";
pub(crate) const NAME_OPTIONS: [&str; 2] = ["timeout:2", "attempts:2"];

/// The certificates programs inside trust, in the folder that is shown inside.
const BUNDLE: &str = "trusted.pem";

const HINT: &str = "use the backend `local`, or ask for the network `none` or `bridge`";

/// What a warden is handed to serve a network.
#[derive(Debug)]
pub(crate) struct EgressSetup {
    program: Arc<InstalledProgram>,
    secrets: Option<OwnedFd>,
}

impl EgressSetup {
    /// In the order in which the warden takes them.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let secrets = self.secrets.iter().map(AsFd::as_fd);
        [self.program.as_fd()].into_iter().chain(secrets).collect()
    }
}

fn refuse(why: &str, hint: &str) -> Result<()> {
    let message = format!("a network with a policy cannot be had in this container: {why}");
    Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
}

/// Refuses by name what can be told of before the engine is asked.
pub(crate) fn check(options: &DockerOptions, address: &EngineAddress) -> Result<()> {
    if address.socket().is_none() {
        return refuse("its daemon is elsewhere, and so is its network", HINT);
    }
    if let Some(runtime) = options.runtime.as_deref().filter(|name| is_own_kernel(Some(name))) {
        let why = format!("`{runtime}` is a kernel of its own, which shares no network");
        return refuse(&why, HINT);
    }
    if options.only_user.is_some() {
        return refuse("it runs as one user only", "leave out its only user");
    }
    if !rustix::process::geteuid().is_root() {
        let hint = "run bastide as root, or use the backend `local`";
        return refuse("joining its network takes root of this machine", hint);
    }
    Ok(())
}

/// Refuses an engine whose containers cannot be joined.
pub(crate) fn check_engine(about: &EngineInfo) -> Result<()> {
    if is_own_kernel(Some(&about.runtime)) {
        let why = format!("`{}` is a kernel of its own, which shares no network", about.runtime);
        return refuse(&why, HINT);
    }
    if about.user_namespace || about.rootless {
        return refuse("its daemon keeps users of containers apart from this machine's", HINT);
    }
    Ok(())
}

/// The refusal of a container that has no warden beside it.
pub(crate) fn elsewhere() -> Error {
    let why = "its daemon shares neither files nor a kernel with this machine";
    let message = format!("a network with a policy cannot be had in this container: {why}");
    Error::new(ErrorKind::Unsupported, message).with_hint(HINT)
}

/// The folder of this host in which a container finds whom to trust.
pub(crate) fn trust_dir(run: &Path) -> PathBuf {
    run.with_file_name("trust")
}

/// What the warden is told of the network of a session, if it has a policy.
pub(crate) fn boot(
    home: &Path,
    id: &SessionId,
    spec: &MachineSpec,
    run: &Path,
) -> Option<EgressBoot> {
    let start = proxy_start(home, id, spec.egress.as_ref()?);
    let path = trust_dir(run).join(BUNDLE);
    Some(EgressBoot { start, bundle: Some(TrustBundle { path, machine: machine_bundle() }) })
}

/// Where that file is inside.
pub(crate) fn bundle_inside() -> String {
    format!("{}/{BUNDLE}", bastide_proto::container::TRUST_PATH)
}

impl DockerBackend {
    /// What the warden of a session gets to serve its network, if that has a policy.
    pub(crate) async fn egress_setup(
        &self,
        id: &SessionId,
        spec: &MachineSpec,
    ) -> Result<Option<EgressSetup>> {
        let Some(egress) = &spec.egress else { return Ok(None) };
        let secrets = seal_secrets(self.home(), id, egress)?;
        Ok(Some(EgressSetup { program: self.sidecar().await?, secrets }))
    }
}

#[async_trait]
impl EgressNetworks for DockerBackend {
    fn check(&self, _spec: &MachineSpec) -> Result<()> {
        check(&self.options, &self.address)
    }

    async fn ask(
        &self,
        machine: &Machine,
        request: &EgressRequest,
    ) -> Result<Option<EgressResponse>> {
        let (_, Some(state)) = own_state(self.home(), machine)? else {
            return Err(copied(machine));
        };
        ask_proxy(&state.dir, &machine.id, request).await
    }
}
