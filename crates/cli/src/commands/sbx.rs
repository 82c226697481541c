//! `bastide sbx`

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use bastide_sbx::global::{self, CodexAuth, SecretSources};
use bastide_sbx::{DIAGNOSIS, Sbx, check_service};
use serde_json::json;

use crate::args::values::{parse_pair, parse_time};
use crate::config;
use crate::ui::Ui;

/// The longest secret.
const MOST: u64 = 1 << 20;

/// Ask Docker's sbx, and keep secrets for every sandbox of this machine
#[derive(Debug, clap::Args)]
pub(crate) struct SbxTaskArgs {
    #[command(subcommand)]
    task: SbxTask,
}

#[derive(Debug, clap::Subcommand)]
enum SbxTask {
    /// Say whether sbx is there and ready
    Check {
        /// How long it may take
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        timeout: Option<Duration>,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Secrets of the whole machine, which stay; `--sbx-secret` of a run is its own
    Secret(SecretArgs),
}

#[derive(Debug, clap::Args)]
struct SecretArgs {
    #[command(subcommand)]
    task: SecretTask,
}

#[derive(Debug, clap::Subcommand)]
enum SecretTask {
    /// Say whether a secret of a service is stored; 1 if none is
    Has {
        /// Service, such as openai
        service: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Store the secret that is on standard input
    Set {
        /// Service, such as openai
        service: String,
        /// Sign in instead, in a browser
        #[arg(long)]
        oauth: bool,
        #[command(flatten)]
        limit: Limit,
    },
    /// Fail unless the secret an agent needs is stored
    Check {
        /// Agent
        agent: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Store the secret an agent needs, unless one is stored
    Ensure {
        /// Agent
        agent: String,
        /// Variable of yours that a service's secret is taken from (can be repeated)
        #[arg(long = "env", value_name = "SERVICE=VARIABLE", value_parser = parse_pair)]
        env: Vec<(String, String)>,
        /// Service to sign in to if no secret is stored (can be repeated)
        #[arg(long, value_name = "SERVICE")]
        oauth: Vec<String>,
        /// Service to sign in to in any case (can be repeated)
        #[arg(long, value_name = "SERVICE")]
        oauth_refresh: Vec<String>,
        /// How codex signs in: openai_oauth, openai_api_key_env, host_chatgpt or none
        #[arg(long, value_name = "WAY")]
        auth: Option<String>,
        #[command(flatten)]
        limit: Limit,
    },
}

#[derive(Debug, clap::Args)]
struct Limit {
    /// How long it may take
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,
    /// Print an object
    #[arg(long)]
    json: bool,
}

impl SbxTaskArgs {
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            SbxTask::Check { json, .. } => *json,
            SbxTask::Secret(secret) => match &secret.task {
                SecretTask::Has { limit, .. }
                | SecretTask::Set { limit, .. }
                | SecretTask::Check { limit, .. }
                | SecretTask::Ensure { limit, .. } => limit.json,
            },
        }
    }
}

pub(crate) async fn run(ui: &mut Ui, args: SbxTaskArgs) -> Result<ExitCode> {
    let json = args.json();
    let sbx = config::sbx();
    let (answer, code) = match args.task {
        SbxTask::Check { timeout, .. } => {
            let dialect = sbx.check_ready(timeout.unwrap_or(DIAGNOSIS)).await?;
            let release = dialect.release.to_string();
            let answer =
                json!({"release": release, "ready": true, "stand_in": dialect.is_stand_in});
            (answer, ExitCode::SUCCESS)
        }
        SbxTask::Secret(secret) => secrets(ui, &sbx, secret.task).await?,
    };
    match json {
        true => ui.json(&answer)?,
        false => {
            let text: Vec<_> = answer
                .as_object()
                .into_iter()
                .flatten()
                .map(|(name, value)| format!("{name}: {}", value.to_string().trim_matches('"')))
                .collect();
            ui.line(&text.join(", "))?;
        }
    }
    Ok(code)
}

async fn secrets(ui: &Ui, sbx: &Sbx, task: SecretTask) -> Result<(serde_json::Value, ExitCode)> {
    let lines = |line: &str| ui.step(line);
    let within = |limit: &Limit| limit.timeout.unwrap_or(global::ANSWER);
    match task {
        SecretTask::Has { service, limit } => {
            check_service(&service)?;
            let stored = global::has_global_secret(sbx, &service, within(&limit)).await?;
            let code = if stored { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            Ok((json!({"service": service, "stored": stored}), code))
        }
        SecretTask::Set { service, oauth, limit } => {
            check_service(&service)?;
            // Before it is stored: a session that ends meanwhile must not take it along.
            bastide_sbx::keep_secret(&config::home()?, &service).await?;
            match oauth {
                true => {
                    let most = limit.timeout.unwrap_or(global::SIGN_IN);
                    global::set_global_oauth_secret(sbx, &service, most, Some(&lines)).await?;
                }
                false => {
                    let value = standard_input()?;
                    global::set_global_secret(sbx, &service, &value, within(&limit)).await?;
                }
            }
            Ok((json!({"service": service, "stored": true}), ExitCode::SUCCESS))
        }
        SecretTask::Check { agent, limit } => {
            global::check_agent_secrets(sbx, &agent, within(&limit)).await?;
            Ok((json!({"agent": agent, "stored": true}), ExitCode::SUCCESS))
        }
        SecretTask::Ensure { agent, env, oauth, oauth_refresh, auth, limit } => {
            let read = |(service, variable): (String, String)| {
                let value = config::variable(&variable);
                (service, variable, value)
            };
            let env = env.into_iter().map(read).collect();
            let sources = SecretSources { env, oauth, oauth_refresh };
            let auth = auth.map(|name| CodexAuth::named(&name, config::variable)).transpose()?;
            match auth {
                Some(auth) => {
                    let lines = Some(&lines as _);
                    global::ensure_agent_auth(sbx, &agent, Some(&auth), &sources, lines).await?;
                }
                None => {
                    let (most, lines) = (within(&limit), Some(&lines as _));
                    global::ensure_agent_secret(sbx, &agent, &sources, most, lines).await?;
                }
            }
            Ok((json!({"agent": agent, "stored": true}), ExitCode::SUCCESS))
        }
    }
}

/// The secret on standard input, without the end of its line.
fn standard_input() -> Result<String> {
    let mut value = String::new();
    let wrong = |why: String| {
        Error::new(ErrorKind::InvalidInput, format!("the secret on standard input {why}"))
            .with_hint("write it there: `printf %s \"$KEY\" | bastide sbx secret set SERVICE`")
    };
    let read = std::io::stdin().take(MOST).read_to_string(&mut value);
    read.map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let value = value.trim_end_matches(['\r', '\n']).to_owned();
    if value.is_empty() { Err(wrong("is empty".to_owned())) } else { Ok(value) }
}
