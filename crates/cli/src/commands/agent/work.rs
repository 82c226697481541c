//! `bastide agent run`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Error, ErrorKind, NetworkAccess, Result};
use bastide_runs::agents::{Agent, AgentSpec, StepFilter};
use bastide_runs::stream::{Listener, RunEvent};
use bastide_runs::workspace::{Uncommitted, WorkspaceMode, WorkspaceOptions};
use bastide_runs::{RunConfig, Sandbox, SandboxOptions};

use super::{WhichAgent, best_of, policy, report};
use crate::args::session::{SessionArgs, SessionPlan};
use crate::args::values::parse_time;
use crate::clients::run_home;
use crate::config;
use crate::foreground::StopSignal;
use crate::ui::Ui;

/// Run an agent in a sandbox of its own over a folder
///
/// What it does is shown step by step on standard error, and all it says is in a log. At the end the
/// change is shown, file by file, and is kept as a patch; in a work tree, or with `--branch`, it is on a
/// branch as well. The exit code is the agent's own, as that of `bastide run` is its command's.
///
/// The agent has no network and no key unless you say so: `--network`, `--pass-env`. A key that is passed
/// can be read by whatever the agent runs.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    agent: WhichAgent,

    /// Where the agent works; --best-of works in clones
    #[arg(long, value_name = "MODE")]
    mode: Option<ModeArg>,

    /// Branch the change comes back on, which must be new
    #[arg(long, value_name = "BRANCH")]
    branch: Option<String>,

    /// Refuse to clone a repository with work that is not committed, rather than take it along
    #[arg(long)]
    committed_only: bool,

    /// Variable of yours that the agent gets, such as its key (can be repeated)
    #[arg(long = "pass-env", value_name = "NAME")]
    passed: Vec<String>,

    /// End the agent, and everything it started, after this long (such as 500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// File of the workspace to collect besides the change (can be repeated)
    #[arg(long = "output", value_name = "PATH")]
    outputs: Vec<String>,

    /// Argument for the agent's program, ahead of the prompt (can be repeated)
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true)]
    extra_args: Vec<String>,

    /// Run the agent this many times side by side, each in a clone, and say which one to keep
    #[arg(long, value_name = "N", requires = "check",
          value_parser = clap::value_parser!(u16).range(1..=best_of::MOST))]
    best_of: Option<u16>,

    /// Line for the shell that tells whether an agent did well, run in each clone
    #[arg(long, value_name = "CMD", requires = "best_of")]
    check: Option<String>,

    /// Print one object with what came of it
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not show steps
    #[arg(short, long)]
    quiet: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    /// What the agent is to do
    #[arg(required = true, last = true, value_name = "PROMPT")]
    prompt: Vec<String>,

    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeArg {
    /// In the folder itself; a repository's own files are closed to it
    InPlace,
    /// In a work tree of its own, from the last commit
    Worktree,
    /// In a clone that shares nothing with the folder
    Clone,
}

impl From<ModeArg> for WorkspaceMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::InPlace => Self::InPlace,
            ModeArg::Worktree => Self::Worktree,
            ModeArg::Clone => Self::Clone,
        }
    }
}

/// A run that is ready to be begun, as often as wanted.
pub(super) struct PlannedRun {
    pub(super) agent: Agent,
    pub(super) config: RunConfig,
    pub(super) prompt: String,
    pub(super) workspace: PathBuf,
    pub(super) given: WorkspaceOptions,
    pub(super) session_plan: SessionPlan,
}

impl PlannedRun {
    /// The sandbox for one run, with its change on that branch.
    pub(super) fn sandbox(&self, branch: Option<&str>) -> Result<Sandbox> {
        let mut given = self.given.clone();
        given.branch = branch.map(str::to_owned);
        let SessionPlan { backend, client, manifest, options, provided, .. } = &self.session_plan;
        let options = SandboxOptions::new(&self.workspace)
            .given(given)
            .create(options.clone())
            .manifest(manifest.clone())
            .provided(provided.clone());
        let sandbox = Sandbox::new(backend.clone(), run_home()?, options);
        Ok(sandbox.with_client(client.clone()))
    }
}

pub(super) async fn run(ui: &mut Ui, args: WorkArgs) -> Result<ExitCode> {
    let stop = StopSignal::listen()?;
    let (quiet, json, branch) = (args.quiet, args.json, args.branch.clone());
    let verbose = args.verbose;
    let best_of = args.best_of;
    let work = prepare(ui, args).await?;
    if let Some(count) = best_of {
        return best_of::run(ui, &work, count, branch, json, &stop).await;
    }
    let sandbox = work.sandbox(branch.as_deref())?;
    let shown = &*ui;
    let mut listener = Listener::new(move |event| match event {
        RunEvent::Line { text, .. } if !quiet => shown.step(&text),
        RunEvent::Idle { running } if !quiet => {
            shown.note(&format!("it has been running for {} s", running.as_secs()));
        }
        RunEvent::Prepared { session, receipt } => match verbose {
            true => shown.receipt(session.as_str(), &receipt),
            false => shown.unheld_limits(&receipt),
        },
        _ => {}
    })
    .with_filter(StepFilter::new(&work.agent.spec.stream))
    .with_stop(stop.wait());
    let ran =
        bastide_runs::run(&work.agent, &sandbox, &work.prompt, &work.config, &mut listener).await;
    drop(listener);
    let result = ran?;
    report::keep(&result)?;
    report::missing_program(ui, &work.agent.spec, &result);
    match json {
        true => ui.json(&report::object(&result)?)?,
        false => report::table(ui, &result)?,
    }
    Ok(report::exit_code(&result))
}

async fn prepare(ui: &Ui, args: WorkArgs) -> Result<PlannedRun> {
    let spec = args.agent.spec()?;
    let passed = passed(&args.passed)?;
    let (workspace, mut session_plan) = args.session.for_agent(ui).await?;
    if session_plan.names_policy {
        policy::add_agent(&spec, &passed, &mut session_plan)?;
    }
    let mode = match (args.best_of, args.mode) {
        (Some(_), Some(ModeArg::InPlace | ModeArg::Worktree)) => {
            let message = "--mode: agents that work side by side each need a clone";
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_context("option", "--mode")
                .with_hint("leave it out with --best-of"));
        }
        (Some(_), _) => ModeArg::Clone,
        (None, mode) => mode.unwrap_or(ModeArg::InPlace),
    };
    let mut given = WorkspaceOptions::default().mode(mode.into());
    if args.committed_only {
        given = given.uncommitted(Uncommitted::Refused);
    }
    print_exposure(ui, &spec, &passed, session_plan.options.network);
    let mut config =
        RunConfig::default().env(passed).extra_args(args.extra_args).outputs(args.outputs);
    // What it says line by line can be shown step by step.
    config.json_events = !spec.command.json.is_empty();
    config.timeout = args.timeout;
    config.check = args.check;
    let prompt = args.prompt.join(" ");
    Ok(PlannedRun { agent: Agent::new(spec), config, prompt, workspace, given, session_plan })
}

/// The variables that are passed by name.
fn passed(names: &[String]) -> Result<Vec<(String, String)>> {
    let value = |name: &String| {
        let value = config::variable(name).ok_or_else(|| {
            let message = format!("--pass-env: {name} is not set, or is no text");
            Error::new(ErrorKind::InvalidInput, message).with_context("option", "--pass-env")
        })?;
        Ok((name.clone(), value))
    };
    names.iter().map(value).collect()
}

/// A key that has to be inside is said, and so is a network that an agent will not find.
fn print_exposure(ui: &Ui, spec: &AgentSpec, passed: &[(String, String)], network: NetworkAccess) {
    for (name, _) in passed {
        ui.note(&format!("{name} is inside: the agent, and whatever it runs, can read it"));
    }
    if network == NetworkAccess::None && !spec.hosts.is_empty() {
        ui.note(&format!(
            "{} wants to reach {}, and has no network; `--network policy` gives it that, `--network host` yours",
            spec.name,
            spec.hosts.join(", ")
        ));
    }
}
