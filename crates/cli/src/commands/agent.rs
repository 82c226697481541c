//! `bastide agent`

mod best_of;
mod list;
mod policy;
mod report;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result};
use bastide_runs::agents::AgentSpec;

use crate::ui::Ui;
use work::WorkArgs;

/// Hand a coding agent a folder, and collect what it does
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    task: AgentTask,
}

#[derive(Debug, clap::Subcommand)]
enum AgentTask {
    Run(Box<WorkArgs>),
    /// List the agents there are
    Ls {
        /// Print an array of objects
        #[arg(long)]
        json: bool,
    },
    /// Show how an agent is called, and what it needs
    Show {
        #[command(flatten)]
        agent: WhichAgent,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
}

/// Which agent
#[derive(Debug, clap::Args)]
struct WhichAgent {
    /// Agent, as `agent ls` lists them
    #[arg(value_name = "NAME", required_unless_present = "agent_file")]
    name: Option<String>,

    /// File that says how the agent is called
    #[arg(long, value_name = "FILE")]
    agent_file: Option<PathBuf>,
}

impl AgentArgs {
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            AgentTask::Run(args) => args.json,
            AgentTask::Ls { json } | AgentTask::Show { json, .. } => *json,
        }
    }
}

impl WhichAgent {
    fn spec(&self) -> Result<AgentSpec> {
        let Some(file) = &self.agent_file else {
            return AgentSpec::named(self.name.as_deref().unwrap_or_default());
        };
        let spec = read(file)?;
        match &self.name {
            Some(name) if *name != spec.name => {
                let message = format!("{} is of the agent {:?}", file.display(), spec.name);
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_context("option", "--agent-file")
                    .with_hint(format!("name that one, or leave {name:?} out")))
            }
            _ => Ok(spec),
        }
    }
}

fn read(file: &Path) -> Result<AgentSpec> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the agent file {name}: {error}"))
            .with_context("option", "--agent-file")
    })?;
    AgentSpec::parse(&name, &text)
}

pub(crate) async fn run(ui: &mut Ui, args: AgentArgs) -> Result<ExitCode> {
    match args.task {
        AgentTask::Run(args) => work::run(ui, *args).await,
        AgentTask::Ls { json } => list::all(ui, json),
        AgentTask::Show { agent, json } => list::one(ui, &agent.spec()?, json),
    }
}
