//! `bastide net`

mod explain;
mod log;
mod suggest;

use std::path::PathBuf;
use std::process::ExitCode;

use bastide::Result;
use bastide::egress::{Answer, EgressStatus, FlowStatus, PendingFlow};
use serde_json::{Value, json};

use self::explain::ExplainArgs;
use self::log::LogArgs;
use self::suggest::SuggestArgs;
use crate::args::policy;
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// Look at the network of a session, and change its policy
#[derive(Debug, clap::Args)]
pub(crate) struct NetArgs {
    #[command(subcommand)]
    task: NetTask,
}

#[derive(Debug, clap::Subcommand)]
enum NetTask {
    Show(ShowArgs),
    Set(SetArgs),
    Explain(ExplainArgs),
    Log(LogArgs),
    Approve(ApproveArgs),
    Suggest(SuggestArgs),
}

/// Show the policy in force, what is open, and what waits for an answer
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an object
    #[arg(long)]
    json: bool,
}

/// Give a session another policy; it holds at once
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The policy: JSON, YAML or TOML
    #[arg(value_name = "FILE")]
    policy: PathBuf,

    /// Print an object
    #[arg(long)]
    json: bool,
}

/// Answer something that waits
#[derive(Debug, clap::Args)]
struct ApproveArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The number that `show` gives it
    #[arg(value_name = "N")]
    number: u64,

    /// This time only
    #[arg(long, conflicts_with_all = ["session", "deny"])]
    once: bool,

    /// From now on: the policy gets a rule
    #[arg(long, conflicts_with = "deny")]
    session: bool,

    /// Not at all
    #[arg(long)]
    deny: bool,

    /// Print an object
    #[arg(long)]
    json: bool,
}

impl NetArgs {
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            NetTask::Show(args) => args.json,
            NetTask::Set(args) => args.json,
            NetTask::Explain(args) => args.json,
            NetTask::Log(args) => args.json,
            NetTask::Approve(args) => args.json,
            NetTask::Suggest(args) => args.json,
        }
    }
}

pub(crate) async fn run(ui: &mut Ui, args: NetArgs) -> Result<ExitCode> {
    match args.task {
        NetTask::Show(args) => show(ui, args).await,
        NetTask::Set(args) => set(ui, args).await,
        NetTask::Explain(args) => explain::run(ui, args).await,
        NetTask::Log(args) => log::run(ui, &args).await,
        NetTask::Approve(args) => approve(ui, args).await,
        NetTask::Suggest(args) => suggest::run(ui, &args).await,
    }
}

async fn show(ui: &mut Ui, args: ShowArgs) -> Result<ExitCode> {
    let clients = clients()?;
    let id = clients.find(&args.id)?;
    let client = clients.of(&id)?;
    let status = client.egress_status(&id).await?;
    let pending = client.egress_pending(&id).await?;
    if args.json {
        ui.json(&status_object(&status, &pending))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["WHAT", "IS"]);
    let mut row = |what: &str, is: String| table.row([what.to_owned(), is]);
    row("proxy", format!("process {}", status.pid));
    let policy = client.egress_policy(&id).await?;
    for rule in &policy.rules {
        let hosts: Vec<_> = rule.hosts.iter().map(ToString::to_string).collect();
        let whose = if rule.floor { " (this home's)" } else { "" };
        row("rule", format!("{} {}{whose}", rule.action.as_str(), hosts.join(", ")));
    }
    status.read_hosts.iter().for_each(|host| row("read", host.clone()));
    row("allowed", status.allowed.to_string());
    row("denied", status.denied.to_string());
    row("out", format!("{} bytes", status.bytes_out));
    row("in", format!("{} bytes", status.bytes_in));
    for flow in &status.flows {
        row("open", format!("{}:{} {}", flow.host, flow.port, flow.protocol));
    }
    for flow in &pending {
        let what = [flow.method.as_deref(), flow.path.as_deref()];
        let what: Vec<_> = what.into_iter().flatten().collect();
        let seconds = flow.left_ms / 1000;
        let what = what.join(" ");
        row("waits", format!("{}: {}:{} {what} ({seconds} s)", flow.id, flow.host, flow.port));
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// What programs are told of a network.
pub(crate) fn status_object(status: &EgressStatus, pending: &[PendingFlow]) -> Value {
    let policy = serde_json::from_str(&status.policy).unwrap_or(Value::Null);
    json!({
        "pid": status.pid,
        "policy": policy,
        "rules": policy.get("rules").and_then(Value::as_array).map_or(0, Vec::len),
        "read_hosts": status.read_hosts,
        "ports": status.ports,
        "flows": status.flows.iter().map(flow_object).collect::<Vec<_>>(),
        "waiting": status.waiting,
        "allowed": status.allowed,
        "denied": status.denied,
        "bytes_out": status.bytes_out,
        "bytes_in": status.bytes_in,
        "pending": pending.iter().map(pending_object).collect::<Vec<_>>(),
    })
}

fn flow_object(flow: &FlowStatus) -> Value {
    json!({
        "host": flow.host,
        "address": flow.address,
        "port": flow.port,
        "protocol": flow.protocol,
        "intercepted": flow.intercepted,
        "bytes_out": flow.bytes_out,
        "bytes_in": flow.bytes_in,
        "open_ms": flow.open_ms,
    })
}

fn pending_object(flow: &PendingFlow) -> Value {
    json!({
        "id": flow.id,
        "host": flow.host,
        "port": flow.port,
        "method": flow.method,
        "path": flow.path,
        "left_ms": flow.left_ms,
    })
}

async fn set(ui: &mut Ui, args: SetArgs) -> Result<ExitCode> {
    let clients = clients()?;
    let id = clients.find(&args.id)?;
    let policy = policy::read(&args.policy)?;
    clients.of(&id)?.set_egress_policy(&id, &policy).await?;
    if args.json {
        ui.json(&json!({"id": id.as_str(), "rules": policy.rules.len()}))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn approve(ui: &mut Ui, args: ApproveArgs) -> Result<ExitCode> {
    let clients = clients()?;
    let id = clients.find(&args.id)?;
    let (answer, word) = match (args.session, args.deny) {
        (true, _) => (Answer::Session, "session"),
        (_, true) => (Answer::Deny, "deny"),
        _ => (Answer::Once, "once"),
    };
    clients.of(&id)?.egress_answer(&id, args.number, answer).await?;
    if args.json {
        ui.json(&json!({"id": id.as_str(), "number": args.number, "answer": word}))?;
    }
    Ok(ExitCode::SUCCESS)
}
