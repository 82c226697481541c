//! `bastide bisect`

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, ExitReason, Point, PointKind, Result, Session};
use serde_json::json;

use super::log::describe;
use crate::args::values::parse_time;
use crate::clients::{Clients, clients};
use crate::ui::Ui;

/// Find the command of a session that broke a test
///
/// The test is run at points of the journal, each in a fork of its own: nothing happens in the session itself. It passes
/// with exit code 0. It has to pass at the oldest point, and to fail at the last.
#[derive(Debug, clap::Args)]
pub(crate) struct BisectArgs {
    /// End the test after this long (such as 30s, 5m); that is a failure
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The test: program and arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "TEST")]
    test: Vec<OsString>,
}

pub(crate) async fn run(ui: &mut Ui, args: BisectArgs) -> Result<ExitCode> {
    let client = clients()?;
    let id = client.find(&args.id)?;
    let log = client.log(&id)?;
    let is_step = |point: &&Point| {
        point.kind != PointKind::Checkpoint && !point.aside && point.after.is_some()
    };
    let applied = log.points.get(..log.applied).unwrap_or_default();
    let steps: Vec<Point> = applied.iter().filter(is_step).cloned().collect();
    // With the oldest points gone, the first that is left is where it begins.
    let (start, steps) = match (log.thinned, steps.as_slice()) {
        (0, steps) => ("0".to_owned(), steps),
        (_, [first, rest @ ..]) => (first.number.to_string(), rest),
        (_, []) => (String::new(), &[][..]),
    };
    let Some(last) = steps.last() else {
        let message = format!("session {id} has no commands on record to look through");
        return Err(Error::new(ErrorKind::NotFound, message)
            .with_hint("`bastide create --journal` makes a session that puts them on record"));
    };
    let session = client.attach(&id).await?;
    let bisection = Bisection { client: &client, session: &session, args: &args };
    if !bisection.passes(ui, &start).await? {
        let message = "the test fails at the oldest point already";
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("no command on record broke it; look for a test that passes there"));
    }
    if bisection.passes(ui, &last.number.to_string()).await? {
        let message = "the test passes at the last point";
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("nothing on record broke it; what runs now may have"));
    }
    let broke = bisection.first_failure(ui, steps).await?;
    if args.json {
        ui.json(&json!({ "broke": describe(broke, true) }))?;
    } else {
        let code = broke.exit.map(|code| code.to_string()).unwrap_or_default();
        ui.line(&format!("{}\t{code}\t{}", broke.number, broke.label))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Bisection<'a> {
    client: &'a Clients,
    session: &'a Session,
    args: &'a BisectArgs,
}

impl Bisection<'_> {
    /// The first of these after which the test fails, as it does after the last.
    async fn first_failure<'p>(&self, ui: &Ui, steps: &'p [Point]) -> Result<&'p Point> {
        let (mut passing, mut failing) = (0, steps.len().saturating_sub(1));
        while passing < failing {
            let middle = passing + (failing - passing) / 2;
            match self.passes(ui, &steps[middle].number.to_string()).await? {
                true => passing = middle + 1,
                false => failing = middle,
            }
        }
        steps.get(failing).ok_or_else(|| Error::new(ErrorKind::Internal, "no point was left"))
    }

    /// Whether the test passes at a point.
    async fn passes(&self, ui: &Ui, point: &str) -> Result<bool> {
        // It ends with us, whatever becomes of us.
        let fork = self.client.fork_tied(self.session, point).await?;
        let argv = self.args.test.iter().map(|word| word.clone().into_vec());
        let mut command = Command::new(argv);
        if let Some(timeout) = self.args.timeout {
            command = command.timeout(timeout);
        }
        let ran = fork.exec(command).await;
        // Whatever became of the test, nothing of the fork stays.
        let deleted = self.client.delete(fork.id()).await;
        let exit = ran?.exit;
        deleted?;
        if exit.reason == ExitReason::NotStarted || matches!(exit.code, 126 | 127) {
            let message = "the test could not be executed";
            let error = Error::new(ErrorKind::NotFound, message);
            return Err(match exit.detail {
                Some(detail) => error.with_hint(detail),
                None => error.with_hint("it has to be a program of the session"),
            });
        }
        let passed = exit.reason == ExitReason::Exited && exit.code == 0;
        let verdict = if passed { "passes" } else { "fails" };
        ui.note(&format!("point {point}: {verdict}"));
        Ok(passed)
    }
}
