//! From inside, each of these must fail. One trial for each claim of `docs/threat-model.md`.
//!
//! A trial has two halves. The outer half prepares something on the host worth reaching and looks at
//! what came of it; the inner half, the *probe*, is the test program itself, carried into the session
//! and run there, and tries. It says what it reached.

mod audit;
mod files;
mod gaps;
mod grants;
mod homes;
mod host;
mod kernel;
mod ladder;
mod paths;
mod processes;
mod reach;

pub mod probe;

use bastide::model::Manifest;
use bastide::{Command, Session};

use crate::suite::{Context, Outcome, Trial, TrialError, as_asked, with_probe};
use crate::trials;

/// Those that a guest has to pass whichever way it follows paths.
#[must_use]
pub fn path_trials() -> Vec<Trial> {
    paths::TRIALS.to_vec()
}

/// Every escape trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        audit::TRIALS,
        files::TRIALS,
        gaps::TRIALS,
        grants::TRIALS,
        homes::TRIALS,
        host::TRIALS,
        paths::TRIALS,
        kernel::TRIALS,
        processes::TRIALS,
        reach::TRIALS,
        TOGETHER,
    ]
    .concat()
}

/// Those of claims that are made where a session has the host's own paths.
#[must_use]
pub fn trials_on_host() -> Vec<Trial> {
    let elsewhere = ["has_loopback_of_its_own", "gives_the_guest_no_way_up_to_the_host"];
    trials().into_iter().filter(|trial| !elsewhere.contains(&trial.name)).collect()
}

/// Those for a container that was given no privileges, on the best rung it has.
#[must_use]
pub fn trials_in_container() -> Vec<Trial> {
    [ladder::IN_CONTAINER.to_vec(), trials_on_host()].concat()
}

/// Every claim once more, with commands run as another user of the session.
#[must_use]
pub fn trials_as(user: &'static str) -> Vec<Trial> {
    // Those swap names under operations of the guest, and are about nobody's commands; or there is nobody
    // else where they are tried.
    let left_out = [paths::TRIALS, host::TRIALS, grants::TRIALS].concat();
    let others = |trial: &Trial| left_out.iter().all(|other| other.name != trial.name);
    trials().into_iter().filter(others).map(|trial| trial.as_user(user)).collect()
}

const TOGETHER: &[Trial] = trials![t13_reaches_no_keys_environment_sessions_processes_or_network];

/// What the field's users ask of a local sandbox, in one.
async fn t13_reaches_no_keys_environment_sessions_processes_or_network(
    context: Context,
) -> Outcome {
    files::cannot_read_secrets_of_the_host(context.clone()).await?;
    processes::cannot_see_processes_or_environment_of_the_host(context.clone()).await?;
    reach::cannot_reach_another_session(context.clone()).await?;
    reach::cannot_reach_the_network(context).await
}

/// A session with the probe in it.
async fn session(context: &Context) -> Result<Session, TrialError> {
    Ok(context.session_with(&with_probe(Manifest::default())?).await?)
}

/// Runs a probe inside; what it says is what it reached.
pub(crate) async fn attempt(
    session: &Session,
    name: &str,
    arguments: &[&str],
) -> Result<String, TrialError> {
    let argv = ["./probe", probe::FLAG, name].into_iter().chain(arguments.iter().copied());
    let command = as_asked(Command::new(argv).timeout(std::time::Duration::from_secs(30)));
    let output = session.exec(command).await?;
    if output.exit.code != 0 {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let detail = output.exit.detail.unwrap_or_default();
        return Err(
            format!("probe {name} ended with {}: {detail}{stderr}", output.exit.code).into()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
