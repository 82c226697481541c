//! Removing what a session has in a cluster. Names are anybody's: only what is known by its UID, or labelled as this
//! home's, is removed.

use std::collections::BTreeMap;
use std::time::Duration;

use bastide::{Result, SessionId};

use crate::Owner;
use crate::cluster::{Call, Cluster};
use crate::objects::NamedObject;
use crate::pod::{HOME_LABEL, SESSION_LABEL, object_name};
use crate::watch::PodEvent;

/// How long a pod may take to go before the cluster is left to finish alone: one on a node that does not answer stays
/// until the node does.
const GONE: Duration = Duration::from_secs(30);

/// Whether something is labelled as what this session of this home has.
fn is_own(labels: &BTreeMap<String, String>, home: &str, id: &SessionId) -> bool {
    labels.get(HOME_LABEL).is_some_and(|label| label == home)
        && labels.get(SESSION_LABEL).is_some_and(|label| label == id.as_str())
}

/// Removes the object of a session with its pod, and waits until the pod is gone.
pub(crate) async fn remove_owner(
    cluster: &Cluster,
    owner: Owner,
    home: &str,
    id: &SessionId,
    uid: &str,
) -> Result<()> {
    let path = format!("{}/{}", owner.path(cluster), object_name(id));
    cluster.delete(&path, uid, &format!("remove the {} of the session", owner.kind_name())).await?;
    // The removal is decided; that nobody could watch it end changes nothing.
    drop(tokio::time::timeout(GONE, until_gone(cluster, owner, home, id)).await);
    Ok(())
}

async fn until_gone(cluster: &Cluster, owner: Owner, home: &str, id: &SessionId) -> Result<()> {
    let selector = format!("{}={id}", owner.session_label());
    let path = cluster.path("/api/v1", "pods");
    loop {
        // Opened before anybody looks: a pod that goes in between is missed by neither of the two.
        let mut feed = cluster.pod_feed(owner, home, id).await?;
        let pods: Vec<NamedObject> =
            cluster.list(&path, &selector, "look for the pod of the session").await?;
        if pods.is_empty() {
            return Ok(());
        }
        while let Some(event) = feed.next().await {
            if matches!(event, PodEvent::Gone(_)) {
                break;
            }
        }
    }
}

/// Removes the object that has a session's name, if it is this home's.
pub(crate) async fn remove_own(
    cluster: &Cluster,
    owner: Owner,
    home: &str,
    id: &SessionId,
) -> Result<()> {
    let path = format!("{}/{}", owner.path(cluster), object_name(id));
    let what = format!("look at the {} of the session", owner.kind_name());
    let call = Call::get(path, what).metadata();
    match cluster.find::<NamedObject>(call).await? {
        Some(found) if is_own(&found.metadata.labels, home, id) => {
            remove_owner(cluster, owner, home, id, &found.metadata.uid).await
        }
        _ => Ok(()),
    }
}

/// Removes the volume of a session, if it is this home's.
pub(crate) async fn remove_claim(cluster: &Cluster, home: &str, id: &SessionId) -> Result<()> {
    let path = cluster.path("/api/v1", "persistentvolumeclaims");
    let path = format!("{path}/{}", object_name(id));
    let call = Call::get(path.clone(), "look at the volume of the session").metadata();
    match cluster.find::<NamedObject>(call).await? {
        Some(found) if is_own(&found.metadata.labels, home, id) => {
            cluster.delete(&path, &found.metadata.uid, "remove the volume of the session").await
        }
        _ => Ok(()),
    }
}
