//! The sign-in of the host's own `codex`, copied into a sandbox.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::program::Sbx;

/// How long each step may take.
const STEP: Duration = Duration::from_secs(60);

/// Where it goes.
const FOLDER: &str = "/home/agent/.codex";

/// The largest such file.
const MOST: u64 = 1 << 20;

/// Copies a sign-in into a sandbox, for its user alone.
pub(crate) async fn copy_login(sbx: &Sbx, sandbox: &str, login: &Path) -> Result<()> {
    check(login)?;
    sbx.check_call(&["exec", sandbox, "mkdir", "-p", FOLDER], STEP).await?;
    let file = format!("{FOLDER}/auth.json");
    let to = format!("{sandbox}:{file}");
    sbx.check_call(&[OsString::from("cp"), login.into(), to.into()], STEP).await?;
    let own = format!("chown agent:agent {file} && chmod 600 {file}");
    sbx.check_call(&["exec", "-u", "root", sandbox, "sh", "-lc", &own], STEP).await.map(drop)
}

/// Refuses what is no sign-in with ChatGPT, before anything is made.
pub(crate) fn check(login: &Path) -> Result<()> {
    let wrong = |why: String| {
        let message = format!("{} is no sign-in of codex: {why}", login.display());
        Error::new(ErrorKind::InvalidInput, message).with_hint("sign in with `codex login`")
    };
    let mut text = String::new();
    let file = fs::File::open(login).map_err(|error| wrong(error.to_string()))?;
    file.take(MOST).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    // What is in it is in no message.
    let fields: Value =
        serde_json::from_str(&text).map_err(|_| wrong("it is no JSON".to_owned()))?;
    match fields.get("auth_mode").and_then(Value::as_str) {
        Some("chatgpt") => Ok(()),
        _ => Err(wrong("it is not with ChatGPT (`auth_mode`)".to_owned())),
    }
}
