//! `cargo xtask live`: the same calls on the reference's clients and on ours.

use std::sync::Arc;

use bastide::Backend;
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use bastide_testkit::engine::images;
use bastide_testkit::live::{Options, Side, run as run_scenarios};

use crate::bench::reference;
use crate::shell::{Outcome, say, step};
use crate::test::engine::Engine;

/// Which of the scenarios `cargo xtask test` runs: each of this many.
const SOME: u32 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only scenarios whose name holds this
    #[arg(long)]
    only: Option<String>,
    /// Only this backend: local or docker
    #[arg(long)]
    backend: Option<String>,
    /// Scripts of calls that this number makes, instead of the scenarios
    #[arg(long)]
    seed: Option<u64>,
    /// Only each of that many scenarios
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
    /// How many scenarios are run at once
    #[arg(long, default_value_t = 3)]
    jobs: usize,
}

/// Runs some of the scenarios on the local backend: enough to see that both sides still do the same.
pub(crate) fn run_some() -> Outcome {
    let backend = Some("local".to_owned());
    run(&Arguments { only: None, backend, seed: None, every: Some(SOME), jobs: 3 })
}

/// Runs the scenarios on each backend.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let python = reference()?;
    let home = tempfile::tempdir()?;
    let is_wanted = |name: &str| arguments.backend.as_deref().is_none_or(|wanted| wanted == name);
    if let Some(other) =
        arguments.backend.as_deref().filter(|name| !["local", "docker"].contains(name))
    {
        return Err(format!("there is no backend `{other}`: `local` or `docker`").into());
    }
    let mut failed = false;
    let mut compare = |side: Side, backend: Arc<dyn Backend>| -> Outcome {
        step(&format!("live, {}", side.name()));
        let Arguments { seed, jobs, .. } = *arguments;
        let (only, python) = (arguments.only.clone(), python.clone());
        let every = arguments.every.map(|every| every as usize);
        let options = Options { side, only, every, seed, jobs, python, backend };
        let report = run_scenarios(&options, say)?;
        say(&report.text());
        failed |= !report.is_success();
        Ok(())
    };
    if is_wanted("local") {
        let backend =
            LocalBackend::new(home.path().join("local")).map_err(|error| error.to_string())?;
        compare(Side::Local, Arc::new(backend))?;
    }
    if is_wanted("docker") {
        let engine = Engine::prepare()??;
        let host = engine.variable().1;
        let address = EngineAddress::parse(&host, None).map_err(|error| error.to_string())?;
        let options = DockerOptions::new(images::BASE);
        let backend = DockerBackend::new(home.path().join("docker"), address, options);
        let backend = backend.map_err(|error| error.to_string())?;
        let image = images::BASE.to_owned();
        compare(Side::Docker { host, image }, Arc::new(backend))?;
    }
    if failed { Err("the two sides differ".into()) } else { Ok(()) }
}
