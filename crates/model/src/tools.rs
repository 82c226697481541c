//! The tools a model uses in a sandbox: what they take, what they ask of a session, what they say.
//!
//! Every tool here is a conversation without I/O: it reads the model's arguments, says which call
//! of the session to make, is told what came of it, and gives the text for the model. The patch
//! tool is in [`patch`](crate::patch).

mod arguments;
mod exec;
mod image;
mod response;
mod schema;
mod stdin;

pub use arguments::{ExecCommandArgs, ViewImageArgs, WriteStdinArgs};
pub use exec::{
    ExecCall, ExecCommandRun, ExecOutcome, ExecStep, PtySupport, Shell, ShellMode,
    resolve_workdir_command,
};
pub use image::{ImageAnswer, ImageRun, MAX_IMAGE_BYTES, detect_image_mime_type};
pub use response::{Response, normalize_output, prepend_notice};
pub use schema::{
    FILESYSTEM_TOOLS, SHELL_INSTRUCTIONS, SHELL_TOOLS, SHELL_TOOLS_WITHOUT_PTY, ToolDefinition,
    ToolInput, tool_definition,
};
pub use stdin::{StdinCall, WriteStdinRun};

/// What becomes of a tool's input.
#[derive(Debug)]
pub enum Start<R> {
    /// It can be done.
    Run(R),
    /// It cannot: tell the model this.
    Refuse(String),
}
