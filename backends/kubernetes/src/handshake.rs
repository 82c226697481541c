//! Meeting the first process of a pod: it is called, receives what the session is, and says what is in force.

use std::io;
use std::time::Duration;

use bastide::backend::Duplex;
use bastide::{Error, ErrorKind, Result};
use bastide_proto::boot::{Resolver, ResourceLimits};
use bastide_proto::container::{ContainerSpec, MAX_SPEC};
use bastide_proto::hello::Token;
use bastide_proto::pod::{PodLease, PodReady, PodReport, PodSpec};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::boot::Boot;
use crate::failure::shortened;
use crate::objects::Pod;
use crate::proof;

/// How long the guest may take to start what it starts.
const REPORT: Duration = Duration::from_secs(30);

/// How long a pod outlives its maker, until the session is let go of: a little longer than a link that broke may take to go
/// on, or an API server that is away would end what its maker still wants.
const MAKER: Duration = Duration::from_secs(95);

/// How long it lasts from then on without any host.
const ALONE: Duration = Duration::from_secs(24 * 60 * 60);

/// A pod whose guest has answered.
pub(crate) struct RunningPod {
    pub(crate) pod: Pod,
    pub(crate) report: PodReady,
    pub(crate) stream: Box<dyn Duplex>,
}

/// How a call of the guest went.
pub(crate) enum GuestCall {
    Up(Box<RunningPod>),
    /// It is not there yet, and what was said instead.
    NotYet(String),
}

impl Boot<'_> {
    /// Calls the guest, and tells it what the session is.
    pub(crate) async fn call(&self, pod: Pod, message: &[u8]) -> Result<GuestCall> {
        let opened = match self.cluster.dial(&pod.metadata.name).await {
            Ok(opened) => opened,
            // The node does not know the container yet, or does not answer for a moment.
            Err(error)
                if matches!(error.status(), Some(400 | 404 | 429 | 500 | 502 | 503 | 504)) =>
            {
                return Ok(GuestCall::NotYet(error.message().to_owned()));
            }
            Err(error) if error.kind() == ErrorKind::BackendLost => {
                return Ok(GuestCall::NotYet(error.message().to_owned()));
            }
            Err(error) => return Err(error),
        };
        let mut stream = opened.stream;
        match tokio::time::timeout(REPORT, exchange(&mut stream, message)).await {
            Ok(Ok(PodReport::Up(report))) => {
                Ok(GuestCall::Up(Box::new(RunningPod { pod, report: *report, stream })))
            }
            Ok(Ok(PodReport::Failed(failure))) => {
                let system = io::Error::from_raw_os_error(failure.errno);
                let message = format!("cannot {}: {system}", shortened(&failure.step));
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Ok(Err(error)) => Ok(GuestCall::NotYet(format!("{error} {}", opened.end.reason()))),
            Err(_) => {
                let message =
                    format!("the guest of session {} did not start in time", self.folder.id());
                Err(Error::new(ErrorKind::AgentLost, message))
            }
        }
    }

    /// What the first process is told.
    pub(crate) fn message(&self, token: &Token) -> io::Result<Vec<u8>> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let spec = PodSpec {
            container: self.container_spec(token),
            lease: PodLease { maker_ms: millis(MAKER), ttl_ms: millis(ALONE) },
            probes: proof::addresses(&self.cluster.server),
        };
        bastide_proto::encode_prefixed(&spec).map_err(io::Error::other)
    }

    fn container_spec(&self, token: &Token) -> ContainerSpec {
        let grants = |read_only: bool| {
            let kept = self.spec.grants.iter().filter(move |grant| grant.read_only == read_only);
            kept.map(|grant| grant.path.as_str().to_owned())
        };
        let claims = |read_only: bool| {
            let all = self.made_with.options.claims.iter();
            let kept = all.filter(move |claim| claim.read_only == read_only);
            kept.map(|claim| claim.path.as_str().to_owned())
        };
        let root = self.spec.root.as_str().to_owned();
        let limits = &self.spec.limits;
        ContainerSpec {
            token: token.0,
            user: None,
            limits: ResourceLimits {
                memory: None,
                pids: limits.pids,
                cpu_millis: limits.cpu_millis,
                disk: limits.disk,
            },
            writable: std::iter::once(root).chain(grants(false)).chain(claims(false)).collect(),
            readable: grants(true).chain(claims(true)).collect(),
            identities: Vec::new(),
            writes_to_host: false,
            resolver: Resolver::default(),
            filtered: true,
            new_privileges: false,
            mounts: false,
        }
    }
}

async fn exchange(stream: &mut Box<dyn Duplex>, message: &[u8]) -> io::Result<PodReport> {
    stream.write_all(message).await?;
    stream.flush().await?;
    let mut prefix = [0; LENGTH_BYTES];
    stream.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, MAX_SPEC).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    bastide_proto::decode::<PodReport>(&body).map_err(io::Error::other)
}
