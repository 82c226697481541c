//! The first process of a pod: in a folder that belongs to nobody, started by nobody who is still there, once.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use bastide_proto::boot::UserAndGroup;
use bastide_proto::container::{ContainerReady, RUN_PATH};
use bastide_proto::pod::{OWN_PATH, PodLease, PodReady, PodReport, PodSpec, ProbeResult};
use rustix::process::{getegid, geteuid};
use serde_bytes::ByteBuf;

use super::probe::probe;
use super::{ARRIVAL, HostConnection, HostWait, await_host, listen};

/// Where a cluster puts tokens of its own.
const CLUSTER_TOKEN: &str = "/var/run/secrets/kubernetes.io";

/// What a pod is told besides what every container is.
pub(super) struct PodPlan {
    pub(super) lease: PodLease,
    probes: Vec<ProbeResult>,
    /// Read before this process closes itself to everybody, its own user among them.
    environment: Vec<(ByteBuf, ByteBuf)>,
}

/// Waits for the host; `None` if a guest was here before.
pub(super) fn wait(patience: HostWait) -> io::Result<Option<HostConnection>> {
    let own = Path::new(OWN_PATH);
    if !claim(Path::new(RUN_PATH), own)? {
        return Ok(None);
    }
    let listener = listen(own)?;
    let most = match patience {
        HostWait::Short => Some(ARRIVAL),
        HostWait::Endless => None,
    };
    let (host, PodSpec { container, lease, probes }) = await_host(&listener, most)?;
    let variables = fs::read("/proc/self/environ").unwrap_or_default();
    let tried: Vec<_> = probes.into_iter().chain(api_server(&variables)).collect();
    let probes = probe(&tried);
    let environment = of_image(&variables);
    let pod = Some(PodPlan { lease, probes, environment });
    Ok(Some(HostConnection { host, spec: container, pod, listener }))
}

/// Makes the guest's own folder; whether it was not there. Where this process owns what it lies in, as root does,
/// nobody else changes anything there from now on.
fn claim(run: &Path, own: &Path) -> io::Result<bool> {
    match fs::DirBuilder::new().mode(0o700).create(own) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        made => made?,
    }
    if fs::metadata(run)?.uid() == geteuid().as_raw() {
        fs::set_permissions(run, fs::Permissions::from_mode(0o711))?;
    }
    Ok(true)
}

impl PodPlan {
    /// What the pod says of itself.
    pub(super) fn report(&self, container: ContainerReady) -> PodReport {
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        PodReport::Up(Box::new(PodReady {
            container,
            environment: self.environment.clone(),
            folder: folder.to_string_lossy().into_owned(),
            started_as: UserAndGroup { uid: geteuid().as_raw(), gid: getegid().as_raw() },
            probes: self.probes.clone(),
            has_cluster_token: Path::new(CLUSTER_TOKEN).exists(),
            uid_map: fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
        }))
    }
}

/// Where the cluster says that its API server is, which every pod is told. It must be no more reachable than the addresses
/// that the host names.
fn api_server(environment: &[u8]) -> Option<SocketAddr> {
    let value = |name: &str| {
        let mut all = environment.split(|byte| *byte == 0);
        let text = all.find_map(|variable| variable.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(text).ok()
    };
    let host = value("KUBERNETES_SERVICE_HOST=")?.parse().ok()?;
    Some(SocketAddr::new(host, value("KUBERNETES_SERVICE_PORT=")?.parse().ok()?))
}

/// The variables of an environment, less what a cluster says about its services.
fn of_image(environment: &[u8]) -> Vec<(ByteBuf, ByteBuf)> {
    let variables: Vec<(&[u8], &[u8])> = environment
        .split(|byte| *byte == 0)
        .filter_map(|variable| {
            let at = variable.iter().position(|byte| *byte == b'=').filter(|at| *at > 0)?;
            Some((variable.get(..at)?, variable.get(at + 1..)?))
        })
        .collect();
    let services: Vec<&[u8]> =
        variables.iter().filter_map(|(name, _)| name.strip_suffix(b"_SERVICE_HOST")).collect();
    let is_service = |name: &[u8]| {
        name.starts_with(b"KUBERNETES_")
            || services.iter().any(|service| {
                name.strip_prefix(*service).is_some_and(|rest| {
                    rest == b"_PORT"
                        || rest.starts_with(b"_PORT_")
                        || rest.starts_with(b"_SERVICE_")
                })
            })
    };
    let kept = variables.iter().filter(|(name, _)| !is_service(name));
    kept.map(|(name, value)| (ByteBuf::from(*name), ByteBuf::from(*value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_the_image_says() {
        let environment = b"PATH=/bin\0KUBERNETES_PORT=tcp://10.0.0.1\0DB_SERVICE_HOST=10.0.0.2\0DB_PORT=1\0\
            DB_PORT_5432_TCP=2\0DB_SERVICE_PORT_X=3\0DB_PORTAL=kept\0OTHER_PORT=kept\0EMPTY=\0=odd\0broken\0A=b=c\0";
        let kept: Vec<_> = of_image(environment)
            .into_iter()
            .map(|(name, value)| {
                let text = |bytes: ByteBuf| String::from_utf8(bytes.into_vec()).unwrap();
                (text(name), text(value))
            })
            .collect();
        let expected = [
            ("PATH", "/bin"),
            ("DB_PORTAL", "kept"),
            ("OTHER_PORT", "kept"),
            ("EMPTY", ""),
            ("A", "b=c"),
        ];
        assert_eq!(kept, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn finds_the_api_server_in_what_every_pod_is_told() {
        let given = b"A=b\0KUBERNETES_SERVICE_HOST=10.96.0.1\0KUBERNETES_SERVICE_PORT=443\0";
        assert_eq!(api_server(given), Some("10.96.0.1:443".parse().unwrap()));
        for nothing in
            [&b"A=b\0"[..], b"KUBERNETES_SERVICE_HOST=name\0KUBERNETES_SERVICE_PORT=443\0"]
        {
            assert_eq!(api_server(nothing), None);
        }
    }

    #[test]
    fn starts_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let own = folder.path().join("guest");
        assert!(claim(folder.path(), &own).unwrap());
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions().mode() & 0o7777, 0o711);
        assert!(!claim(folder.path(), &own).unwrap());
        assert!(claim(folder.path(), &folder.path().join("no/such")).is_err());
    }
}
