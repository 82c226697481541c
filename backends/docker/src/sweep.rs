//! What an engine has of ours that no session leads to.

use std::collections::{BTreeMap, HashMap};

use bastide::{Orphans, Result, SessionId, SweepMode};
use bollard::query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder};

use crate::engine::{Engine, LARGE, SMALL};
use crate::ownership::{HomeLabel, remove_container, remove_volume};
use crate::state::{HOME_LABEL, SESSION_LABEL};

/// What an engine has of one session.
#[derive(Debug, Default)]
struct SessionObjects {
    containers: Vec<String>,
    volumes: Vec<String>,
}

/// Removes what belongs to sessions of this home that are gone, if `mode` says so, and says what it was.
/// What earlier versions made is labelled with a path, and any machine may have a home there: that is left
/// alone.
pub(crate) async fn sweep(engine: &Engine, home: &HomeLabel, mode: SweepMode) -> Result<Orphans> {
    let mut orphans = Orphans::default();
    for (id, things) in left(engine, home, &home.identity).await? {
        if mode == SweepMode::Remove {
            for container in &things.containers {
                remove_container(engine, container).await?;
            }
            for volume in &things.volumes {
                remove_volume(engine, home, &id, volume).await?;
            }
        }
        orphans.removed.push(format!("what the Docker daemon had of session {id}"));
    }
    for (id, things) in left(engine, home, &home.earlier()).await? {
        let names: Vec<_> = things.containers.iter().chain(&things.volumes).cloned().collect();
        let what = format!("what the Docker daemon has of session {id}: {}", names.join(", "));
        let why = "an earlier version labelled it with the path of a home, which another machine's home \
                   may have, too; remove it with `docker` if it is yours";
        orphans.unclear.push((what, why.to_owned()));
    }
    Ok(orphans)
}

/// What has this label and belongs to sessions that have no folder. The engine is asked first: what is made
/// after that has a folder already.
async fn left(
    engine: &Engine,
    home: &HomeLabel,
    label: &str,
) -> Result<BTreeMap<SessionId, SessionObjects>> {
    let label = format!("{HOME_LABEL}={label}");
    let filters: HashMap<String, Vec<String>> = [("label".to_owned(), vec![label])].into();
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let listed = engine.docker.list_containers(Some(options));
    let containers = engine.ask(SMALL, "list the containers", listed).await?;
    let options = ListVolumesOptionsBuilder::default().filters(&filters).build();
    let listed = engine.docker.list_volumes(Some(options));
    // A driver that is gone makes an engine try for a quarter of a minute before it answers.
    let volumes = engine.ask(LARGE, "list the volumes", listed).await?;
    let session = |labels: &HashMap<String, String>| -> Option<SessionId> {
        let id: SessionId = labels.get(SESSION_LABEL)?.parse().ok()?;
        // A folder that cannot be looked at is there.
        let folder = home.path.join("sessions").join(id.as_str());
        matches!(folder.try_exists(), Ok(false)).then_some(id)
    };
    let mut left: BTreeMap<SessionId, SessionObjects> = BTreeMap::new();
    for container in containers {
        if let (Some(id), Some(name)) = (container.labels.as_ref().and_then(session), container.id)
        {
            left.entry(id).or_default().containers.push(name);
        }
    }
    for volume in volumes.volumes.unwrap_or_default() {
        if let Some(id) = session(&volume.labels) {
            left.entry(id).or_default().volumes.push(volume.name);
        }
    }
    Ok(left)
}
