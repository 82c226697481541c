//! `bastide run`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bastide::model::document::Format;
use bastide::model::{Manifest, Registry};
use bastide::{
    Client, Command, CreateOptions, Error, ErrorKind, Exit, NetworkAccess, OutputEvent, Process,
    Reason, Result, Session,
};
use bastide_local::LocalBackend;

use crate::config;
use crate::ui::Ui;

/// Run a command in a new session, then remove the session
///
/// The command's exit code becomes the exit code of `bastide`; a command killed by signal N exits with
/// 128+N, as in a shell. 124 is a timeout, 125 a failure of Bastide itself, 126 and 127 mean that the
/// program could not be executed or was not found.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Manifest of the workspace: JSON, YAML or TOML
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Network the command has
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    network: NetworkArg,

    /// Environment variable to set (can be repeated)
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = parse_pair)]
    envs: Vec<(String, String)>,

    /// End the command, and everything it started, after this long (such as 500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    argv: Vec<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum NetworkArg {
    /// Loopback of its own, and nothing else
    None,
    /// The host's network, its loopback included
    Host,
}

pub(crate) async fn run(ui: &mut Ui, args: RunArgs) -> Result<ExitCode> {
    let manifest = match &args.manifest {
        Some(path) => load(ui, path)?,
        None => Manifest::default(),
    };
    let backend = LocalBackend::new(config::home()?)?;
    let mut options = CreateOptions::default();
    options.network = match args.network {
        NetworkArg::None => NetworkAccess::None,
        NetworkArg::Host => NetworkAccess::Host,
    };
    options.env = config::shared_environment();
    let session = Client::new(Arc::new(backend)).create(&manifest, options).await?;
    if args.verbose {
        ui.receipt(session.id().as_str(), session.receipt());
    }
    let ran = tokio::select! {
        ran = stream(ui, &session, args) => ran,
        () = interrupted() => Ok(Exit { reason: Reason::Cancelled, code: 130, detail: None }),
    };
    // Whatever became of the command, nothing of its session stays.
    let deleted = session.delete().await;
    let exit = ran?;
    deleted?;
    if let Some(detail) = &exit.detail {
        ui.note(detail);
    }
    Ok(ExitCode::from(u8::try_from(exit.code).unwrap_or(u8::MAX)))
}

async fn stream(ui: &mut Ui, session: &Session, args: RunArgs) -> Result<Exit> {
    let mut command = Command::new(args.argv);
    for (key, value) in args.envs {
        command = command.env(key, value);
    }
    if let Some(timeout) = args.timeout {
        command = command.timeout(timeout);
    }
    let mut process: Process = session.spawn(command).await?;
    loop {
        match process.next().await? {
            OutputEvent::Stdout(data) => ui.command_out(&data)?,
            OutputEvent::Stderr(data) => ui.command_err(&data)?,
            OutputEvent::Lost(bytes) => ui.note(&format!("{bytes} bytes of output were lost")),
            OutputEvent::Exit(exit) => return Ok(exit),
        }
    }
}

/// Waits for the user or the system to ask for the end.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn load(ui: &Ui, path: &Path) -> Result<Manifest> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the manifest {name}: {error}"))
    })?;
    let Some(format) = Format::of_file(&name) else {
        let message = format!("cannot tell what format the manifest {name} has");
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .hint("give it the extension .json, .yaml or .toml"));
    };
    let parsed = Manifest::load(&name, &text, format, Registry::builtin())?;
    for warning in &parsed.warnings {
        ui.note(&format!("{name}: {}", warning.message));
    }
    Ok(parsed.value)
}

fn parse_pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0)];
    let parsed = units.into_iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    });
    parsed.ok_or_else(|| "expected a time such as 500ms, 30s or 5m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times() {
        let cases = [
            ("500ms", Some(Duration::from_millis(500))),
            ("1s", Some(Duration::from_secs(1))),
            ("1.5m", Some(Duration::from_secs(90))),
            ("2h", Some(Duration::from_secs(7200))),
            ("7", Some(Duration::from_secs(7))),
            ("-1s", None),
            ("soon", None),
            ("infs", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse_time(text).ok(), want, "{text}");
        }
    }
}
