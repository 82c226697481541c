//! `bastide kubernetes`

use std::process::ExitCode;

use bastide::Result;
use bastide_kubernetes::manifest;
use serde_json::json;

use crate::ui::Ui;

/// Print what a Kubernetes cluster needs for sessions
#[derive(Debug, clap::Args)]
pub(crate) struct KubernetesTaskArgs {
    #[command(subcommand)]
    task: KubernetesTask,
}

#[derive(Debug, clap::Subcommand)]
enum KubernetesTask {
    /// Print all that an administrator applies: namespace, account, role, policies of the network
    Manifest {
        /// Namespace for sessions
        #[arg(short, long, value_name = "NAME", default_value = "bastide", value_parser = parse_namespace)]
        namespace: String,
        /// Print an object with the manifest as text
        #[arg(long)]
        json: bool,
    },
}

impl KubernetesTaskArgs {
    /// Whether a program reads what is printed.
    pub(crate) fn json(&self) -> bool {
        let KubernetesTask::Manifest { json, .. } = &self.task;
        *json
    }
}

pub(crate) fn run(ui: &mut Ui, args: KubernetesTaskArgs) -> Result<ExitCode> {
    let KubernetesTask::Manifest { namespace, json } = args.task;
    let text = manifest(&namespace);
    match json {
        true => ui.json(&json!({ "namespace": namespace, "manifest": text }))?,
        false => text.lines().try_for_each(|line| ui.line(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A name that can be a namespace's: it becomes part of a file.
fn parse_namespace(text: &str) -> Result<String, String> {
    match bastide_kubernetes::is_namespace(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a namespace has lower-case letters, digits and `-`, and at most 63".to_owned())
        }
    }
}
