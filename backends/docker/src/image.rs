//! The image a container starts from.

use std::time::Duration;

use bastide::{Condition, Error, ErrorKind, Result};
use bastide_proto::GuestPath;
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures::StreamExt;

use crate::PullPolicy;
use crate::engine::{Engine, SMALL};

/// How long a registry may say nothing.
const SILENCE: Duration = Duration::from_secs(120);

/// Where programs are in an image that does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an image says about what runs from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) id: String,
    pub(crate) user: Option<String>,
    /// Where its programs start; not the top of its files.
    pub(crate) folder: Option<GuestPath>,
    pub(crate) environment: Vec<(String, String)>,
    /// The volumes it wants.
    pub(crate) volumes: Vec<String>,
}

/// Who hears how far a fetch is.
pub(crate) type Progress<'a> = Option<&'a (dyn Fn(&str) + Send + Sync)>;

/// Whether the engine has an image.
pub(crate) async fn exists(engine: &Engine, name: &str) -> Result<bool> {
    match inspect(engine, name).await {
        Ok(_) => Ok(true),
        Err(error) if error.status() == Some(404) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What an image says; fetched if the engine does not have it.
pub(crate) async fn ensure(
    engine: &Engine,
    name: &str,
    policy: PullPolicy,
    progress: Progress<'_>,
) -> Result<Image> {
    if name.is_empty() {
        let message = "no image is given";
        return Err(
            Error::new(ErrorKind::InvalidInput, message).with_condition(Condition::ImageUnnamed)
        );
    }
    match inspect(engine, name).await {
        Err(error) if error.status() == Some(404) => {}
        found => return found,
    }
    if policy == PullPolicy::Never {
        let message = format!("the Docker daemon at {} has no image {name}", engine.address);
        return Err(Error::new(ErrorKind::NotFound, message).with_hint("pull or build it first"));
    }
    pull(engine, name, progress).await?;
    inspect(engine, name).await
}

async fn inspect(engine: &Engine, name: &str) -> Result<Image> {
    let what = format!("look at the image {name}");
    let found = engine.ask(SMALL, &what, engine.docker.inspect_image(name)).await?;
    let config = found.config.unwrap_or_default();
    let mut environment: Vec<(String, String)> = Vec::new();
    for variable in config.env.unwrap_or_default() {
        if let Some((key, value)) = variable.split_once('=') {
            environment.push((key.to_owned(), value.to_owned()));
        }
    }
    if !environment.iter().any(|(key, _)| key == "PATH") {
        environment.push(("PATH".to_owned(), PATH.to_owned()));
    }
    Ok(Image {
        id: found.id.unwrap_or_default(),
        user: config.user.filter(|user| !user.is_empty()),
        folder: config.working_dir.filter(|path| path != "/").and_then(|path| path.parse().ok()),
        environment,
        volumes: config.volumes.unwrap_or_default(),
    })
}

/// Where a name ends and its tag or digest begins. The tag comes after the last slash: a registry may
/// have a port.
fn split(name: &str) -> (&str, &str) {
    if let Some((repository, digest)) = name.split_once('@') {
        return (repository, digest);
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    match name.get(last..).and_then(|rest| rest.find(':')) {
        Some(colon) => (&name[..last + colon], &name[last + colon + 1..]),
        None => (name, "latest"),
    }
}

async fn pull(engine: &Engine, name: &str, progress: Progress<'_>) -> Result<()> {
    let (repository, tag) = split(name);
    let options = CreateImageOptionsBuilder::default().from_image(repository).tag(tag).build();
    let mut steps = engine.docker.create_image(Some(options), None, None);
    let what = format!("pull the image {name}");
    loop {
        let step = async { steps.next().await.transpose() };
        match engine.ask(SILENCE, &what, step).await.map_err(|error| explain(name, error))? {
            None => return Ok(()),
            Some(step) => {
                if let Some(why) = step.error_detail.and_then(|detail| detail.message) {
                    let message = format!("cannot pull the image {name}: {why}");
                    return Err(explain(name, Error::new(ErrorKind::Io, message)));
                }
                if let (Some(progress), Some(said)) = (progress, step.status) {
                    let layer = step.id.map(|id| format!("{id}: ")).unwrap_or_default();
                    progress(&format!("{layer}{said}"));
                }
            }
        }
    }
}

/// Registries say the same in many ways.
fn explain(name: &str, error: Error) -> Error {
    let text = format!("{} {:?}", error.message(), error.context()).to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let (kind, hint) = if says(&["no such host", "connection refused", "timeout", "dial tcp"]) {
        (ErrorKind::Io, "the daemon cannot reach the registry; is the image's name right?")
    } else if says(&["manifest unknown", "not found", "name unknown", "no such"]) {
        (ErrorKind::NotFound, "is its name right, with registry and tag?")
    } else if says(&["denied", "unauthorized", "authentication required"]) {
        (ErrorKind::PermissionDenied, "pull it once with `docker login` and `docker pull`")
    } else {
        return error;
    };
    let context = error.context().clone();
    let failure = Error::new(kind, error.message().to_owned())
        .with_contexts(context)
        .with_context("image", name)
        .with_hint(hint);
    match error.status() {
        Some(status) => failure.with_status(status),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_names_as_engines_do() {
        let cases = [
            ("debian", ("debian", "latest")),
            ("debian:12", ("debian", "12")),
            ("localhost:5000/x", ("localhost:5000/x", "latest")),
            ("localhost:5000/x/y:z", ("localhost:5000/x/y", "z")),
            ("x@sha256:abc", ("x", "sha256:abc")),
        ];
        for (name, want) in cases {
            assert_eq!(split(name), want, "{name}");
        }
    }
}
