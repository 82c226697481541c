//! What the tools are called and take, for a model's API.

use serde_json::{Map, Value, json};

use crate::pty::{PTY_START_YIELD_TIME_MS, PTY_WRITE_YIELD_TIME_MS};

/// The shell tools of a session with interactive processes.
pub const SHELL_TOOLS: [&str; 2] = ["exec_command", "write_stdin"];
/// The shell tools of a session without them.
pub const SHELL_TOOLS_WITHOUT_PTY: [&str; 1] = ["exec_command"];
/// The tools for files.
pub const FILESYSTEM_TOOLS: [&str; 2] = ["view_image", "apply_patch"];

/// How a model is told to use the shell tools.
pub const SHELL_INSTRUCTIONS: &str = "\
Working in the shell:
- Run commands with `exec_command`. A command that goes on comes back with a session ID.
- Where `write_stdin` exists, use that ID to type into the command or, with no text, to wait for more of its output.
- To be able to stop a command, start it with `tty=true`; then send Ctrl-C (`\\u0003`).
- Search with `rg` and list files with `rg --files` if ripgrep is there.
- Look at parts of large files with shell tools rather than with scripts.";

/// What a tool takes.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolInput {
    /// A JSON object of this schema.
    Arguments(Value),
    /// Text of this grammar.
    Text(Value),
}

/// A tool as a model's API wants it described.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub description: &'static str,
    /// What it takes.
    pub input: ToolInput,
}

impl ToolDefinition {
    /// The definition as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.input {
            ToolInput::Arguments(schema) => json!({
                "name": self.name,
                "description": self.description,
                "params_json_schema": schema,
                "strict_json_schema": false,
            }),
            ToolInput::Text(format) => json!({
                "name": self.name,
                "description": self.description,
                "format": format,
            }),
        }
    }
}

/// The tool of that name.
///
/// ```
/// let tool = bastide_model::tools::tool_definition("view_image").unwrap();
/// assert_eq!(tool.to_json()["params_json_schema"]["required"][0], "path");
/// ```
#[must_use]
pub fn tool_definition(name: &str) -> Option<ToolDefinition> {
    let definition = match name {
        "exec_command" => ToolDefinition {
            name: "exec_command",
            description: "Runs a shell command. Gives its output, or a session ID if it still runs.",
            input: arguments(&["cmd"], exec_command()),
        },
        "write_stdin" => ToolDefinition {
            name: "write_stdin",
            description: "Types into a running command and gives what it wrote since.",
            input: arguments(&["session_id"], write_stdin()),
        },
        "view_image" => ToolDefinition {
            name: "view_image",
            description: "Shows an image file of the workspace or of a path granted to it.",
            input: arguments(&["path"], [("path", filled("The image file."))]),
        },
        "apply_patch" => ToolDefinition {
            name: "apply_patch",
            description: PATCH_DESCRIPTION,
            input: ToolInput::Text(json!({
                "type": "grammar",
                "syntax": "lark",
                "definition": PATCH_GRAMMAR,
            })),
        },
        _ => return None,
    };
    Some(definition)
}

fn arguments<const N: usize>(required: &[&str], properties: [(&str, Value); N]) -> ToolInput {
    let properties: Map<String, Value> =
        properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
    ToolInput::Arguments(json!({
        "type": "object",
        "properties": properties,
        "required": required,
    }))
}

fn exec_command() -> [(&'static str, Value); 7] {
    [
        ("cmd", filled("The command, as you would type it into a shell.")),
        ("workdir", optional_text("The folder to run it in; the folder of this run if left out.")),
        ("shell", optional_text("The shell program to use instead of the usual one.")),
        ("login", flag(true, "Whether the shell is a login shell.")),
        ("tty", flag(false, "Whether the command gets a terminal, to type into it later.")),
        (
            "yield_time_ms",
            milliseconds(PTY_START_YIELD_TIME_MS, "How long to wait for output, in milliseconds."),
        ),
        ("max_output_tokens", optional_count("How many tokens of output to give at most.")),
    ]
}

fn write_stdin() -> [(&'static str, Value); 4] {
    [
        ("session_id", json!({"type": "integer", "description": "The ID of the command."})),
        (
            "chars",
            json!({
                "type": "string",
                "default": "",
                "description": "What to type; nothing only waits for output.",
            }),
        ),
        (
            "yield_time_ms",
            milliseconds(PTY_WRITE_YIELD_TIME_MS, "How long to wait for output, in milliseconds."),
        ),
        ("max_output_tokens", optional_count("How many tokens of output to give at most.")),
    ]
}

fn filled(description: &str) -> Value {
    json!({"type": "string", "minLength": 1, "description": description})
}

fn optional_text(description: &str) -> Value {
    json!({
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "default": null,
        "description": description,
    })
}

fn flag(default: bool, description: &str) -> Value {
    json!({"type": "boolean", "default": default, "description": description})
}

fn milliseconds(default: i64, description: &str) -> Value {
    json!({"type": "integer", "minimum": 0, "default": default, "description": description})
}

fn optional_count(description: &str) -> Value {
    json!({
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "default": null,
        "description": description,
    })
}

const PATCH_DESCRIPTION: &str = "\
Edits files. The input is a patch as plain text, not JSON:

*** Begin Patch
*** Add File: notes/new.txt
+every line of a new file
+starts with a plus
*** Update File: src/app.py
*** Move to: src/main.py
@@ def greet():
 a line that stays
-a line that goes
+a line that comes
*** Delete File: old.txt
*** End Patch

One patch may hold any number of these sections; `*** Move to:` is optional. A hunk starts with
`@@`, and may name a line above it, such as a function or a class; several `@@` lines narrow down
nested ones. Give about three lines around every change, so that its place is clear.
`*** End of File` after a hunk says that it ends where the file ends. Paths are relative.";

const PATCH_GRAMMAR: &str = r#"start: "*** Begin Patch" LF section+ "*** End Patch" LF?
section: added | deleted | updated
added: "*** Add File: " path LF new_line+
deleted: "*** Delete File: " path LF
updated: "*** Update File: " path LF moved? edit+ file_end?
moved: "*** Move to: " path LF
edit: "@@" LF | "@@ " /.+/ LF | /[-+ ]/ /.*/ LF
file_end: "*** End of File" LF
new_line: "+" /.*/ LF
path: /.+/
%import common.LF"#;
