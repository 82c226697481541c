//! Which of what an engine has is this home's. Engines are shared: by homes, by users, by machines that
//! all have the same paths. So everything is labelled with the home's identity, and nothing is stopped or
//! removed because of its name alone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bastide::host::own_folder;
use bastide::{Error, ErrorKind, Machine, Result, SessionId, home_identity};
use bollard::query_parameters::{RemoveContainerOptionsBuilder, RemoveVolumeOptions};

use crate::boot::inspect;
use crate::engine::{Engine, LARGE, SMALL, unless_missing};
use crate::state::{HOME_LABEL, SESSION_LABEL, State, container_name, state_of, workspace_volume};

/// What there is to say about the machine of a session that was copied.
pub(crate) const COPIED: &str =
    "it was copied here from elsewhere, and its container is the original's";

pub(crate) fn copied(machine: &Machine) -> Error {
    let message = format!("session {} is not running: {COPIED}", machine.id);
    Error::new(ErrorKind::BackendLost, message)
        .with_hint("use the original, or make a fresh session")
}

/// A home, as labels name it.
#[derive(Debug, Clone)]
pub(crate) struct HomeLabel {
    pub(crate) path: PathBuf,
    /// What is on everything that is made now.
    pub(crate) identity: String,
}

impl HomeLabel {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), identity: home_identity(path)? })
    }

    /// What earlier versions put on everything instead.
    pub(crate) fn earlier(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether something is labelled as what this session of this home has. A path will do only where the
    /// session is known here.
    fn has(&self, id: &SessionId, labels: Option<&HashMap<String, String>>) -> bool {
        let label = |name: &str| labels.and_then(|labels| labels.get(name));
        let is_ours = |home: &String| *home == self.identity || *home == self.earlier();
        label(SESSION_LABEL).is_some_and(|session| session == id.as_str())
            && label(HOME_LABEL).is_some_and(is_ours)
    }
}

/// The state of a machine on record, with the session's folder in this home; only the folder if the
/// machine is that of another home, from which the folder was copied.
pub(crate) fn own_state(home: &Path, machine: &Machine) -> Result<(PathBuf, Option<State>)> {
    let state = state_of(machine)?;
    let (dir, is_own) = own_folder(home, machine, &state.dir)?;
    Ok((dir.clone(), is_own.then_some(State { dir, ..state })))
}

/// The container of a session; `None` if there is none, a failure if what has its name is not this home's.
pub(crate) async fn find(
    engine: &Engine,
    home: &HomeLabel,
    id: &SessionId,
) -> Result<Option<String>> {
    let name = container_name(id);
    let Some(found) = inspect(engine, &name).await? else { return Ok(None) };
    let labels = found.config.and_then(|config| config.labels);
    match (home.has(id, labels.as_ref()), found.id) {
        (true, Some(container)) => Ok(Some(container)),
        _ => {
            let message = format!("the container {name} is not this home's: it has other labels");
            Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("make a fresh session; remove the container by hand if nobody needs it"))
        }
    }
}

/// Removes everything an engine has of a session of this home; what is missing is what is wanted, and
/// what is not this home's is left alone.
pub(crate) async fn remove(
    engine: &Engine,
    home: &HomeLabel,
    id: &SessionId,
    volumes: &[String],
) -> Result<()> {
    match find(engine, home, id).await {
        Ok(Some(container)) => remove_container(engine, &container).await?,
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::Conflict => return Ok(()),
        Err(error) => return Err(error),
    }
    let own = [workspace_volume(id)];
    // By name: an engine that is asked for a list asks all its drivers, and one of them may be gone.
    for volume in own.iter().chain(volumes) {
        remove_volume(engine, home, id, volume).await?;
    }
    Ok(())
}

/// Removes a container by the engine's own name of it, which no other ever has.
pub(crate) async fn remove_container(engine: &Engine, container: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    let call = engine.docker.remove_container(container, Some(options));
    match engine.ask(LARGE, "remove the container", call).await {
        // Somebody else is at it.
        Err(error) if error.status() == Some(409) => Ok(()),
        done => unless_missing(done),
    }
}

/// Removes a volume, if it was made for this session of this home.
pub(crate) async fn remove_volume(
    engine: &Engine,
    home: &HomeLabel,
    id: &SessionId,
    volume: &str,
) -> Result<()> {
    let call = engine.docker.inspect_volume(volume);
    let found = match engine.ask(SMALL, "look at a volume", call).await {
        Ok(found) => found,
        Err(error) if error.status() == Some(404) => return Ok(()),
        Err(error) => return Err(error),
    };
    if !home.has(id, Some(&found.labels)) {
        return Ok(());
    }
    let call = engine.docker.remove_volume(volume, None::<RemoveVolumeOptions>);
    unless_missing(engine.ask(LARGE, "remove a volume", call).await)
}
