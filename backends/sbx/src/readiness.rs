//! Whether `sbx` is there and ready, and what to do if it is not.

use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::dialect::Dialect;
use crate::listing::json;
use crate::program::{Call, Sbx};

/// How long a diagnosis may take where nobody says otherwise.
pub const DIAGNOSIS: Duration = Duration::from_secs(10);

impl Sbx {
    /// Whether the program is there, and is Docker's.
    pub async fn is_available(&self) -> bool {
        self.check_available().await.is_ok()
    }

    /// Which release it is.
    ///
    /// # Errors
    ///
    /// If the program is not there, with how to install it, or is another of the same name.
    pub async fn check_available(&self) -> Result<Dialect> {
        Dialect::probe(self).await
    }

    /// Whether it is ready to make sandboxes.
    pub async fn is_ready(&self, most: Duration) -> bool {
        self.check_ready(most).await.is_ok()
    }

    /// Asks it for a diagnosis.
    ///
    /// # Errors
    ///
    /// If it is not there, does not answer in that time, or anything fails that it checks; with what to run.
    pub async fn check_ready(&self, most: Duration) -> Result<Dialect> {
        let dialect = self.check_available().await?;
        let args = dialect.diagnose();
        let output = self.call(&args, Call::default(), most).await?;
        let Some(answer) = json(&output.stdout) else {
            let why = match output.is_success() {
                true => "its diagnosis cannot be read".to_owned(),
                false => output.complaint(),
            };
            return Err(not_ready(&why, &[]));
        };
        let Some(checks) = answer.get("checks").and_then(Value::as_array) else {
            return Err(not_ready("its diagnosis has another shape", &[]));
        };
        let (problems, commands) = problems(checks);
        if !problems.is_empty() {
            return Err(not_ready(&problems.join("; "), &commands));
        }
        if !output.is_success() {
            return Err(not_ready(&output.complaint(), &commands));
        }
        Ok(dialect)
    }
}

/// What fails, and what is said to help.
fn problems(checks: &[Value]) -> (Vec<String>, Vec<String>) {
    let (mut problems, mut commands) = (Vec::new(), Vec::<String>::new());
    for check in checks.iter().filter(|check| check.is_object()) {
        let text = |field: &str| check.get(field).and_then(Value::as_str).unwrap_or_default();
        let status = text("status");
        if matches!(status, "pass" | "skip" | "warn") {
            continue;
        }
        problems.push(format!("{}: {status} - {}", text("name"), text("message")));
        let command = match text("hint").strip_prefix("Run: ") {
            Some(command) => command.trim(),
            None if text("name") == "Authentication" => "sbx login",
            None => continue,
        };
        if !commands.iter().any(|known| known == command) {
            commands.push(command.to_owned());
        }
    }
    (problems, commands)
}

fn not_ready(why: &str, commands: &[String]) -> Error {
    let mut commands: Vec<_> = commands.iter().map(|command| format!("`{command}`")).collect();
    if commands.is_empty() {
        commands.push("`sbx login`".to_owned());
    }
    Error::new(ErrorKind::Unsupported, format!("sbx is not ready: {why}"))
        .with_hint(format!("try {}, then `bastide sbx check`", commands.join(", ")))
}
