//! Taking back what killed runs left.

use std::path::Path;

use bastide::{Backend, Error, ErrorKind, Result, SessionId};

use super::Sandbox;
use crate::docker;
use crate::workspace::cleanup_log::{Leftovers, RunFolder, RunHome, RunSweep};

impl Sandbox {
    /// Takes back what killed runs left: sessions, which `remove` removes wherever they are; work trees,
    /// branches nobody wrote to, locks, folders. What nobody can tell is kept and named.
    ///
    /// # Errors
    ///
    /// If the folder of runs cannot be read.
    pub async fn sweep(
        backend: &dyn Backend,
        home: &RunHome,
        remove: impl AsyncFn(&SessionId) -> Result<bool>,
    ) -> Result<RunSweep> {
        let Leftovers { killed, half_removed, mut swept } = home.left()?;
        for path in half_removed {
            match backend.remove_tree(&path).await {
                Ok(()) => swept.ended.push(path),
                Err(error) => swept.unclear.push((path, error.to_string())),
            }
        }
        for run in killed {
            let path = run.path().to_owned();
            match clean_up(backend, run, &remove).await {
                Ok(removed) => {
                    swept.removed.extend(removed);
                    swept.ended.push(path);
                }
                Err(error) => swept.unclear.push((path, error.to_string())),
            }
        }
        Ok(swept)
    }

    /// What [`sweep`](Self::sweep) would find: the folders of killed runs are in `ended`, and nothing is
    /// removed.
    ///
    /// # Errors
    ///
    /// If the folder of runs cannot be read.
    pub fn look_for_killed(home: &RunHome) -> Result<RunSweep> {
        let Leftovers { killed, half_removed, mut swept } = home.left()?;
        swept.ended = half_removed;
        swept.ended.extend(killed.iter().map(|run| run.path().to_owned()));
        Ok(swept)
    }
}

/// Ends the session first: as long as something of it runs, it writes to what is taken back.
async fn clean_up(
    backend: &dyn Backend,
    run: RunFolder,
    remove: &impl AsyncFn(&SessionId) -> Result<bool>,
) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    if let Some(session) = session_of(&run)?
        && remove(&session).await?
    {
        removed.push(format!("the session {session}"));
    }
    removed.extend(retire(backend, run).await?);
    Ok(removed)
}

/// The session that a run has, or would have had.
pub(super) fn session_of(run: &RunFolder) -> Result<Option<SessionId>> {
    let journal = run.read().map_err(|error| not_taken_back(run.id(), &error))?;
    journal.session.map(|session| session.parse()).transpose()
}

/// Takes back what a run made, and removes its folder. What was in repositories, for people.
pub(super) async fn retire(backend: &dyn Backend, run: RunFolder) -> Result<Vec<String>> {
    let id = run.id().to_owned();
    let journal = run.read().map_err(|error| not_taken_back(&id, &error))?;
    if let Some(label) = &journal.containers {
        docker::remove(Path::new(docker::PROGRAM), label).await?;
    }
    let (gone, removed) = run.retire().map_err(|error| not_taken_back(&id, &error))?;
    backend.remove_tree(&gone).await?;
    Ok(removed)
}

fn not_taken_back(id: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot take back what the run {id} left: {error}"))
}
