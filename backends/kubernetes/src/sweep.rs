//! What a cluster has of ours that no session leads to.

use std::path::Path;

use bastide::{Result, SessionId, SweepMode};

use crate::cluster::Cluster;
use crate::objects::NamedObject;
use crate::pod::{HOME_LABEL, SESSION_LABEL};

/// Removes what belongs to sessions of this home that are gone, if `mode` says so, and says what it was. The cluster is
/// asked first: what is made after that has a folder already.
pub(crate) async fn sweep(
    cluster: &Cluster,
    path: &Path,
    home: &str,
    mode: SweepMode,
) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for (api, resource, kind) in
        [("/apis/batch/v1", "jobs", "job"), ("/api/v1", "persistentvolumeclaims", "volume")]
    {
        let objects = cluster.path(api, resource);
        let what = format!("list the {kind}s of this home");
        let found: Vec<NamedObject> =
            match cluster.list(&objects, &format!("{HOME_LABEL}={home}"), &what).await {
                // Who may not look at volumes has made none.
                Err(error) if error.status() == Some(403) && kind == "volume" => continue,
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

/// Whether the session an object is labelled with has no folder. One that cannot be looked at is there.
fn is_orphan(home: &Path, object: &NamedObject) -> bool {
    let id = object.metadata.labels.get(SESSION_LABEL).and_then(|id| id.parse::<SessionId>().ok());
    let is_going = object.metadata.deletion_timestamp.is_some();
    id.is_some_and(|id| matches!(home.join("sessions").join(id.as_str()).try_exists(), Ok(false)))
        && !is_going
}
