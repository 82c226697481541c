//! `bastide agent run --best-of`

use std::process::ExitCode;

use bastide::{Result, SessionId};
use bastide_runs::RunResult;
use bastide_runs::stream::Listener;
use serde_json::{Value, json};

use super::report;
use super::work::PlannedRun;
use crate::foreground::StopSignal;
use crate::ui::{Table, Ui};

/// The most runs side by side.
pub(super) const MOST: i64 = 32;

/// The exit code where no run passed the check.
const NONE_PASSED: u8 = 1;

/// One of the runs.
struct Attempt {
    /// The branch its change is on, if there is any.
    name: String,
    result: RunResult,
}

impl Attempt {
    fn check(&self) -> Option<i64> {
        self.result.metadata.get("check")?.get("exit_code")?.as_i64()
    }

    fn passed(&self) -> bool {
        self.check() == Some(0)
    }

    /// What counts, in this order: whether the agent ended well, how much it changed, how long it took.
    fn rank(&self) -> (bool, u64, u64) {
        let (more, less) = report::lines(&self.result.changed_files);
        let took = self.result.duration_ms.unwrap_or(u64::MAX);
        (self.result.returncode != 0, more.saturating_add(less), took)
    }
}

pub(super) async fn run(
    ui: &mut Ui,
    work: &PlannedRun,
    count: u16,
    branch: Option<String>,
    json: bool,
    stop: &StopSignal,
) -> Result<ExitCode> {
    let prefix = branch.unwrap_or_else(|| {
        let id = SessionId::random().to_string();
        format!("bastide/{}", id.get(..8).unwrap_or(&id))
    });
    let all = (1..=count).map(|number| attempt(work, format!("{prefix}-{number}"), stop));
    let mut attempts = Vec::new();
    // Every run comes to its end before a failure of one is told: each cleans up after itself.
    let ended: Vec<Result<Attempt>> = futures::future::join_all(all).await;
    for attempt in ended {
        attempts.push(attempt?);
    }
    if let Some(first) = attempts.first() {
        report::missing_program(ui, &work.agent.spec, &first.result);
    }
    if let Some(code) = stop.exit_code() {
        ui.note("interrupted: every run was ended, and nothing is to be kept");
        return Ok(code);
    }
    let passed = attempts.iter().filter(|attempt| attempt.passed());
    let best = passed.min_by_key(|attempt| attempt.rank());
    match json {
        true => ui.json(&object(&attempts, best)?)?,
        false => show(ui, &attempts, best)?,
    }
    Ok(best.map_or(ExitCode::from(NONE_PASSED), |_| ExitCode::SUCCESS))
}

async fn attempt(work: &PlannedRun, name: String, stop: &StopSignal) -> Result<Attempt> {
    let sandbox = work.sandbox(Some(&name))?;
    let mut listener = Listener::none().with_stop(stop.clone().wait());
    let result =
        bastide_runs::run(&work.agent, &sandbox, &work.prompt, &work.config, &mut listener).await?;
    report::keep(&result)?;
    Ok(Attempt { name, result })
}

fn show(ui: &mut Ui, attempts: &[Attempt], best: Option<&Attempt>) -> Result<()> {
    let mut table = Table::new(&["NAME", "EXIT", "CHECK", "TOOK", "FILES", "LINES", ""]);
    for attempt in attempts {
        let report = attempt.result.report();
        let is_best = best.is_some_and(|best| best.name == attempt.name);
        table.row([
            attempt.name.clone(),
            report.exit_code.to_string(),
            attempt.check().map(|code| code.to_string()).unwrap_or_default(),
            format!("{:.3} s", report.duration_seconds),
            report.changed_files.len().to_string(),
            report::total(&report.changed_files),
            if is_best { "keep".to_owned() } else { String::new() },
        ]);
    }
    ui.table(&table)?;
    match best {
        None => ui.note("none passed the check; nothing is to be kept"),
        Some(best) if best.result.branch.is_none() => {
            ui.note(&format!("{} passed and changed nothing", best.name));
        }
        Some(best) => ui.note(&format!("keep {0}: `git merge {0}`", best.name)),
    }
    Ok(())
}

fn object(attempts: &[Attempt], best: Option<&Attempt>) -> Result<Value> {
    let mut runs = Vec::new();
    for attempt in attempts {
        let mut run = report::object(&attempt.result)?;
        if let Some(run) = run.as_object_mut() {
            run.insert("name".to_owned(), json!(attempt.name));
            let check = attempt.result.metadata.get("check").cloned();
            run.insert("check".to_owned(), check.unwrap_or_default());
        }
        runs.push(run);
    }
    Ok(json!({ "keep": best.map(|best| &best.name), "runs": runs }))
}
