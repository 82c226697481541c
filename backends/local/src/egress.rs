//! Networks with a policy: what the warden is handed to serve one, what of it is inside, and how its proxy is asked.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bastide::backend::EgressNetworks;
use bastide::egress::{Egress, EgressRequest, EgressResponse};
use bastide::host::egress::{
    MACHINE_BUNDLES, ask_proxy, machine_bundle, proxy_start, seal_secrets, trust_variables,
};
use bastide::{
    Backend, Error, ErrorKind, Isolation, Machine, MachineSpec, Result, Rung, SessionId,
};
use bastide_guest_bin::InstalledProgram;
use bastide_proto::boot::{EgressBoot, RootStep, TrustBundle};
use rustix::fs::{Mode, OFlags, open};

use crate::LocalBackend;
use crate::backend::copied;
use crate::layout::{self, ACCOUNTS, CARGO_CONFIG};
use crate::plan::PlanInput;

/// The certificates programs inside trust, in the session's folder, and inside.
const BUNDLE: &str = "trusted.pem";
const BUNDLE_INSIDE: &str = "/run/accounts/trusted.pem";

/// How much of a file of certificates is read. Those of whole systems are a quarter of that.
const MAX_CERTIFICATES: u64 = 1 << 20;

/// How a certificate begins and ends.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// What a warden is handed to serve a network.
#[derive(Debug)]
pub(crate) struct EgressSetup {
    program: Arc<InstalledProgram>,
    secrets: Option<OwnedFd>,
}

impl EgressSetup {
    /// In the order in which the warden takes them.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [self.program.as_fd()].into_iter().chain(self.secrets.iter().map(AsFd::as_fd))
    }
}

impl LocalBackend {
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

/// The variables by which programs of a session find certificates: those of its own authority where TLS is read, and
/// otherwise those that this machine's package managers are set to trust.
pub(crate) fn variables(spec: &MachineSpec, trusted: &[TrustedFile]) -> Vec<(String, String)> {
    debug_assert!(BUNDLE_INSIDE.starts_with(ACCOUNTS), "nowhere else can files be made");
    let mut variables = trust_variables(spec, BUNDLE_INSIDE);
    for file in trusted {
        if !variables.iter().any(|(known, _)| *known == file.variable) {
            variables.push((file.variable.clone(), file.inside.clone()));
        }
    }
    variables
}

/// What shows package managers inside what this machine's are set to use, where no variable can.
pub(crate) fn manager_steps(spec: &MachineSpec, trusted: &[TrustedFile]) -> Vec<RootStep> {
    let copied = trusted.iter().filter_map(|file| {
        Some(RootStep::File { target: file.inside.clone(), content: file.copy.clone()? })
    });
    let config = spec.egress.iter().filter_map(|egress| egress.cargo_config.clone());
    let config = config.map(|content| RootStep::File { target: CARGO_CONFIG.to_owned(), content });
    copied.chain(config).collect()
}

/// Certificates that a package manager of this machine is set to trust.
#[derive(Debug)]
pub(crate) struct TrustedFile {
    /// The variable that tells the managers inside.
    variable: String,
    /// Where they find the file.
    inside: String,
    /// What is in it, if commands do not see the machine's own.
    copy: Option<String>,
}

/// What of the certificates that package managers are set to trust can be shown inside. What is no file that can be read,
/// or has no certificate in it, is as good to them as nothing.
pub(crate) fn trusted_files(spec: &MachineSpec) -> Vec<TrustedFile> {
    let reads = spec.egress.as_ref().is_some_and(Egress::reads);
    let mut found: Vec<TrustedFile> = Vec::new();
    for (variable, file) in spec.egress.iter().flat_map(|egress| &egress.certificates) {
        // Who is told of a file trusts nobody else, and the session's authority is in that one.
        let shown = reads.then(|| (BUNDLE_INSIDE.to_owned(), None));
        let shown = shown.or_else(|| visible(file).map(|path| (path, None)));
        let shown = shown.or_else(|| {
            let inside = format!("{ACCOUNTS}/trusted-{}.pem", found.len());
            Some((inside, Some(certificates_in(file)?)))
        });
        if let Some((inside, copy)) = shown {
            found.push(TrustedFile { variable: variable.clone(), inside, copy });
        }
    }
    found
}

/// Where a file of this machine is inside, if commands see it there: it may be a link to one that they do not see.
fn visible(file: &Path) -> Option<String> {
    let really = file.canonicalize().ok().filter(|really| really.is_file())?;
    (layout::shows(file) && layout::shows(&really)).then(|| file.to_str().map(str::to_owned))?
}

/// The certificates in a file of this machine, and nothing else of it: keys may lie beside them.
fn certificates_in(path: &Path) -> Option<String> {
    // Nobody waits for whoever writes to a pipe.
    let file =
        open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let file = File::from(file);
    file.metadata().ok().filter(Metadata::is_file)?;
    let mut text = Vec::new();
    file.take(MAX_CERTIFICATES + 1).read_to_end(&mut text).ok()?;
    u64::try_from(text.len()).ok().filter(|length| *length <= MAX_CERTIFICATES)?;
    let (mut kept, mut block) = (String::new(), None::<String>);
    for line in String::from_utf8_lossy(&text).lines() {
        match (line, &mut block) {
            (BEGIN, _) => block = Some(format!("{BEGIN}\n")),
            (END, Some(begun)) => {
                kept.extend([begun.as_str(), END, "\n"]);
                block = None;
            }
            (line, Some(begun)) if !line.starts_with('-') => begun.extend([line, "\n"]),
            _ => block = None,
        }
    }
    (!kept.is_empty()).then_some(kept)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_certificates_of_a_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pem");
        let certificate = format!("{BEGIN}\nAAAA\n{END}\n");
        let key = "-----BEGIN PRIVATE KEY-----\nBBBB\n-----END PRIVATE KEY-----\n";
        let write = |content: &str| std::fs::write(&path, content).unwrap();
        write(&format!(
            "# mine\r\n{key}{certificate}said by nobody\n{}",
            certificate.replace('\n', "\r\n")
        ));
        assert_eq!(certificates_in(&path).unwrap(), certificate.repeat(2));
        write(&format!("{BEGIN}\n{key}{certificate}"));
        assert_eq!(certificates_in(&path).unwrap(), certificate);
        for nothing in ["", key, "root:x:0:0\n", BEGIN, &format!("{BEGIN}\n{key}")] {
            write(nothing);
            assert_eq!(certificates_in(&path), None, "{nothing:?}");
        }
        write(&certificate.repeat(1 << 15));
        assert_eq!(certificates_in(&path), None);
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for other in [pipe.as_path(), folder.path(), Path::new("/dev/zero"), Path::new("/nowhere")]
        {
            assert_eq!(certificates_in(other), None, "{}", other.display());
        }
    }
}
