//! `bastide doctor`

mod docker;
mod kubernetes;
mod mounts;

use std::process::ExitCode;
use std::time::Duration;

use bastide::model::Manifest;
use bastide::model::receipt::Limit;
use bastide::{Client, Command, CreateOptions, Error, ErrorKind, Isolation, Receipt, Result, Rung};
use serde_json::{Value, json};

use docker::DockerFinding;
use kubernetes::ClusterFinding;

use crate::args::kubernetes::ClusterArgs;
use crate::clients::clients;
use crate::ui::{Ui, hint, message};

/// The ladder, from the top.
const RUNGS: [Rung; 2] = [Rung::Namespaces, Rung::Landlock];

/// A user nobody has a name for.
const SOMEBODY: &str = "4242";

/// How long one command of an examination may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What gives a user cgroups where the machine has the newer kind.
const DELEGATE: &str = "systemd-run --user --scope --property=Delegate=yes -- $SHELL";

/// Say what this machine can enforce
///
/// Makes a session on every rung of the ladder, with every limit, and says what came of it: what holds,
/// what is missing, and the command that would change that.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Look at a Kubernetes cluster instead, and name each right that is missing there
    #[arg(long, value_name = "BACKEND")]
    backend: Option<ExaminedBackend>,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    // The last: what follows would be shown in its group.
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ExaminedBackend {
    /// A Kubernetes cluster
    Kubernetes,
}

/// What one rung is like here.
struct Finding {
    rung: Rung,
    outcome: std::result::Result<UsableRung, Error>,
}

/// A rung that works.
struct UsableRung {
    receipt: Receipt,
    /// Why nothing can be done as other users, if so.
    no_users: Option<String>,
}

pub(crate) async fn run(ui: &mut Ui, args: DoctorArgs) -> Result<ExitCode> {
    if args.backend == Some(ExaminedBackend::Kubernetes) {
        let finding = ClusterFinding::look(args.cluster.access()).await;
        match args.json {
            true => ui.json(&json!({ "kubernetes": finding.object() }))?,
            false => finding.lines().iter().try_for_each(|line| ui.line(line))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let client = clients()?.local();
    let mut findings = Vec::new();
    for rung in RUNGS {
        findings.push(Finding { rung, outcome: examine(&client, rung).await });
    }
    let docker = DockerFinding::look().await;
    let mounts = mounts::look(&client, docker.works());
    let best = findings.iter().find(|finding| finding.outcome.is_ok());
    let best = best.map(|finding| finding.rung.as_str());
    let next = next_step(&findings);
    if args.json {
        let rungs: Vec<_> = findings.iter().map(Finding::object).collect();
        let docker = docker.object();
        let mounts: Vec<_> = mounts.iter().map(mounts::StrategyFinding::object).collect();
        ui.json(&json!({ "rungs": rungs, "auto": best, "docker": docker, "mounts": mounts, "next": next }))?;
    } else {
        for finding in &findings {
            for line in finding.lines() {
                ui.line(&line)?;
            }
        }
        let auto = best.unwrap_or("nothing: sessions are refused");
        ui.line(&format!("auto        {auto}"))?;
        for line in docker.lines() {
            ui.line(&line)?;
        }
        for finding in &mounts {
            ui.line(&finding.line())?;
        }
        ui.line(&format!("next        {next}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a session with everything there is to ask for.
async fn examine(client: &Client, rung: Rung) -> std::result::Result<UsableRung, Error> {
    let mut options = CreateOptions::default();
    options.isolation = Isolation::Exactly(rung);
    options.limits.memory = Some(1 << 30);
    options.limits.pids = Some(1000);
    options.limits.cpu_millis = Some(1000);
    options.limits.disk = Some(1 << 30);
    let session = client.create(&Manifest::default(), options).await?;
    let command = |user: Option<&str>| {
        let command = Command::new(["true"]).timeout(TIMEOUT);
        match user {
            Some(user) => command.user(user),
            None => command,
        }
    };
    let ran = session.exec(command(None)).await;
    let as_other = session.exec(command(Some(SOMEBODY))).await;
    let receipt = session.receipt().clone();
    session.delete().await?;
    let ran = ran?;
    if ran.exit.code != 0 {
        let message = format!("a session came up, but `true` ended with {}", ran.exit.code);
        return Err(Error::new(ErrorKind::Internal, message));
    }
    let no_users = as_other.err().map(|error| message(&error).into_owned());
    Ok(UsableRung { receipt, no_users })
}

impl UsableRung {
    fn limits(&self) -> [(&'static str, &Limit); 4] {
        let limits = &self.receipt.limits;
        [
            ("memory", &limits.memory),
            ("pids", &limits.pids),
            ("cpu", &limits.cpu),
            ("disk", &limits.disk),
        ]
    }

    /// What is missing, and the command that would change it, where there is one.
    fn missing(&self) -> Vec<(String, Option<String>)> {
        let mut missing: Vec<_> =
            self.receipt.not_enforced.iter().map(|gap| (gap.clone(), command_in(gap))).collect();
        let by_groups =
            |limit: &Limit| limit.enforced_by.as_ref().is_some_and(|by| by.starts_with("cgroup"));
        let all = self.limits();
        if all.iter().take(3).any(|(_, limit)| !by_groups(limit)) {
            let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
            let fix = if unified { DELEGATE } else { "sudo bastide …" };
            let what = "control groups: limits hold for each process, not for all together";
            missing.push((what.to_owned(), Some(fix.to_owned())));
        }
        if let Some(why) = &self.no_users {
            missing.push((format!("users: {why}"), command_in(why)));
        }
        missing
    }
}

impl Finding {
    fn object(&self) -> Value {
        match &self.outcome {
            Ok(works) => {
                let missing = works.missing().into_iter();
                let missing: Vec<_> =
                    missing.map(|(what, fix)| json!({ "what": what, "fix": fix })).collect();
                json!({
                    "rung": self.rung.as_str(),
                    "works": true,
                    "receipt": works.receipt,
                    "users": works.no_users.is_none(),
                    "missing": missing,
                })
            }
            Err(error) => json!({
                "rung": self.rung.as_str(),
                "works": false,
                "missing": [{ "what": message(error), "fix": fix_of(error) }],
            }),
        }
    }

    fn lines(&self) -> Vec<String> {
        let name = self.rung.as_str();
        let works = match &self.outcome {
            Ok(works) => works,
            Err(error) => {
                let mut lines = vec![format!("{name:<11} does not work: {}", message(error))];
                lines.extend(hint(error).map(|hint| format!("  fix       {hint}")));
                return lines;
            }
        };
        let mut lines = vec![format!("{name:<11} works")];
        lines.extend(works.receipt.walls.iter().map(|wall| format!("  wall      {wall}")));
        for (name, limit) in works.limits() {
            let by = limit.enforced_by.as_deref().unwrap_or("nothing");
            lines.push(format!("  limit     {name} by {by}"));
        }
        for (what, fix) in works.missing() {
            lines.push(format!("  missing   {what}"));
            lines.extend(fix.map(|fix| format!("  fix       {fix}")));
        }
        lines
    }
}

/// What to do after all that was said, in one line.
fn next_step(findings: &[Finding]) -> String {
    let working =
        findings.iter().find_map(|finding| Some((finding, finding.outcome.as_ref().ok()?)));
    let Some((finding, works)) = working else {
        let fix = findings.iter().find_map(|finding| fix_of(finding.outcome.as_ref().err()?));
        return match fix {
            Some(fix) => format!("nothing can be confined here yet: {fix}"),
            None => "nothing can be confined here; `--backend docker` may do".to_owned(),
        };
    };
    if finding.rung != Rung::Namespaces {
        let error = findings.first().and_then(|first| first.outcome.as_ref().err());
        if let Some(fix) = error.and_then(fix_of) {
            return format!("for the strongest walls: {fix}");
        }
    }
    if let Some(fix) = works.missing().into_iter().find_map(|(_, fix)| fix) {
        return format!("it works; for what is missing: {fix}");
    }
    "all holds; try `bastide run -v -- id`".to_owned()
}

/// The command that a reason says would change it.
fn command_in(why: &str) -> Option<String> {
    why.split('`').find(|part| part.starts_with("sudo ")).map(str::to_owned)
}

/// The command in a hint, where there is one.
fn fix_of(error: &Error) -> Option<String> {
    let hint = hint(error)?;
    Some(hint.split('`').nth(1).unwrap_or(&hint).to_owned())
}
