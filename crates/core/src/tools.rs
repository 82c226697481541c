//! The tools a model uses, over a session: what they take and say is in
//! [`model::tools`](bastide_model::tools), here they do it.

mod journal;
mod skills;

use std::time::{Duration, Instant};

use bastide_model::PosixPath;
use bastide_model::patch::{FileAnswer, FileRequest, PatchRun, PatchStep, WorkspaceEditor};
use bastide_model::paths::SandboxWorkspaceScope;
use bastide_model::tools::{
    ExecCall, ExecCommandRun, ExecOutcome, ExecStep, FILESYSTEM_TOOLS, ImageAnswer, ImageRun,
    MAX_IMAGE_BYTES, PtySupport, Response, SHELL_TOOLS, Shell, Start, ToolDefinition,
    WriteStdinRun, tool_definition,
};
use serde_json::Value;

use crate::compat::{ExecResult, PtyLimits};
use crate::session::files::Files;
use crate::{Command, Error, ErrorClass, ErrorKind, Result, Session, WriteOptions};

pub use skills::{Skill, SkillInfo, SkillSource, Skills};

/// The size of the terminal a model types on.
const TERMINAL: (u16, u16) = (24, 80);

/// The tools of one session.
///
/// ```no_run
/// # async fn example(session: &bastide::Session) -> bastide::Result<()> {
/// let tools = bastide::Tools::new(session);
/// let text = tools.exec_command(r#"{"cmd": "ls"}"#).await?;
/// # drop(text);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tools<'a> {
    session: &'a Session,
    scope: SandboxWorkspaceScope,
    user: Option<String>,
}

/// What a tool answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolAnswer {
    /// Text.
    Text(String),
    /// A picture, as a `data:` URL.
    Image(String),
}

impl ToolAnswer {
    /// The answer as the reference writes it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Text(text) => ImageAnswer::Text(text.clone()).to_json(),
            Self::Image(url) => ImageAnswer::Image(url.clone()).to_json(),
        }
    }
}

impl<'a> Tools<'a> {
    /// The tools of a session.
    #[must_use]
    pub fn new(session: &'a Session) -> Self {
        Self { session, scope: SandboxWorkspaceScope::default(), user: None }
    }

    /// Sets the folder of the workspace that relative paths start from.
    ///
    /// # Errors
    ///
    /// `ValueError` for a folder that is absolute or leads out.
    pub fn in_folder(mut self, cwd: &str) -> Result<Self> {
        self.scope = SandboxWorkspaceScope::from_cwd(Some(cwd))?;
        Ok(self)
    }

    /// Sets the user of the sandbox that the tools act as.
    #[must_use]
    pub fn as_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The definitions of the tools for a model's API.
    #[must_use]
    pub fn definitions() -> Vec<ToolDefinition> {
        let names = FILESYSTEM_TOOLS.into_iter().chain(SHELL_TOOLS);
        names.filter_map(tool_definition).collect()
    }

    /// What the model has to know of storage that is mounted into its workspace, with the commands that
    /// are safe on it; `None` where nothing is.
    ///
    /// # Errors
    ///
    /// `InvalidManifestPathError` for the first wrong path of the manifest.
    pub fn remote_mount_policy(&self) -> Result<Option<String>> {
        self.session.manifest().remote_mount_policy()
    }

    /// Calls a tool by name with the arguments that the model sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for an unknown tool; otherwise the tool's errors.
    pub async fn call(&self, name: &str, raw: &str) -> Result<ToolAnswer> {
        match name {
            "exec_command" => self.exec_command(raw).await.map(ToolAnswer::Text),
            "write_stdin" => self.write_stdin(raw).await.map(ToolAnswer::Text),
            "view_image" => self.view_image(raw).await,
            "apply_patch" => self.apply_patch(raw).await.map(ToolAnswer::Text),
            "checkpoint" => self.checkpoint(raw).await.map(ToolAnswer::Text),
            "undo" => self.undo(raw).await.map(ToolAnswer::Text),
            "diff" => self.diff(raw).await.map(ToolAnswer::Text),
            _ => Err(Error::new(ErrorKind::NotFound, format!("there is no tool `{name}`"))),
        }
    }

    fn files(&self) -> Files<'a> {
        match &self.user {
            Some(user) => self.session.files_as(user.clone()),
            None => self.session.files(),
        }
    }

    /// Runs a shell command and returns its output within a time limit.
    ///
    /// # Errors
    ///
    /// Fails if the session does. Mistakes of the model are reported in the text.
    pub async fn exec_command(&self, raw: &str) -> Result<String> {
        let started = Instant::now();
        let run =
            ExecCommandRun::start(raw, &self.session.policy, &self.scope, PtySupport::Interactive)?;
        let mut run = match run {
            Start::Run(run) => run,
            Start::Refuse(text) => return Ok(text),
        };
        let mut call = run.call();
        loop {
            let outcome = self.perform(call).await;
            match run.answer(outcome)? {
                ExecStep::Call(next) => call = next,
                ExecStep::Answer(response) => return Ok(show(&response, started)),
            }
        }
    }

    async fn perform(&self, call: ExecCall) -> Result<ExecOutcome> {
        match call {
            ExecCall::PtyStart { command, shell, tty, yield_time_s, max_output_tokens } => {
                let mut command = self.command(&shell, &command);
                if tty {
                    command = command.terminal(TERMINAL.0, TERMINAL.1);
                }
                let limits = PtyLimits { yield_time_s: Some(yield_time_s), max_output_tokens };
                let update = self.session.compat().pty_exec_start(command, limits).await?;
                Ok(ExecOutcome::Pty(update))
            }
            ExecCall::Exec { command, shell, timeout_s } => {
                let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
                let command = self.command(&shell, &command).timeout(timeout);
                let ExecResult { stdout, stderr, exit_code } =
                    self.session.compat().exec_result(command).await?;
                Ok(ExecOutcome::Exec { stdout, stderr, exit_code })
            }
        }
    }

    fn command(&self, shell: &Shell, line: &str) -> Command {
        let command = match shell {
            Shell::Default => Command::shell(line),
            Shell::Argv([program, flag]) => Command::new([program.as_str(), flag, line]),
        };
        match &self.user {
            Some(user) => command.user(user.clone()),
            None => command,
        }
    }

    /// Writes to the input of a running command and returns its output since the last call.
    ///
    /// # Errors
    ///
    /// As [`exec_command`](Self::exec_command).
    pub async fn write_stdin(&self, raw: &str) -> Result<String> {
        let started = Instant::now();
        let run = match WriteStdinRun::start(raw, PtySupport::Interactive)? {
            Start::Run(run) => run,
            Start::Refuse(text) => return Ok(text),
        };
        let call = run.call();
        let limits = PtyLimits {
            yield_time_s: Some(call.yield_time_s),
            max_output_tokens: call.max_output_tokens,
        };
        let update =
            self.session.compat().pty_write_stdin(call.session_id, &call.chars, limits).await;
        Ok(show(&run.answer(update)?, started))
    }

    /// Shows a picture.
    ///
    /// # Errors
    ///
    /// As [`exec_command`](Self::exec_command).
    pub async fn view_image(&self, raw: &str) -> Result<ToolAnswer> {
        let run = match ImageRun::start(raw, &self.session.policy, &self.scope)? {
            Start::Run(run) => run,
            Start::Refuse(text) => return Ok(ToolAnswer::Text(text)),
        };
        let most = u64::try_from(MAX_IMAGE_BYTES).unwrap_or(u64::MAX) + 1;
        let content = self.files().read_beginning(run.path().as_str(), most).await;
        Ok(match run.answer(content.map(|content| content.to_vec())) {
            ImageAnswer::Text(text) => ToolAnswer::Text(text),
            ImageAnswer::Image(url) => ToolAnswer::Image(url),
        })
    }

    /// Applies a patch to files of the workspace. All paths are checked before any file is changed;
    /// parts that were applied stay if a later one fails.
    ///
    /// # Errors
    ///
    /// `ApplyPatchError` and its subclasses if the patch cannot be parsed or applied.
    pub async fn apply_patch(&self, raw: &str) -> Result<String> {
        let editor = WorkspaceEditor::new(self.session.policy.clone(), self.scope.clone());
        let mut run = PatchRun::of_tool_input(editor, raw)?;
        let mut step = run.start()?;
        while let PatchStep::Do(request) = step {
            let answer = self.edit(request).await?;
            step = run.answer(answer)?;
        }
        Ok(run.tool_output())
    }

    /// Does what a patch asks of the files.
    async fn edit(&self, request: FileRequest) -> Result<FileAnswer> {
        let files = self.files();
        match request {
            // The rest of the patch works on the file itself: what is done by one name and undone by
            // another would lose it.
            FileRequest::Resolve(path) => {
                let place = files.resolve(path.as_str()).await?;
                Ok(FileAnswer::Resolved(PosixPath::new(&place)))
            }
            FileRequest::Read(path) => match files.read(path.as_str()).await {
                Ok(content) => Ok(FileAnswer::Content(content.to_vec())),
                Err(error) if error.class() == Some(ErrorClass::WorkspaceReadNotFoundError) => {
                    Ok(FileAnswer::Missing)
                }
                Err(error) => Err(error),
            },
            FileRequest::Write { path, content } => {
                self.write_text(&path, content).await?;
                Ok(FileAnswer::Done)
            }
            FileRequest::Replace { path, content } => {
                self.replace_text(&path, content).await?;
                Ok(FileAnswer::Done)
            }
            FileRequest::Create { path, content } => {
                let new = WriteOptions::default().new_file();
                match files.write_with(path.as_str(), content, new).await {
                    Ok(()) => Ok(FileAnswer::Done),
                    Err(error) if error.class() == Some(ErrorClass::FileExistsError) => {
                        Ok(FileAnswer::Exists)
                    }
                    Err(error) => Err(error),
                }
            }
            FileRequest::Remove(path) => {
                files.rm(path.as_str()).await?;
                Ok(FileAnswer::Done)
            }
            FileRequest::SameFile(first, second) => {
                let same = files.same_entry(first.as_str(), second.as_str()).await?;
                Ok(FileAnswer::Same(same))
            }
            FileRequest::Rename { from, to } => {
                files.mv(from.as_str(), to.as_str()).await?;
                Ok(FileAnswer::Done)
            }
        }
    }

    /// Writes a file, and the folders it lies in.
    async fn write_text(&self, path: &PosixPath, content: Vec<u8>) -> Result<()> {
        let files = self.files();
        files.mkdir_all(folder_of(path).as_str()).await?;
        files.write(path.as_str(), content).await
    }

    /// Writes a file under another name and renames it into place.
    async fn replace_text(&self, path: &PosixPath, content: Vec<u8>) -> Result<()> {
        let files = self.files();
        let name = format!(".apply_patch-{}.tmp", uuid::Uuid::new_v4().simple());
        let staged = folder_of(path).join(&PosixPath::new(&name));
        let replaced = async {
            self.write_text(&staged, content).await?;
            files.mv(staged.as_str(), path.as_str()).await
        };
        let replaced = replaced.await;
        if replaced.is_err() {
            // The first failure is the one to tell.
            drop(files.rm(staged.as_str()).await);
        }
        replaced
    }
}

/// The folder an absolute path lies in.
fn folder_of(path: &PosixPath) -> PosixPath {
    match path.as_str().rsplit_once('/') {
        None | Some(("", _)) => PosixPath::new("/"),
        Some((folder, _)) => PosixPath::new(folder),
    }
}

fn show(response: &Response, started: Instant) -> String {
    let chunk: String = uuid::Uuid::new_v4().simple().to_string().chars().take(6).collect();
    response.text(&chunk, started.elapsed().as_secs_f64())
}
