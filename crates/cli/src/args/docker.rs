//! What can be asked of containers.

use bastide::{Error, ErrorKind, Result};
use bastide_docker::{DockerOptions, PullPolicy};

use super::values::parse_pair;

/// What a new container shall be like
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Containers")]
pub(crate) struct DockerArgs {
    /// Image the session starts from
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Refuse an image the daemon does not have, rather than pull it
    #[arg(long)]
    no_pull: bool,

    /// Label of the container (can be repeated)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    labels: Vec<(String, String)>,

    /// OCI runtime, by the name the daemon knows it by
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,

    /// Let nothing be written but the workspace, /tmp and grants
    #[arg(long)]
    read_only: bool,

    /// Run everything in the container as one user, by number
    #[arg(long, value_name = "UID[:GID]")]
    only_user: Option<String>,

    /// Give commands of root a capability more (can be repeated)
    #[arg(long = "cap-add", value_name = "NAME")]
    cap_add: Vec<String>,

    /// Do not filter system calls
    #[arg(long)]
    seccomp_unconfined: bool,

    /// Let programs give new privileges, as set-user-id ones do
    #[arg(long)]
    new_privileges: bool,
}

/// What containers of every backend can be asked for.
#[derive(Debug)]
pub(crate) struct ContainerChoice {
    pub(crate) image: String,
    pub(crate) no_pull: bool,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) read_only: bool,
    pub(crate) only_user: Option<String>,
}

fn no_image(backend: &str) -> Error {
    let message = format!("--backend {backend}: no image is given");
    Error::new(ErrorKind::InvalidInput, message)
        .with_context("option", "--image")
        .with_hint("name one with --image")
}

impl DockerArgs {
    /// The options of the container.
    pub(crate) fn options(self) -> Result<DockerOptions> {
        let Some(image) = self.image else { return Err(no_image("docker")) };
        let mut options = DockerOptions::new(image);
        if self.no_pull {
            options.pull = PullPolicy::Never;
        }
        options.labels = self.labels.into_iter().collect();
        options.runtime = self.runtime;
        options.read_only_root = self.read_only;
        options.only_user = self.only_user;
        options.cap_add = self.cap_add;
        options.seccomp_unconfined = self.seccomp_unconfined;
        options.new_privileges = self.new_privileges;
        Ok(options)
    }

    /// What containers of every backend can be asked for.
    pub(crate) fn choice(self, backend: &str, has_own_image: bool) -> Result<ContainerChoice> {
        let Self { image, no_pull, labels, read_only, only_user, .. } = self;
        let image = match image {
            None if has_own_image => String::new(),
            image => image.ok_or_else(|| no_image(backend))?,
        };
        Ok(ContainerChoice { image, no_pull, labels, read_only, only_user })
    }

    /// The first option that only a Docker daemon has and that was given.
    pub(crate) fn given_to_engine(&self) -> Option<&'static str> {
        let all = [
            ("--runtime", self.runtime.is_some()),
            ("--cap-add", !self.cap_add.is_empty()),
            ("--seccomp-unconfined", self.seccomp_unconfined),
            ("--new-privileges", self.new_privileges),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The first option that was given, where none can be had.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--image", self.image.is_some()),
            ("--no-pull", self.no_pull),
            ("--label", !self.labels.is_empty()),
            ("--runtime", self.runtime.is_some()),
            ("--read-only", self.read_only),
            ("--only-user", self.only_user.is_some()),
            ("--cap-add", !self.cap_add.is_empty()),
            ("--seccomp-unconfined", self.seccomp_unconfined),
            ("--new-privileges", self.new_privileges),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}
