//! Agents as data: how one is called, what it needs, how its output reads.
//!
//! An agent is a small TOML file; those in `agents/` come with the library, and any other is read the
//! same way. Adding one needs no code.

mod command;
mod files;
mod skill;
mod spec;
mod steps;

use bastide::model::Registry;
use bastide::model::document::{Document, Format};
use bastide::{Error, ErrorKind, Result};

pub use files::{MaterialisedFile, McpServer, McpTransport};
pub use skill::Skill;
pub use spec::{
    AgentFiles, AgentSpec, CommandPart, Credential, McpFormat, Stage, StepRule, StreamFormat,
    StreamSpec,
};
pub use steps::{EventSummary, StepFilter};

/// The agents that come with the library, by name.
const BUILTIN: [(&str, &str); 7] = [
    ("aider", include_str!("../agents/aider.toml")),
    ("claude", include_str!("../agents/claude.toml")),
    ("codex", include_str!("../agents/codex.toml")),
    ("gemini", include_str!("../agents/gemini.toml")),
    ("goose", include_str!("../agents/goose.toml")),
    ("opencode", include_str!("../agents/opencode.toml")),
    ("shell", include_str!("../agents/shell.toml")),
];

/// What somebody wants of an agent, besides the prompt.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Agent {
    /// The name results have.
    pub name: String,
    /// How it is called.
    pub spec: AgentSpec,
    /// What it is told in its instructions file.
    pub instructions: Option<String>,
    /// What it is taught.
    pub skills: Vec<Skill>,
    /// The servers of tools it may use.
    pub mcp_servers: Vec<McpServer>,
    /// Whether what it cannot do is an error, and not passed over.
    pub strict: bool,
}

impl Agent {
    /// An agent as its file says.
    #[must_use]
    pub fn new(spec: AgentSpec) -> Self {
        Self { name: spec.name.clone(), spec, strict: true, ..Self::default() }
    }
}

impl AgentSpec {
    /// The names of the agents that come with the library.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// An agent that comes with the library.
    ///
    /// # Errors
    ///
    /// If there is none of that name; the error says which there are.
    pub fn named(name: &str) -> Result<Self> {
        match BUILTIN.iter().find(|(known, _)| *known == name) {
            Some((known, text)) => Self::parse(&format!("agents/{known}.toml"), text),
            None => {
                let known: Vec<_> = Self::names().collect();
                let message = format!("there is no agent {name:?}");
                Err(Error::new(ErrorKind::NotFound, message).with_hint(format!(
                    "there are {}; or give a file of your own",
                    known.join(", ")
                )))
            }
        }
    }

    /// Reads an agent's file; `file` is how errors call it.
    ///
    /// ```
    /// use bastide_runs::agents::AgentSpec;
    ///
    /// let text = "name = \"mine\"\n[command]\nprogramm = \"mine\"\n";
    /// let error = AgentSpec::parse("mine.toml", text).unwrap_err();
    /// assert!(error.to_string().contains("mine.toml:3:1: command: unknown key `programm`"), "{error}");
    /// ```
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, each with its line and its field.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let document = Document::parse(file, text, Format::Toml)?;
        Ok(document.read::<Self>(Registry::builtin())?.value)
    }
}
