//! What a cluster has of ours that no session leads to.

use std::collections::HashSet;
use std::path::Path;

use bastide::{Orphans, Result, SessionId, SweepMode};

use crate::cluster::Cluster;
use crate::guest_parts::GUEST_LABEL;
use crate::objects::{NamedObject, PodVolumes};
use crate::pod::{HOME_LABEL, MANAGED, SESSION_LABEL};
use crate::state::used;
use crate::{KubernetesBackend, Owner};

impl KubernetesBackend {
    /// Removes the guests of other versions that no pod of the namespaces of this home has any more, if `mode` says so.
    ///
    /// # Errors
    ///
    /// Fails if this program is damaged. What a cluster refuses is in what is unclear.
    pub async fn sweep_guests(&self, mode: SweepMode) -> Result<Orphans> {
        let own = self.parts()?.names();
        self.sweep_each(|cluster| {
            let own = own.clone();
            async move { sweep_guests(&cluster, &own, mode).await }
        })
        .await
    }

    /// Does something in every namespace where this home has had sessions.
    pub(crate) async fn sweep_each<F>(&self, act: impl Fn(Cluster) -> F) -> Result<Orphans>
    where
        F: Future<Output = Result<Vec<String>>>,
    {
        let mut all = used(&self.home);
        if all.is_empty() {
            all.push(self.access.clone());
        }
        let mut orphans = Orphans::default();
        for access in all {
            let swept = async { act(self.cluster(&access).await?.cluster.clone()).await };
            match swept.await {
                Ok(found) => orphans.removed.extend(found),
                // What one cluster has can be swept whether or not another answers.
                Err(error) => orphans.unclear.push((access.described(), error.to_string())),
            }
        }
        Ok(orphans)
    }
}

/// Removes what belongs to sessions of this home that are gone, if `mode` says so, and says what it was. The cluster is
/// asked first: what is made after that has a folder already.
pub(crate) async fn sweep(
    cluster: &Cluster,
    path: &Path,
    home: &str,
    mode: SweepMode,
) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    let kinds = [
        (Owner::Job.path(cluster), Owner::Job.kind_name()),
        (Owner::Sandbox.path(cluster), Owner::Sandbox.kind_name()),
        (Owner::Claim.path(cluster), Owner::Claim.kind_name()),
        (cluster.path("/api/v1", "persistentvolumeclaims"), "volume"),
    ];
    for (objects, kind) in kinds {
        let what = format!("list the {kind}s of this home");
        let found: Vec<NamedObject> = match cluster
            .list(&objects, &format!("{HOME_LABEL}={home}"), &what)
            .await
        {
            // Who may not look at them has made none, nor has anybody where there is no such thing.
            Err(error) if matches!(error.status(), Some(403 | 404)) && kind != "job" => continue,
            found => found?,
        };
        for object in found.iter().filter(|object| is_orphan(path, object)) {
            let name = &object.metadata.name;
            if mode == SweepMode::Remove {
                cluster
                    .delete(
                        &format!("{objects}/{name}"),
                        &object.metadata.uid,
                        &format!("remove the {kind} {name}"),
                    )
                    .await?;
            }
            removed.push(format!(
                "the {kind} {name} in the namespace {} of {}",
                cluster.namespace, cluster.server
            ));
        }
    }
    Ok(removed)
}

/// Removes ConfigMaps with guests that no pod of the namespace has, if `mode` says so, and says which. Those of the guest this
/// program has stay: another process may be about to use them.
pub(crate) async fn sweep_guests(
    cluster: &Cluster,
    own: &[String],
    mode: SweepMode,
) -> Result<Vec<String>> {
    let path = cluster.path("/api/v1", "configmaps");
    let maps: Vec<NamedObject> =
        cluster.list(&path, GUEST_LABEL, "list the ConfigMaps with guests").await?;
    // Listed after those: what a pod of this moment uses is among them.
    let pods = cluster.path("/api/v1", "pods");
    let selector = format!("{}={}", MANAGED.0, MANAGED.1);
    let pods: Vec<PodVolumes> = cluster.list(&pods, &selector, "list the pods of sessions").await?;
    let used: HashSet<_> = pods.iter().flat_map(PodVolumes::config_maps).collect();
    let mut removed = Vec::new();
    for map in maps {
        let name = map.metadata.name;
        if used.contains(name.as_str()) || own.contains(&name) {
            continue;
        }
        if mode == SweepMode::Remove {
            let what = format!("remove the ConfigMap {name}");
            cluster.delete(&format!("{path}/{name}"), &map.metadata.uid, &what).await?;
        }
        let (namespace, server) = (&cluster.namespace, &cluster.server);
        removed.push(format!("the ConfigMap {name} in the namespace {namespace} of {server}"));
    }
    Ok(removed)
}

/// Whether the session an object is labelled with has no folder. One that cannot be looked at is there.
fn is_orphan(home: &Path, object: &NamedObject) -> bool {
    let id = object.metadata.labels.get(SESSION_LABEL).and_then(|id| id.parse::<SessionId>().ok());
    let is_going = object.metadata.deletion_timestamp.is_some();
    id.is_some_and(|id| matches!(home.join("sessions").join(id.as_str()).try_exists(), Ok(false)))
        && !is_going
}
