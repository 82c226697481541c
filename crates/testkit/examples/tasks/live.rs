//! The same calls on the reference's clients and on ours.

use std::path::PathBuf;
use std::sync::Arc;

use bastide::Backend;
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use bastide_testkit::engine::images;
use bastide_testkit::live::{LiveBackend, Options, run as run_scenarios};

use crate::{Outcome, say, step};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The interpreter that has the reference
    #[arg(long)]
    python: PathBuf,
    /// Run the scenarios on the local backend
    #[arg(long)]
    local: bool,
    /// Run the scenarios in containers of this daemon, which has the images of the tests
    #[arg(long, value_name = "HOST")]
    docker: Option<String>,
    /// Only scenarios whose name holds this
    #[arg(long)]
    only: Option<String>,
    /// Scripts of calls that this number makes, instead of the scenarios
    #[arg(long)]
    seed: Option<u64>,
    /// Only each of that many scenarios
    #[arg(long)]
    every: Option<usize>,
    /// How many scenarios are run at once
    #[arg(long)]
    jobs: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let home = tempfile::tempdir()?;
    let mut failed = false;
    let mut compare = |side: LiveBackend, backend: Arc<dyn Backend>| -> Outcome {
        step(&format!("live, {}", side.name()));
        let Arguments { seed, jobs, every, .. } = *arguments;
        let (only, python) = (arguments.only.clone(), arguments.python.clone());
        let options = Options { side, only, every, seed, jobs, python, backend };
        let report = run_scenarios(&options, say)?;
        say(&report.text());
        failed |= !report.is_success();
        Ok(())
    };
    if arguments.local {
        let backend =
            LocalBackend::new(home.path().join("local")).map_err(|error| error.to_string())?;
        compare(LiveBackend::Local, Arc::new(backend))?;
    }
    if let Some(host) = arguments.docker.clone() {
        let address = EngineAddress::parse(&host, None).map_err(|error| error.to_string())?;
        let options = DockerOptions::new(images::BASE);
        let backend = DockerBackend::new(home.path().join("docker"), address, options);
        let backend = backend.map_err(|error| error.to_string())?;
        let image = images::BASE.to_owned();
        compare(LiveBackend::Docker { host, image }, Arc::new(backend))?;
    }
    if failed { Err("the two sides differ".into()) } else { Ok(()) }
}
