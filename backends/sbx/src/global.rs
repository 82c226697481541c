//! Secrets that `sbx` keeps for every sandbox of the machine: what the reference's calls of these names do.
//!
//! No run and no session calls any of this by itself: whoever does means the whole machine, and what is
//! stored stays.

use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::dialect::Dialect;
use crate::listing::{json, no_json};
use crate::program::{Call, LineListener, Lines, Sbx, refused};

/// How long a call may take where nobody says otherwise.
pub const ANSWER: Duration = Duration::from_secs(10);

/// How long a person may take to sign in where nobody says otherwise.
pub const SIGN_IN: Duration = Duration::from_secs(120);

/// The service whose secret an agent needs, if `sbx` has one for it.
#[must_use]
pub fn service_of(agent: &str) -> Option<&'static str> {
    match agent {
        "codex" => Some("openai"),
        "opencode" | "claude" => Some("anthropic"),
        _ => None,
    }
}

/// Where the secret of a service may come from, in the reference's words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretSources {
    /// Values by service, from variables of the caller's: the variable's name, and its value if it is set.
    pub env: Vec<(String, String, Option<String>)>,
    /// Services to sign in to where no secret is stored.
    pub oauth: Vec<String>,
    /// Services to sign in to in any case.
    pub oauth_refresh: Vec<String>,
}

/// How the agent `codex` signs in, in the reference's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodexAuth {
    /// By signing in to OpenAI, once more if `refresh` says so.
    OpenAiOauth {
        /// Whether to sign in although a secret is stored.
        refresh: bool,
    },
    /// By a key in a variable of the caller's.
    OpenAiApiKeyEnv {
        /// The variable.
        variable: String,
        /// Its value, if it is set.
        value: Option<String>,
        /// The service it is stored for.
        service: String,
        /// Whether to store it although one is stored.
        refresh: bool,
    },
    /// By the sign-in of the host's own `codex`, which is copied in for a run.
    HostChatGpt,
    /// Not at all.
    None,
}

impl CodexAuth {
    /// How the reference's words for it are meant.
    ///
    /// # Errors
    ///
    /// If there is no such word.
    pub fn named(name: &str, read: impl FnOnce(&str) -> Option<String>) -> Result<Self> {
        match name {
            "openai_oauth" => Ok(Self::OpenAiOauth { refresh: false }),
            "openai_api_key" | "openai_api_key_env" => {
                let variable = "OPENAI_API_KEY".to_owned();
                let (value, service) = (read(&variable), "openai".to_owned());
                Ok(Self::OpenAiApiKeyEnv { variable, value, service, refresh: false })
            }
            "host_chatgpt" => Ok(Self::HostChatGpt),
            "none" => Ok(Self::None),
            other => {
                let message = format!("{other:?} is no way for codex to sign in");
                Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("it is openai_oauth, openai_api_key_env, host_chatgpt or none"))
            }
        }
    }
}

/// Whether a secret of a service is stored for every sandbox.
///
/// # Errors
///
/// If `sbx` does not answer in that time.
pub async fn has_global_secret(sbx: &Sbx, service: &str, most: Duration) -> Result<bool> {
    let dialect = Dialect::probe(sbx).await?;
    is_stored(sbx, dialect, service, most).await
}

pub(crate) async fn is_stored(
    sbx: &Sbx,
    dialect: Dialect,
    service: &str,
    most: Duration,
) -> Result<bool> {
    let (args, as_json) = dialect.list_secrets(service);
    let output = sbx.call(&args, Call::default(), most).await?;
    if !as_json {
        // Releases without JSON tell of one service only, and in words if there is none.
        let text = [output.text(), String::from_utf8_lossy(&output.stderr).into_owned()].concat();
        return Ok(output.is_success() && !text.to_ascii_lowercase().contains("no secrets found"));
    }
    if !output.is_success() {
        return Err(refused(&args, &output));
    }
    let answer = json(&output.stdout).ok_or_else(|| no_json("sbx secret ls --json"))?;
    let all = answer.get("secrets").and_then(Value::as_array);
    let is_it = |secret: &Value| {
        let text = |field: &str| secret.get(field).and_then(Value::as_str).unwrap_or_default();
        text("name") == service && !text("scope").starts_with("sandbox")
    };
    Ok(all.into_iter().flatten().any(is_it))
}

/// Stores a secret for every sandbox. The value is on no command line.
///
/// # Errors
///
/// If `sbx` refuses it, or does not answer in that time.
pub async fn set_global_secret(
    sbx: &Sbx,
    service: &str,
    value: &str,
    most: Duration,
) -> Result<()> {
    let args = Dialect::probe(sbx).await?.set_secret(None, service);
    store(sbx, &args, value, most).await
}

pub(crate) async fn store(sbx: &Sbx, args: &[String], value: &str, most: Duration) -> Result<()> {
    let call = Call { input: Some(value.as_bytes()), lines: None };
    let output = sbx.call(args, call, most).await?;
    if output.is_success() {
        return Ok(());
    }
    // It may repeat what it read.
    let complaint = output.complaint();
    let shown = if value.is_empty() { complaint } else { complaint.replace(value, "***") };
    let message = format!("`sbx {}` failed: {shown}", args.join(" "));
    Err(Error::new(ErrorKind::Io, message))
}

/// Signs in to a service for every sandbox; the person at the screen does the rest.
///
/// # Errors
///
/// If `sbx` refuses it, or nobody has signed in in that time.
pub async fn set_global_oauth_secret(
    sbx: &Sbx,
    service: &str,
    most: Duration,
    lines: Option<LineListener<'_>>,
) -> Result<()> {
    let dialect = Dialect::probe(sbx).await?;
    sign_in(sbx, dialect, service, most, lines).await
}

pub(crate) async fn sign_in(
    sbx: &Sbx,
    dialect: Dialect,
    service: &str,
    most: Duration,
    lines: Option<LineListener<'_>>,
) -> Result<()> {
    let mut args = dialect.set_secret(None, service);
    args.push("--oauth".to_owned());
    let call = Call { input: None, lines: lines.map(Lines) };
    let output = sbx.call(&args, call, most).await?;
    if output.is_success() { Ok(()) } else { Err(refused(&args, &output)) }
}

/// Checks that the secret an agent needs is stored for every sandbox.
///
/// # Errors
///
/// If it is not, with the call that stores it.
pub async fn check_agent_secrets(sbx: &Sbx, agent: &str, most: Duration) -> Result<()> {
    let Some(service) = service_of(agent) else { return Ok(()) };
    match has_global_secret(sbx, service, most).await? {
        true => Ok(()),
        false => Err(missing(agent, service)),
    }
}

fn missing(agent: &str, service: &str) -> Error {
    let message = format!("the agent `{agent}` needs a secret of the service {service}");
    let oauth = match service {
        "openai" => ", or sign in with `sbx secret set -g openai --oauth`",
        _ => "",
    };
    Error::new(ErrorKind::InvalidInput, message).with_hint(format!(
        "store one: `sbx secret set -g {service}` (`bastide sbx secret set {service}`){oauth}"
    ))
}

/// Stores the secret an agent needs, unless there is one: from the sources that are named, in the
/// reference's order.
///
/// # Errors
///
/// If there is no source, or its variable is not set; and if storing it fails.
pub async fn ensure_agent_secret(
    sbx: &Sbx,
    agent: &str,
    sources: &SecretSources,
    most: Duration,
    lines: Option<LineListener<'_>>,
) -> Result<()> {
    let Some(service) = service_of(agent) else { return Ok(()) };
    let named = |list: &[String]| list.iter().any(|one| one == service);
    if named(&sources.oauth_refresh) {
        return set_global_oauth_secret(sbx, service, SIGN_IN, lines).await;
    }
    if has_global_secret(sbx, service, most).await? {
        return Ok(());
    }
    if named(&sources.oauth) {
        return set_global_oauth_secret(sbx, service, SIGN_IN, lines).await;
    }
    let Some((_, variable, value)) = sources.env.iter().find(|(name, ..)| name == service) else {
        return Err(missing(agent, service));
    };
    let value = set_value(variable, value.as_deref())?;
    set_global_secret(sbx, service, value, most).await
}

fn set_value<'a>(variable: &str, value: Option<&'a str>) -> Result<&'a str> {
    value.filter(|value| !value.is_empty()).ok_or_else(|| {
        let message = format!("the variable {variable} is not set, or is empty");
        Error::new(ErrorKind::InvalidInput, message).with_hint(format!("set {variable}"))
    })
}

/// Signs an agent in for every sandbox, as the reference does before each of its runs: `codex` as `auth`
/// says, everybody else by [`ensure_agent_secret`]. Returns whether anything was stored.
///
/// # Errors
///
/// As there.
pub async fn ensure_agent_auth(
    sbx: &Sbx,
    agent: &str,
    auth: Option<&CodexAuth>,
    sources: &SecretSources,
    lines: Option<LineListener<'_>>,
) -> Result<bool> {
    let Some(auth) = auth.filter(|_| agent == "codex") else {
        ensure_agent_secret(sbx, agent, sources, ANSWER, lines).await?;
        return Ok(false);
    };
    match auth {
        CodexAuth::None | CodexAuth::HostChatGpt => Ok(false),
        CodexAuth::OpenAiOauth { refresh } => {
            if !refresh && has_global_secret(sbx, "openai", ANSWER).await? {
                return Ok(false);
            }
            set_global_oauth_secret(sbx, "openai", SIGN_IN, lines).await?;
            Ok(true)
        }
        CodexAuth::OpenAiApiKeyEnv { variable, value, service, refresh } => {
            if !refresh && has_global_secret(sbx, service, ANSWER).await? {
                return Ok(false);
            }
            let value = set_value(variable, value.as_deref())?;
            set_global_secret(sbx, service, value, ANSWER).await?;
            Ok(true)
        }
    }
}
