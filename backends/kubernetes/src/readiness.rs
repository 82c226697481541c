//! What is asked of a cluster before sessions are made there, once in a while.

use std::time::{Duration, Instant};

use bastide::Result;
use tokio::sync::Mutex;

use crate::cluster::{Call, Cluster};
use crate::objects::Version;
use crate::owner::check_served;
use crate::rights::{self, Requirement};
use crate::{KubernetesBackend, KubernetesOptions, Owner};

/// How long what was found out about a namespace is believed: rights, the guest in it, and the namespace itself may go.
const BELIEVED: Duration = Duration::from_secs(600);

/// A cluster, and what was found out about it.
pub(crate) struct KnownCluster {
    pub(crate) cluster: Cluster,
    pub(crate) ready: Mutex<Option<Readiness>>,
}

/// What was found out.
#[derive(Clone)]
pub(crate) struct Readiness {
    at: Instant,
    pub(crate) version: Version,
    pub(crate) namespace_uid: Option<String>,
    with_volumes: bool,
    kind: Owner,
    /// Whether the guest is there in ConfigMaps.
    with_parts: bool,
}

impl KubernetesBackend {
    /// Asks what has to be asked before the first session in a namespace.
    pub(crate) async fn ready(
        &self,
        known: &KnownCluster,
        options: &KubernetesOptions,
    ) -> Result<Readiness> {
        let mut ready = known.ready.lock().await;
        let with_volumes = options.volume.is_some();
        let kind = options.kind();
        // A pool has brought the guest.
        let with_parts = options.guest_image.is_none() && options.pool.is_none();
        let is_enough = |found: &&Readiness| {
            found.at.elapsed() < BELIEVED
                && (found.with_volumes || !with_volumes)
                // What every session needs was asked for with the others, too.
                && (found.kind == kind || kind == Owner::Job)
                && (found.with_parts || !with_parts)
        };
        if let Some(found) = ready.as_ref().filter(is_enough) {
            return Ok(found.clone());
        }
        let cluster = &known.cluster;
        let namespace_uid = cluster.namespace_uid().await?;
        // A session from a pool asks once it was told that there is no such thing.
        if kind == Owner::Sandbox {
            check_served(cluster, kind).await?;
        }
        let wanted = |need: Requirement| match need {
            Requirement::Always => true,
            Requirement::Volume => with_volumes,
            Requirement::Sandbox => kind == Owner::Sandbox,
            Requirement::Pool => kind == Owner::Claim,
            Requirement::Extra => false,
        };
        rights::check(cluster, &rights::missing(cluster, wanted).await?)?;
        let version =
            cluster.ask(Call::get("/version", "ask for the version of the cluster")).await?;
        if with_parts {
            self.parts()?.ensure(cluster).await?;
        }
        let at = Instant::now();
        let found = Readiness { at, version, namespace_uid, with_volumes, kind, with_parts };
        *ready = Some(found.clone());
        Ok(found)
    }
}
