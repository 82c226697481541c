//! What an agent finds in its workspace: instructions, skills, servers of tools.

use std::path::PathBuf;

use bastide::{Error, ErrorKind, Result};
use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::{Agent, McpFormat};

/// A file to put into a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaterialisedFile {
    /// Where, relative to the workspace.
    pub path: PathBuf,
    /// What is in it.
    pub content: Vec<u8>,
}

/// A server of tools.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpServer {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// Whether it is used.
    pub enabled: bool,
    /// Whether the agent cannot do without.
    pub required: bool,
    /// How long it may take to start, in seconds.
    pub startup_timeout_sec: Option<u64>,
    /// How long one tool may take, in seconds.
    pub tool_timeout_sec: Option<u64>,
    /// The only tools to use, if any are named.
    pub enabled_tools: Vec<String>,
    /// Tools not to use.
    pub disabled_tools: Vec<String>,
}

/// How a server of tools is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpTransport {
    /// A program that is talked to by its standard streams.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Its variables.
        env: IndexMap<String, String>,
    },
    /// A web address.
    Http {
        /// The address.
        url: String,
        /// Headers of each request.
        headers: IndexMap<String, String>,
        /// The variable with the token of each request.
        bearer_token_env_var: Option<String>,
    },
}

impl McpServer {
    /// A program that is talked to by its standard streams.
    #[must_use]
    pub fn stdio(name: &str, command: &str, args: &[&str]) -> Self {
        let (command, args) =
            (command.to_owned(), args.iter().map(|&arg| arg.to_owned()).collect());
        Self::new(name, McpTransport::Stdio { command, args, env: IndexMap::new() })
    }

    /// A web address.
    #[must_use]
    pub fn http(name: &str, url: &str) -> Self {
        let (url, headers, bearer_token_env_var) = (url.to_owned(), IndexMap::new(), None);
        Self::new(name, McpTransport::Http { url, headers, bearer_token_env_var })
    }

    fn new(name: &str, transport: McpTransport) -> Self {
        Self {
            name: name.to_owned(),
            transport,
            enabled: true,
            required: false,
            startup_timeout_sec: None,
            tool_timeout_sec: None,
            enabled_tools: Vec::new(),
            disabled_tools: Vec::new(),
        }
    }
}

impl Agent {
    /// The files the agent is to find in its workspace.
    ///
    /// # Errors
    ///
    /// If the agent knows no place for something and is strict, and for a skill whose name is none.
    pub fn files(&self) -> Result<Vec<MaterialisedFile>> {
        let places = &self.spec.files;
        let mut files = Vec::new();
        let mut put = |path: String, content: Vec<u8>| {
            files.push(MaterialisedFile { path: PathBuf::from(path), content });
        };
        let wants_page = self.instructions.is_some() || !self.skills.is_empty();
        match &places.instructions {
            Some(path) if wants_page => put(path.clone(), self.page().into_bytes()),
            None if self.instructions.is_some() => self.cannot("instructions")?,
            _ => {}
        }
        match &places.skill {
            Some(template) => {
                for skill in &self.skills {
                    skill.check_name()?;
                    let path = template.replace("{name}", &skill.name);
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
                    let page = match places.skill_frontmatter {
                        true => skill.to_skill_md(),
                        false => skill.instructions.clone(),
                    };
                    put(path, page.into_bytes());
                    for (name, content) in &skill.assets {
                        put(format!("{folder}/{name}"), content.clone());
                    }
                }
            }
            None if !self.skills.is_empty() => self.cannot("skills")?,
            None => {}
        }
        match &places.mcp {
            Some(path) if !self.mcp_servers.is_empty() => {
                put(path.clone(), self.servers(places.mcp_format)?.into_bytes());
            }
            None if !self.mcp_servers.is_empty() => self.cannot("MCP servers")?,
            _ => {}
        }
        Ok(files)
    }

    fn cannot(&self, what: &str) -> Result<()> {
        if !self.strict {
            return Ok(());
        }
        let message = format!("the agent {} cannot be given {what}", self.spec.name);
        Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("its file names no place for them"))
    }

    fn page(&self) -> String {
        let mut page = self.instructions.as_deref().unwrap_or_default().trim().to_owned();
        if !self.skills.is_empty() {
            if !page.is_empty() {
                page.push_str("\n\n");
            }
            page.push_str("## Skills\n");
            for skill in &self.skills {
                page.push_str(&format!("\n- {}: {}", skill.name, skill.description));
            }
        }
        page + "\n"
    }

    fn servers(&self, format: McpFormat) -> Result<String> {
        let all = self.mcp_servers.iter();
        let written = match format {
            McpFormat::Codex => return Ok(all.map(codex).collect::<Vec<_>>().join("\n")),
            McpFormat::McpServers => {
                let all: Map<_, _> = all.map(|one| (one.name.clone(), common(one))).collect();
                json!({"mcpServers": all})
            }
            McpFormat::Opencode => {
                let all: Map<_, _> = all.map(|one| (one.name.clone(), opencode(one))).collect();
                json!({"mcp": all})
            }
        };
        let text = serde_json::to_string_pretty(&written).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot write MCP servers: {error}"))
        })?;
        Ok(text + "\n")
    }
}

/// `[mcp_servers.NAME]`; only what is not as usual is written.
fn codex(server: &McpServer) -> String {
    let mut lines = vec![format!("[mcp_servers.{}]", toml_text(&server.name))];
    let mut put = |key: &str, value: String| lines.push(format!("{key} = {value}"));
    match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            put("command", toml_text(command));
            put("args", toml_list(args));
            if !env.is_empty() {
                put("env", toml_table(env));
            }
        }
        McpTransport::Http { url, headers, bearer_token_env_var } => {
            put("url", toml_text(url));
            if let Some(variable) = bearer_token_env_var {
                put("bearer_token_env_var", toml_text(variable));
            }
            if !headers.is_empty() {
                put("http_headers", toml_table(headers));
            }
        }
    }
    if !server.enabled {
        put("enabled", "false".to_owned());
    }
    if server.required {
        put("required", "true".to_owned());
    }
    if let Some(seconds) = server.startup_timeout_sec {
        put("startup_timeout_sec", seconds.to_string());
    }
    if let Some(seconds) = server.tool_timeout_sec {
        put("tool_timeout_sec", seconds.to_string());
    }
    for (key, tools) in
        [("enabled_tools", &server.enabled_tools), ("disabled_tools", &server.disabled_tools)]
    {
        if !tools.is_empty() {
            put(key, toml_list(tools));
        }
    }
    lines.join("\n") + "\n"
}

/// A string as TOML and JSON both write it; the one character that JSON leaves and TOML does not is
/// escaped besides.
fn toml_text(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

fn toml_list(list: &[String]) -> String {
    format!("[{}]", list.iter().map(|one| toml_text(one)).collect::<Vec<_>>().join(", "))
}

fn toml_table(table: &IndexMap<String, String>) -> String {
    let pair =
        |(key, value): (&String, &String)| format!("{} = {}", toml_text(key), toml_text(value));
    format!("{{ {} }}", table.iter().map(pair).collect::<Vec<_>>().join(", "))
}

fn table(pairs: &IndexMap<String, String>) -> Value {
    pairs.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))).collect()
}

fn opencode(server: &McpServer) -> Value {
    let mut out = match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            let command: Vec<_> = std::iter::once(command).chain(args).collect();
            let mut out = json!({"type": "local", "command": command});
            if !env.is_empty() {
                out["environment"] = table(env);
            }
            out
        }
        McpTransport::Http { url, headers, .. } => {
            let mut out = json!({"type": "remote", "url": url});
            if !headers.is_empty() {
                out["headers"] = table(headers);
            }
            out
        }
    };
    if !server.enabled {
        out["enabled"] = json!(false);
    }
    if let Some(seconds) = server.startup_timeout_sec {
        out["timeout"] = json!(seconds.saturating_mul(1000));
    }
    out
}

fn common(server: &McpServer) -> Value {
    match &server.transport {
        McpTransport::Stdio { command, args, env } => {
            json!({"type": "stdio", "command": command, "args": args, "env": table(env)})
        }
        McpTransport::Http { url, headers, .. } => {
            json!({"type": "http", "url": url, "headers": table(headers)})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{AgentSpec, Skill};

    fn agent(name: &str) -> Agent {
        let mut agent = Agent::new(AgentSpec::named(name).unwrap());
        agent.instructions = Some(" Be brief. ".to_owned());
        agent.skills = vec![Skill::new("tidy", "Tidies", "Do.\n")];
        agent.mcp_servers = vec![
            McpServer::stdio("context7", "npx", &["-y", "c7"]),
            McpServer::http("docs site", "https://example.com/mcp"),
        ];
        agent
    }

    fn content(files: &[MaterialisedFile], path: &str) -> String {
        let found = files.iter().find(|file| file.path.as_os_str() == path);
        String::from_utf8(found.unwrap_or_else(|| panic!("{path} in {files:?}")).content.clone())
            .unwrap()
    }

    #[test]
    fn writes_what_codex_reads() {
        let files = agent("codex").files().unwrap();
        assert_eq!(content(&files, "AGENTS.md"), "Be brief.\n\n## Skills\n\n- tidy: Tidies\n");
        assert_eq!(content(&files, ".codex/skills/tidy/SKILL.md"), "Do.\n");
        let want = "[mcp_servers.\"context7\"]\ncommand = \"npx\"\nargs = [\"-y\", \"c7\"]\n\n\
                    [mcp_servers.\"docs site\"]\nurl = \"https://example.com/mcp\"\n";
        assert_eq!(content(&files, ".codex/config.toml"), want);
    }

    #[test]
    fn writes_what_opencode_reads() {
        let files = agent("opencode").files().unwrap();
        let skill = content(&files, ".opencode/skills/tidy/SKILL.md");
        assert!(skill.starts_with("---\nname: tidy\ndescription: Tidies\n---\n"), "{skill}");
        let written: Value = serde_json::from_str(&content(&files, "opencode.jsonc")).unwrap();
        assert_eq!(
            written["mcp"]["context7"],
            json!({"type": "local", "command": ["npx", "-y", "c7"]})
        );
        assert_eq!(written["mcp"]["docs site"]["type"], "remote");
    }

    #[test]
    fn refuses_what_a_shell_cannot_be_given_unless_told_to_pass_it_over() {
        let mut shell = agent("shell");
        assert_eq!(shell.files().unwrap_err().kind(), ErrorKind::Unsupported);
        shell.strict = false;
        assert_eq!(shell.files().unwrap(), []);
    }
}
