//! `cargo xtask live`: the same calls on the reference's clients and on ours.

use crate::bench::reference;
use crate::shell::{Outcome, built_task, run as run_command};
use crate::test::engine::Engine;

/// Which of the scenarios `cargo xtask test` runs: each of this many.
const SOME: u32 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only scenarios whose name holds this
    #[arg(long)]
    only: Option<String>,
    /// Only this backend
    #[arg(long, value_parser = ["local", "docker"])]
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
    let is_wanted = |name: &str| arguments.backend.as_deref().is_none_or(|wanted| wanted == name);
    let mut command = built_task("live")?;
    command.arg("--python").arg(reference()?).args(["--jobs", &arguments.jobs.to_string()]);
    command.args(arguments.only.iter().flat_map(|only| ["--only", only.as_str()]));
    for (option, number) in
        [("--seed", arguments.seed), ("--every", arguments.every.map(u64::from))]
    {
        if let Some(number) = number {
            command.args([option, &number.to_string()]);
        }
    }
    if is_wanted("local") {
        command.arg("--local");
    }
    // It stays until the scenarios are over.
    let engine = if is_wanted("docker") { Some(Engine::prepare()??) } else { None };
    if let Some(engine) = &engine {
        command.arg("--docker").arg(engine.variable().1);
    }
    run_command(&mut command)
}
