//! What an engine has of ours that no session leads to.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use bastide::{Result, SessionId};
use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder};

use crate::boot::remove;
use crate::engine::{Engine, LARGE, SMALL};
use crate::state::{HOME_LABEL, SESSION_LABEL};

/// Removes what belongs to sessions of `home` that are gone, and says what it was.
pub(crate) async fn sweep(engine: &Engine, home: &Path) -> Result<Vec<String>> {
    let label = format!("{HOME_LABEL}={}", home.display());
    let filters: HashMap<String, Vec<String>> = [("label".to_owned(), vec![label])].into();
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let listed = engine.docker.list_containers(Some(options));
    let containers = engine.ask(SMALL, "list the containers", listed).await?;
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let listed = engine.docker.list_volumes(Some(options));
    // A driver that is gone makes an engine try for a quarter of a minute before it answers.
    let volumes = engine.ask(LARGE, "list the volumes", listed).await?;
    let volumes = volumes.volumes.unwrap_or_default();
    let ours = containers.into_iter().filter_map(|container| container.labels);
    let labels = ours.chain(volumes.iter().map(|volume| volume.labels.clone()));
    let sessions: BTreeSet<SessionId> = labels
        .filter_map(|labels| labels.get(SESSION_LABEL)?.parse().ok())
        .filter(|id: &SessionId| !home.join("sessions").join(id.as_str()).exists())
        .collect();
    let mut swept = Vec::new();
    for id in sessions {
        let is_its = |label: Option<&String>| label.is_some_and(|label| label == id.as_str());
        let its = volumes.iter().filter(|volume| is_its(volume.labels.get(SESSION_LABEL)));
        let names: Vec<_> = its.map(|volume| volume.name.clone()).collect();
        remove(engine, id.as_str(), &names).await?;
        swept.push(format!("what the Docker daemon had of session {id}"));
    }
    Ok(swept)
}
