//! The arguments of the tools, as laxly read as the reference reads them.

use serde_json::Value;

use crate::error::{Error, FieldError};
use crate::lax::{self, Checked, FromInput, Input};
use crate::pty::{PTY_START_YIELD_TIME_MS, PTY_WRITE_YIELD_TIME_MS};

/// What `exec_command` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCommandArgs {
    /// The command, for a shell.
    pub cmd: String,
    /// Where to run it.
    pub workdir: Option<String>,
    /// The shell to run it with.
    pub shell: Option<String>,
    /// Whether that is a login shell.
    pub login: bool,
    /// Whether the command gets a terminal.
    pub tty: bool,
    /// How long to wait for output.
    pub yield_time_ms: i64,
    /// How much output to show.
    pub max_output_tokens: Option<i64>,
}

/// What `write_stdin` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteStdinArgs {
    /// The process to write to.
    pub session_id: i64,
    /// What to write; nothing only looks for output.
    pub chars: String,
    /// How long to wait for output.
    pub yield_time_ms: i64,
    /// How much output to show.
    pub max_output_tokens: Option<i64>,
}

/// What `view_image` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewImageArgs {
    /// The image.
    pub path: String,
}

const YIELD_TIME: &str = "yield_time_ms";
const MAX_OUTPUT: &str = "max_output_tokens";

impl FromInput for ExecCommandArgs {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("ExecCommandArgs")?;
        let cmd = fields.required_with("cmd", filled);
        let workdir = fields.or_default("workdir");
        let shell = fields.or_default("shell");
        let login = fields.or("login", true);
        let tty = fields.or("tty", false);
        let yield_time_ms = fields.or_with(YIELD_TIME, PTY_START_YIELD_TIME_MS, at_least_0);
        let max_output_tokens = fields.or_with(MAX_OUTPUT, None, none_or_at_least_1);
        fields.build(|| {
            Some(Self {
                cmd: cmd?,
                workdir: workdir?,
                shell: shell?,
                login: login?,
                tty: tty?,
                yield_time_ms: yield_time_ms?,
                max_output_tokens: max_output_tokens?,
            })
        })
    }
}

impl FromInput for WriteStdinArgs {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("WriteStdinArgs")?;
        let session_id = fields.required_with("session_id", |input| whole(input, None));
        let chars = fields.or_default("chars");
        let yield_time_ms = fields.or_with(YIELD_TIME, PTY_WRITE_YIELD_TIME_MS, at_least_0);
        let max_output_tokens = fields.or_with(MAX_OUTPUT, None, none_or_at_least_1);
        fields.build(|| {
            Some(Self {
                session_id: session_id?,
                chars: chars?,
                yield_time_ms: yield_time_ms?,
                max_output_tokens: max_output_tokens?,
            })
        })
    }
}

impl FromInput for ViewImageArgs {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("ViewImageArgs")?;
        let path = fields.required_with("path", filled);
        fields.build(|| Some(Self { path: path? }))
    }
}

/// Text that is not empty.
fn filled(input: Input<'_>) -> Checked<String> {
    let text = String::from_input(input)?;
    match text.is_empty() {
        true => {
            let message = "String should have at least 1 character";
            Err(input.field_error("string_too_short", message))
        }
        false => Ok(text),
    }
}

fn at_least_0(input: Input<'_>) -> Checked<i64> {
    whole(input, Some(0))
}

fn none_or_at_least_1(input: Input<'_>) -> Checked<Option<i64>> {
    match input.value() {
        Value::Null => Ok(None),
        _ => whole(input, Some(1)).map(Some),
    }
}

/// A whole number. What is larger than any wait, output or id can be is as good as the largest.
fn whole(input: Input<'_>, least: Option<i128>) -> Checked<i64> {
    let number = i128::from_input(input)?;
    match least {
        Some(least) if number < least => {
            let message = format!("Input should be greater than or equal to {least}");
            Err(input.field_error("greater_than_equal", message))
        }
        _ => {
            let nearest = number.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
            Ok(i64::try_from(nearest).unwrap_or(i64::MAX))
        }
    }
}

/// Reads the arguments a model sent, or gives the text that tells it which ones are wrong, without
/// repeating their values.
pub(super) fn read<T: FromInput>(raw: &str, known: &[&str]) -> Result<T, String> {
    let read = |value: Value| lax::read::<T>(&value);
    let arguments = serde_json::from_str::<Value>(raw).map(read);
    match arguments {
        Ok(Ok(arguments)) => Ok(arguments),
        Ok(Err(error)) => Err(refusal(&wrong_fields(&error, known))),
        Err(_) => Err(refusal(&[])),
    }
}

fn wrong_fields<'a>(error: &Error, known: &[&'a str]) -> Vec<&'a str> {
    let is_at =
        |field: &FieldError, name: &str| field.loc.first().and_then(Value::as_str) == Some(name);
    let is_wrong = |name: &str| error.field_errors().iter().any(|field| is_at(field, name));
    known.iter().copied().filter(|name| is_wrong(name)).collect()
}

fn refusal(fields: &[&str]) -> String {
    match fields {
        [] => "The arguments cannot be read. Send them as the tool's schema says.".to_owned(),
        fields => {
            let fields = fields.join(", ");
            format!("Wrong arguments: {fields}. Send them as the tool's schema says.")
        }
    }
}
