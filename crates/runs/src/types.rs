//! What a run is asked for and what it answers, with the names users of sbx-agents know.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::collect::{ChangedFile, LeftOut};

/// How an agent's run shall be.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RunConfig {
    /// When the agent, and everything it started, is ended.
    pub timeout: Option<Duration>,
    /// Whether the agent is asked for its events as lines of JSON.
    pub json_events: bool,
    /// A schema for the agent's last answer, as a file inside.
    pub output_schema: Option<PathBuf>,
    /// Files to attach to the prompt.
    pub attachments: Vec<PathBuf>,
    /// The agent's session to go on with.
    pub resume_session_id: Option<String>,
    /// Whether to go on with the last one.
    pub continue_last: bool,
    /// Whether to go on with a copy of it.
    pub fork_session: bool,
    /// Variables for the agent, before its own.
    pub env: Vec<(String, String)>,
    /// Further arguments, ahead of the prompt.
    pub extra_args: Vec<String>,
    /// Files to be collected besides the change, relative to the workspace.
    pub outputs: Vec<String>,
    /// A line for the shell that tells whether the agent did well, run inside when the change has been
    /// collected.
    pub check: Option<String>,
    /// Whether the sandbox confines the agent; [`run`](crate::run) finds that out itself.
    pub is_confined: bool,
}

impl RunConfig {
    /// Ends the agent, and everything it started, after that long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Asks the agent for its events as lines of JSON.
    #[must_use]
    pub fn json_events(mut self) -> Self {
        self.json_events = true;
        self
    }

    /// Gives a schema for the agent's last answer, as a file inside.
    #[must_use]
    pub fn output_schema(mut self, output_schema: impl Into<PathBuf>) -> Self {
        self.output_schema = Some(output_schema.into());
        self
    }

    /// Attaches these files to the prompt.
    #[must_use]
    pub fn attachments(mut self, attachments: impl IntoIterator<Item = PathBuf>) -> Self {
        self.attachments = attachments.into_iter().collect();
        self
    }

    /// Goes on with that session of the agent's.
    #[must_use]
    pub fn resume_session_id(mut self, resume_session_id: impl Into<String>) -> Self {
        self.resume_session_id = Some(resume_session_id.into());
        self
    }

    /// Goes on with the last one.
    #[must_use]
    pub fn continue_last(mut self) -> Self {
        self.continue_last = true;
        self
    }

    /// Goes on with a copy of it.
    #[must_use]
    pub fn fork_session(mut self) -> Self {
        self.fork_session = true;
        self
    }

    /// Gives the agent these variables, before its own.
    #[must_use]
    pub fn env(mut self, env: impl IntoIterator<Item = (String, String)>) -> Self {
        self.env = env.into_iter().collect();
        self
    }

    /// Adds these arguments ahead of the prompt.
    #[must_use]
    pub fn extra_args(mut self, extra_args: impl IntoIterator<Item = String>) -> Self {
        self.extra_args = extra_args.into_iter().collect();
        self
    }

    /// Collects these files besides the change.
    #[must_use]
    pub fn outputs(mut self, outputs: impl IntoIterator<Item = String>) -> Self {
        self.outputs = outputs.into_iter().collect();
        self
    }

    /// Has that line for the shell tell whether the agent did well.
    #[must_use]
    pub fn check(mut self, line: impl Into<String>) -> Self {
        self.check = Some(line.into());
        self
    }
}

/// A sandbox that was prepared for a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSession {
    /// What the backend knows it by.
    #[serde(skip)]
    pub id: String,
    /// The folder the agent works in, as the host sees it.
    pub workspace: PathBuf,
    /// The sandbox's name, if it has a certain one.
    pub sandbox_name: Option<String>,
    /// What else there is to say of it.
    pub metadata: Map<String, Value>,
}

impl RunSession {
    /// A session over this folder.
    #[must_use]
    pub fn new(id: impl Into<String>, workspace: impl Into<PathBuf>) -> Self {
        let (id, workspace) = (id.into(), workspace.into());
        Self { id, workspace, sandbox_name: None, metadata: Map::new() }
    }
}

/// What a command did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommandResult {
    /// What it said. What is not UTF-8 is replaced; the log has the very bytes.
    #[serde(default)]
    pub stdout: String,
    /// What it complained of.
    #[serde(default)]
    pub stderr: String,
    /// Its exit code: its own, 128 + N for signal N, 124 for a timeout, 127 if it is not there.
    pub returncode: i32,
    /// The command.
    #[serde(default)]
    pub command: Vec<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// What else there is to say; `reason` is why it ended.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

/// A file that was collected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Artifact {
    /// Where it is on the host.
    pub path: PathBuf,
    /// What it is: `file`, `log` or `patch`.
    #[serde(default = "file")]
    pub kind: String,
    /// What else there is to say of it.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

fn file() -> String {
    "file".to_owned()
}

impl Artifact {
    /// A file of this kind.
    #[must_use]
    pub fn new(kind: &str, path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), kind: kind.to_owned(), metadata: Map::new() }
    }
}

/// What was collected.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunArtifacts {
    /// The complete change as a patch; none if it is too large to be held, then the artifact of kind
    /// `patch` has it.
    pub diff: Option<String>,
    /// The files that changed.
    #[serde(default)]
    pub changed_files: Vec<ChangedFile>,
    /// Files.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// What else there is to say: `ignored`, `left_out`, `new_repositories`.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// The branch the change is on, if it is on one.
    #[serde(default)]
    pub branch: Option<String>,
}

/// What came of a run, in the reference's shape.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunResult {
    /// The agent's last word: from its events, else what it said.
    pub output: String,
    /// All it said.
    pub stdout: String,
    /// All it complained of.
    pub stderr: String,
    /// Its exit code.
    pub returncode: i32,
    /// The agent's name.
    pub agent_name: String,
    /// The kind of agent.
    pub agent_backend: String,
    /// The kind of sandbox.
    pub sandbox_backend: String,
    /// The sandbox's name, if it had a certain one.
    pub sandbox_name: Option<String>,
    /// The command.
    pub command: Vec<String>,
    /// How long it took.
    pub duration_ms: Option<u64>,
    /// The change.
    pub diff: Option<String>,
    /// Files.
    pub artifacts: Vec<Artifact>,
    /// The agent's events.
    pub events: Vec<Value>,
    /// The agent's session, if it said so.
    pub session_id: Option<String>,
    /// The agent's thread, if it said so.
    pub thread_id: Option<String>,
    /// What it used, if it said so.
    pub usage: Option<Value>,
    /// What else there is to say.
    pub metadata: Map<String, Value>,
    /// The files that changed.
    #[serde(default)]
    pub changed_files: Vec<ChangedFile>,
    /// The branch the change is on.
    #[serde(default)]
    pub branch: Option<String>,
}

/// What came of a run, in the shape `bastide agent run --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunReport {
    /// The exit code.
    pub exit_code: i32,
    /// Why it ended: `exited`, `signalled`, `timeout`, `oom`, `cancelled`, `not_started`.
    pub reason: String,
    /// How long it took.
    pub duration_seconds: f64,
    /// The change as a patch.
    pub diff: Option<String>,
    /// The files that changed.
    pub changed_files: Vec<ChangedFile>,
    /// Collected files, by kind.
    pub artifacts: BTreeMap<String, Vec<PathBuf>>,
    /// The file with all that was said.
    pub log: Option<PathBuf>,
    /// What the agent used, if it said so.
    pub usage: Option<Value>,
    /// The branch the change is on.
    pub branch: Option<String>,
}

impl RunResult {
    /// The same in the shape the tool prints.
    #[must_use]
    pub fn report(&self) -> RunReport {
        let mut artifacts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for artifact in self.artifacts.iter().filter(|artifact| artifact.kind != "log") {
            artifacts.entry(artifact.kind.clone()).or_default().push(artifact.path.clone());
        }
        let log = self.artifacts.iter().find(|artifact| artifact.kind == "log");
        let reason = self.metadata.get("reason").and_then(Value::as_str);
        let millis = Duration::from_millis(self.duration_ms.unwrap_or_default());
        RunReport {
            exit_code: self.returncode,
            reason: reason.unwrap_or("exited").to_owned(),
            duration_seconds: millis.as_secs_f64(),
            diff: self.diff.clone(),
            changed_files: self.changed_files.clone(),
            artifacts,
            log: log.map(|log| log.path.clone()),
            usage: self.usage.clone(),
            branch: self.branch.clone(),
        }
    }
}

/// What the change left to say, as metadata.
pub(crate) fn remarks(
    ignored: &[String],
    left_out: &[LeftOut],
    new_repositories: &[String],
) -> Map<String, Value> {
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| {
        if value.as_array().is_some_and(|list| !list.is_empty()) {
            metadata.insert(key.to_owned(), value);
        }
    };
    put("ignored", ignored.into());
    let left_out = left_out.iter().map(|one| serde_json::json!({"path": one.path, "why": one.why}));
    put("left_out", left_out.collect());
    put("new_repositories", new_repositories.into());
    metadata
}
