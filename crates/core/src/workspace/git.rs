//! Repositories: cloned inside, or fetched on the host and streamed in.

mod host;

use std::path::PathBuf;
use std::time::Duration;

use bastide_model::PosixPath;
use bastide_model::receipt::NetworkAccess;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::GitStep;
use crate::compat::raise;
use crate::{Command, Error, ErrorKind, Output, Result, Session};

/// How long one command of git may take.
const DEADLINE: Duration = Duration::from_secs(15 * 60);

/// How much of what git says is kept.
const SAID: usize = 64 * 1024;

/// Where repositories of a manifest are fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum GitFetch {
    /// Inside, if there is a network and git there; else on the host.
    #[default]
    Auto,
    /// Inside, as the reference does.
    Inside,
    /// On the host, into a cache that sessions share. Nothing of a repository is executed there.
    Host,
}

/// How repositories of a manifest are fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GitOptions {
    /// Where.
    pub fetch: GitFetch,
    /// The certificate authorities for servers that the host fetches from, instead of the host's
    /// own.
    pub ca_file: Option<PathBuf>,
}

impl GitOptions {
    /// Trusts the certificates in that file.
    #[must_use]
    pub fn ca_file(mut self, ca_file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(ca_file.into());
        self
    }

    /// Options that fetch here.
    #[must_use]
    pub fn fetched(fetch: GitFetch) -> Self {
        Self { fetch, ca_file: None }
    }
}

/// Puts a repository where it belongs.
pub(super) async fn put(session: &Session, step: &GitStep) -> Result<()> {
    let _permit = session.life.terms.limits.entry().await;
    // A policy is about what commands reach, and need not name the places that a manifest does.
    let network = session.receipt().network;
    let has_network = !matches!(network, NetworkAccess::None | NetworkAccess::Policy);
    match session.life.terms.git.fetch {
        GitFetch::Host => host::put(session, step).await,
        GitFetch::Auto if !has_network => host::put(session, step).await,
        GitFetch::Auto if !has_git(session).await? => match host::put(session, step).await {
            // Without a git anywhere, the one that is missing inside is what a user can do about.
            Err(error) if error.kind() == ErrorKind::Unsupported => Err(no_git(session, step)),
            done => done,
        },
        GitFetch::Inside if !has_git(session).await? => Err(no_git(session, step)),
        GitFetch::Auto | GitFetch::Inside => inside(session, step).await,
    }
}

/// Where a repository comes from.
fn url(step: &GitStep) -> String {
    format!("https://{}/{}.git", step.repo.host, step.repo.repo)
}

fn dest(session: &Session, step: &GitStep) -> PosixPath {
    PosixPath::new(session.root().as_str()).join(&step.path)
}

async fn has_git(session: &Session) -> Result<bool> {
    let found = run(session, ["sh", "-c", "command -v git >/dev/null 2>&1"]).await?;
    Ok(found.exit.code == 0)
}

fn no_git(session: &Session, step: &GitStep) -> Error {
    let error = raise::git_missing_in_image()
        .with_context("repo", step.repo.repo.as_str())
        .with_context("ref", step.repo.reference.as_str());
    match session.machine.state.get("image") {
        Some(Value::String(image)) => error.with_context("image", image.as_str()),
        _ => error,
    }
}

fn subpath_of(step: &GitStep) -> Value {
    step.repo.subpath.as_deref().map_or(Value::Null, Value::from)
}

fn not_cloned(step: &GitStep, stderr: &str) -> Error {
    raise::git_clone(&url(step), &step.repo.reference, Some(stderr))
        .with_context("repo", step.repo.repo.as_str())
        .with_context("subpath", subpath_of(step))
}

fn not_copied(step: &GitStep, from: &str, dest: &PosixPath, stderr: &str) -> Error {
    raise::git_copy(from, dest, Some(stderr))
        .with_context("repo", step.repo.repo.as_str())
        .with_context("ref", step.repo.reference.as_str())
        .with_context("subpath", subpath_of(step))
}

async fn run<const N: usize>(session: &Session, argv: [&str; N]) -> Result<Output> {
    // Nobody is there to type a password.
    let command = Command::new(argv).env("GIT_TERMINAL_PROMPT", "0").timeout(DEADLINE);
    session.exec(command.output_limit(SAID)).await
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Clones a repository inside and copies what is wanted of it.
async fn inside(session: &Session, step: &GitStep) -> Result<()> {
    let unique = uuid::Uuid::new_v4().simple();
    let tmp = format!("/tmp/sandbox-git-{}-{unique}", session.id());
    run(session, ["rm", "-rf", "--", &tmp]).await?;
    let done = clone_and_copy(session, step, &tmp).await;
    // Whatever became of it, the clone is not needed any more.
    drop(run(session, ["rm", "-rf", "--", &tmp]).await);
    done?;
    let dest = dest(session, step);
    session.files().chmod(dest.as_str(), step.mode).await
}

async fn clone_and_copy(session: &Session, step: &GitStep, tmp: &str) -> Result<()> {
    let (url, reference) = (url(step), step.repo.reference.as_str());
    let mut first = None;
    let mut is_there = false;
    if step.repo.looks_like_commit() {
        match fetch_commit(session, tmp, &url, reference).await? {
            None => is_there = true,
            Some(stderr) => {
                run(session, ["rm", "-rf", "--", tmp]).await?;
                first = Some(stderr);
            }
        }
    }
    if !is_there {
        let clone = ["git", "clone", "--depth", "1", "--no-tags", "--branch", reference, &url, tmp];
        let cloned = run(session, clone).await?;
        if cloned.exit.code != 0 {
            let stderr = first.unwrap_or_else(|| output_text(&cloned));
            return Err(not_cloned(step, &stderr));
        }
    }
    let from = match &step.subpath {
        Some(subpath) => format!("{tmp}/{subpath}"),
        None => tmp.to_owned(),
    };
    let dest = dest(session, step);
    session.files().mkdir_all(dest.as_str()).await?;
    let (all, to) = (format!("{from}/."), format!("{dest}/"));
    let copied = run(session, ["cp", "-R", "--", &all, &to]).await?;
    match copied.exit.code {
        0 => Ok(()),
        _ => Err(not_copied(step, &from, &dest, &output_text(&copied))),
    }
}

/// Fetches a commit by its number; `None` if that worked, else what git said.
async fn fetch_commit(
    session: &Session,
    tmp: &str,
    url: &str,
    commit: &str,
) -> Result<Option<String>> {
    let steps: [&[&str]; 4] = [
        &["git", "init", tmp],
        &["git", "-C", tmp, "remote", "add", "origin", url],
        &["git", "-C", tmp, "fetch", "--depth", "1", "--no-tags", "origin", commit],
        &["git", "-C", tmp, "checkout", "--detach", "FETCH_HEAD"],
    ];
    for argv in steps {
        let command = Command::new(argv.iter().copied()).env("GIT_TERMINAL_PROMPT", "0");
        let done = session.exec(command.timeout(DEADLINE).output_limit(SAID)).await?;
        if done.exit.code != 0 {
            return Ok(Some(output_text(&done)));
        }
    }
    Ok(None)
}
