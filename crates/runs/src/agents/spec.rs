//! What an agent's file says.

use bastide::model::lax::{Checked, FromInput, Input};
use indexmap::IndexMap;
use serde_json::Value;

/// An agent.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct AgentSpec {
    /// The word users choose it by.
    pub name: String,
    /// What it is, in a sentence.
    pub description: String,
    /// How it is called.
    pub command: Stage,
    /// What it may need to be let in.
    pub credentials: Vec<Credential>,
    /// The hosts it talks to.
    pub hosts: Vec<String>,
    /// Variables it starts with.
    pub env: IndexMap<String, String>,
    /// What is put into its workspace.
    pub files: AgentFiles,
    /// How its output reads.
    pub stream: StreamSpec,
}

/// How an agent is called: the program, then what the run asks for, then the prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stage {
    /// The program.
    pub program: String,
    /// Its first arguments.
    pub args: Vec<String>,
    /// Further ones where the sandbox confines: those by which it asks nobody and has no sandbox of its
    /// own.
    pub confined: Vec<String>,
    /// How the prompt is given; `{prompt}` is it.
    pub prompt: Vec<String>,
    /// What prints its version.
    pub version: Vec<String>,
    /// What to do where the program is missing.
    pub install: String,
    /// Asks for events as lines of JSON.
    pub json: Vec<String>,
    /// Goes on with the session `{session}`.
    pub resume: Vec<String>,
    /// Goes on with the last one.
    pub resume_last: Vec<String>,
    /// Goes on with a copy.
    pub fork: Vec<String>,
    /// Attaches `{file}`.
    pub attach: Vec<String>,
    /// Asks for an answer by the schema in `{file}`.
    pub schema: Vec<String>,
    /// The order of these parts.
    pub order: Vec<CommandPart>,
    /// Whether a session that is named counts more than the last one; else both are said.
    pub resume_excludes_last: bool,
}

/// A part of a command that is there if the run asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "they are the fields of `Stage`")]
pub enum CommandPart {
    Resume,
    ResumeLast,
    Fork,
    Json,
    Schema,
    Attach,
}

impl CommandPart {
    const ALL: [(&str, Self); 6] = [
        ("resume", Self::Resume),
        ("resume_last", Self::ResumeLast),
        ("fork", Self::Fork),
        ("json", Self::Json),
        ("schema", Self::Schema),
        ("attach", Self::Attach),
    ];
}

impl FromInput for CommandPart {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let word = input.value().as_str();
        let found = Self::ALL.iter().find(|(name, _)| Some(*name) == word);
        found.map(|(_, part)| *part).ok_or_else(|| {
            input.value_error(
                "a part is `resume`, `resume_last`, `fork`, `json`, `schema` or `attach`",
            )
        })
    }
}

/// A key an agent may need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// The variable it reads it from.
    pub env: String,
    /// The service it is for.
    pub service: String,
    /// The hosts it is shown to.
    pub hosts: Vec<String>,
    /// Whether nothing works without it, unless another one of the same `one_of` is there.
    pub required: bool,
    /// Of several keys of one name one is enough.
    pub one_of: Option<String>,
}

/// What is put into an agent's workspace, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentFiles {
    /// The file it reads instructions from.
    pub instructions: Option<String>,
    /// The file of a skill; `{name}` is the skill's.
    pub skill: Option<String>,
    /// Whether a skill's file begins with what the skill is.
    pub skill_frontmatter: bool,
    /// The file it reads servers of tools from.
    pub mcp: Option<String>,
    /// How that one is written.
    pub mcp_format: McpFormat,
}

/// How servers of tools are written down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpFormat {
    /// `{"mcpServers": {…}}`, as most do.
    #[default]
    McpServers,
    /// `[mcp_servers.NAME]` in TOML, as codex does.
    Codex,
    /// `{"mcp": {…}}`, as opencode does.
    Opencode,
}

/// How an agent's output reads.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct StreamSpec {
    /// As text, or as lines of JSON.
    pub format: StreamFormat,
    /// Paths of the agent's last word, the later event counts.
    pub output: Vec<IndexMap<String, Value>>,
    /// Where an event says which session it is of.
    pub session: Vec<String>,
    /// Where it says which thread.
    pub thread: Vec<String>,
    /// Where it says what was used.
    pub usage: Vec<String>,
    /// Where it says what that cost.
    pub cost: Vec<String>,
    /// What is shown of which event; the first that matches counts.
    pub steps: Vec<StepRule>,
}

/// How lines are to be understood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamFormat {
    /// As they are.
    #[default]
    Text,
    /// As JSON, one event a line.
    Jsonl,
}

/// What is shown of an event.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct StepRule {
    /// What must be so: each path with the value it has, or `"*"` for any. `*` in a path is any element
    /// of a list.
    pub when: IndexMap<String, Value>,
    /// The line; `{PATH}` is what is there. Nothing is shown for an empty one.
    pub show: String,
    /// Where the text is that is shown below it, indented.
    pub detail: Option<String>,
    /// Whether it is shown only the first time it would read the same.
    pub once: bool,
}

impl FromInput for AgentSpec {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Agent")?;
        let name = fields.required("name");
        let description = fields.or_default("description");
        let command = fields.required("command");
        let credentials = fields.or_default("credentials");
        let hosts = fields.or_default("hosts");
        let env = fields.or_default("env");
        let files = fields.or_default("files");
        let stream = fields.or_default("stream");
        fields.build(|| {
            Some(Self {
                name: name?,
                description: description?,
                command: command?,
                credentials: credentials?,
                hosts: hosts?,
                env: env?,
                files: files?,
                stream: stream?,
            })
        })
    }
}

impl FromInput for Stage {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Command")?;
        let program = fields.required("program");
        let args = fields.or_default("args");
        let confined = fields.or_default("confined");
        let prompt = fields.or("prompt", vec!["{prompt}".to_owned()]);
        let version = fields.or_default("version");
        let install = fields.or_default("install");
        let json = fields.or_default("json");
        let resume = fields.or_default("resume");
        let resume_last = fields.or_default("resume_last");
        let fork = fields.or_default("fork");
        let attach = fields.or_default("attach");
        let schema = fields.or_default("schema");
        let order = fields.or("order", CommandPart::ALL.map(|(_, part)| part).to_vec());
        let resume_excludes_last = fields.or_default("resume_excludes_last");
        fields.build(|| {
            Some(Self {
                program: program?,
                args: args?,
                confined: confined?,
                prompt: prompt?,
                version: version?,
                install: install?,
                json: json?,
                resume: resume?,
                resume_last: resume_last?,
                fork: fork?,
                attach: attach?,
                schema: schema?,
                order: order?,
                resume_excludes_last: resume_excludes_last?,
            })
        })
    }
}

impl FromInput for Credential {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Credential")?;
        let env = fields.required("env");
        let service = fields.required("service");
        let hosts = fields.or_default("hosts");
        let required = fields.or_default("required");
        let one_of = fields.or_default("one_of");
        fields.build(|| {
            Some(Self {
                env: env?,
                service: service?,
                hosts: hosts?,
                required: required?,
                one_of: one_of?,
            })
        })
    }
}

impl FromInput for AgentFiles {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Files")?;
        let instructions = fields.or_default("instructions");
        let skill = fields.or_default("skill");
        let skill_frontmatter = fields.or_default("skill_frontmatter");
        let mcp = fields.or_default("mcp");
        let mcp_format = fields.or_with("mcp_format", McpFormat::default(), |input| {
            match input.value().as_str() {
                Some("mcp_servers") => Ok(McpFormat::McpServers),
                Some("codex") => Ok(McpFormat::Codex),
                Some("opencode") => Ok(McpFormat::Opencode),
                _ => Err(input.value_error("mcp_format is `mcp_servers`, `codex` or `opencode`")),
            }
        });
        fields.build(|| {
            Some(Self {
                instructions: instructions?,
                skill: skill?,
                skill_frontmatter: skill_frontmatter?,
                mcp: mcp?,
                mcp_format: mcp_format?,
            })
        })
    }
}

impl FromInput for StreamSpec {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Stream")?;
        let format = fields.or_with("format", StreamFormat::default(), |input| {
            match input.value().as_str() {
                Some("text") => Ok(StreamFormat::Text),
                Some("jsonl") => Ok(StreamFormat::Jsonl),
                _ => Err(input.value_error("format is `text` or `jsonl`")),
            }
        });
        let output = fields.or_default("output");
        let session = fields.or_default("session");
        let thread = fields.or_default("thread");
        let usage = fields.or_default("usage");
        let cost = fields.or_default("cost");
        let steps = fields.or_default("steps");
        fields.build(|| {
            Some(Self {
                format: format?,
                output: output?,
                session: session?,
                thread: thread?,
                usage: usage?,
                cost: cost?,
                steps: steps?,
            })
        })
    }
}

impl FromInput for StepRule {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Step")?;
        let when = fields.required("when");
        let show = fields.required("show");
        let detail = fields.or_default("detail");
        let once = fields.or_default("once");
        fields.build(|| Some(Self { when: when?, show: show?, detail: detail?, once: once? }))
    }
}
