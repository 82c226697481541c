//! The backends of runs, as users of sbx-agents write them down.
//!
//! A run prepares a sandbox over a workspace of the host, runs one agent command and collects what it
//! did. These are its two kinds of sandbox as data, with the field names and defaults users know;
//! keys they do not have are ignored, as they always were.

use bastide::{Error, ErrorKind, Result};
use bastide_model::PosixPath;
use bastide_model::lax::{Checked, Dump, FromInput, Input, Object};
use indexmap::IndexMap;
use serde_json::Value;

use crate::sandbox::SandboxOptions;
use crate::workspace::WorkspaceMode;

/// One throw-away container for each command; [`DockerSandbox`](crate::DockerSandbox) runs it.
///
/// ```
/// use bastide_model::lax;
/// use bastide_runs::reference::DockerRun;
/// use serde_json::json;
///
/// let run: DockerRun = lax::read(&json!({"workspace": "/srv/app", "env": {"CI": "1"}}))?;
/// assert_eq!((run.image.as_str(), run.workdir.as_str()), ("python:3.12-slim", "/workspace"));
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerRun {
    /// The word results name this backend by.
    pub id: String,
    /// The folder of the host the agent works in.
    pub workspace: String,
    /// The image.
    pub image: String,
    /// The container's name, if it is to have a certain one.
    pub name: Option<String>,
    /// Where the workspace is inside.
    pub workdir: String,
    /// Further words for `docker run`, ahead of the image.
    pub docker_args: Vec<String>,
    /// The environment.
    pub env: IndexMap<String, String>,
    /// Whether the container goes when its command ends.
    pub remove_on_exit: bool,
}

impl FromInput for DockerRun {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("DockerSandbox")?;
        let id = fields.or("id", "docker".to_owned());
        let workspace = fields.required_with("workspace", path);
        let image = fields.or("image", "python:3.12-slim".to_owned());
        let name = fields.or_default("name");
        let workdir = fields.or("workdir", "/workspace".to_owned());
        let docker_args = fields.or_default("docker_args");
        let env = fields.or_default("env");
        let remove_on_exit = fields.or("remove_on_exit", true);
        fields.build(|| {
            Some(Self {
                id: id?,
                workspace: workspace?,
                image: image?,
                name: name?,
                workdir: workdir?,
                docker_args: docker_args?,
                env: env?,
                remove_on_exit: remove_on_exit?,
            })
        })
    }
}

impl Dump for DockerRun {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("id", &self.id)?;
        out.put("workspace", &self.workspace)?;
        out.put("image", &self.image)?;
        out.put("name", &self.name)?;
        out.put("workdir", &self.workdir)?;
        out.put("docker_args", &self.docker_args)?;
        out.put("env", &self.env)?;
        out.put("remove_on_exit", &self.remove_on_exit)?;
        Ok(out.into())
    }
}

/// A microVM of Docker's `sbx`.
///
/// ```
/// use bastide_model::lax::{self, Dump};
/// use bastide_runs::reference::SbxRun;
/// use serde_json::json;
///
/// let run: SbxRun = lax::read(&json!({"workspace": "/srv/app", "cpus": "4", "color": "red"}))?;
/// assert_eq!(run.cpus, Some(4));
/// assert_eq!(run.dump()?["id"], "docker_sbx");
/// assert!(lax::read::<SbxRun>(&json!({"workspace": "/srv/app", "cpus": 1.5})).is_err());
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SbxRun {
    /// The word results name this backend by.
    pub id: String,
    /// The folder of the host the agent works in; it has the same path inside.
    pub workspace: String,
    /// The sandbox's name, if it is to have a certain one; one that exists is used again.
    pub name: Option<String>,
    /// The branch whose work tree the agent gets.
    pub branch: Option<String>,
    /// How many processors it has.
    pub cpus: Option<i128>,
    /// How much memory it has, in the words of `sbx`.
    pub memory: Option<String>,
    /// Whether the sandbox goes when the run ends.
    pub remove_on_exit: bool,
    /// Whether sandboxes of this name are removed ahead of each run.
    pub force_recreate: bool,
    /// The hosts it may reach.
    pub network_allow: Vec<String>,
    /// For each service, the variable of the host that holds its token.
    pub secret_env: IndexMap<String, String>,
    /// The services to sign in to where no secret is stored.
    pub secret_oauth: Vec<String>,
    /// The services to sign in to in any case.
    pub secret_oauth_refresh: Vec<String>,
    /// Whether the host's sign-in of the agent `codex` is copied in.
    pub codex_auth_from_host: bool,
}

impl FromInput for SbxRun {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("DockerSbxSandbox")?;
        let id = fields.or("id", "docker_sbx".to_owned());
        let workspace = fields.required_with("workspace", path);
        let name = fields.or_default("name");
        let branch = fields.or_default("branch");
        let cpus = fields.or_default("cpus");
        let memory = fields.or_default("memory");
        let remove_on_exit = fields.or("remove_on_exit", true);
        let force_recreate = fields.or("force_recreate", false);
        let network_allow = fields.or_default("network_allow");
        let secret_env = fields.or_default("secret_env");
        let secret_oauth = fields.or_default("secret_oauth");
        let secret_oauth_refresh = fields.or_default("secret_oauth_refresh");
        let codex_auth_from_host = fields.or("codex_auth_from_host", false);
        fields.build(|| {
            Some(Self {
                id: id?,
                workspace: workspace?,
                name: name?,
                branch: branch?,
                cpus: cpus?,
                memory: memory?,
                remove_on_exit: remove_on_exit?,
                force_recreate: force_recreate?,
                network_allow: network_allow?,
                secret_env: secret_env?,
                secret_oauth: secret_oauth?,
                secret_oauth_refresh: secret_oauth_refresh?,
                codex_auth_from_host: codex_auth_from_host?,
            })
        })
    }
}

impl Dump for SbxRun {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("id", &self.id)?;
        out.put("workspace", &self.workspace)?;
        out.put("name", &self.name)?;
        out.put("branch", &self.branch)?;
        out.put("cpus", &self.cpus)?;
        out.put("memory", &self.memory)?;
        out.put("remove_on_exit", &self.remove_on_exit)?;
        out.put("force_recreate", &self.force_recreate)?;
        out.put("network_allow", &self.network_allow)?;
        out.put("secret_env", &self.secret_env)?;
        out.put("secret_oauth", &self.secret_oauth)?;
        out.put("secret_oauth_refresh", &self.secret_oauth_refresh)?;
        out.put("codex_auth_from_host", &self.codex_auth_from_host)?;
        Ok(out.into())
    }
}

/// Refuses settings that a session does not serve, by name.
fn refuse_unserved(settings: &[(&str, bool)], instead: &str) -> Result<()> {
    let asked: Vec<_> =
        settings.iter().filter(|(_, is_asked)| *is_asked).map(|(name, _)| *name).collect();
    if asked.is_empty() {
        return Ok(());
    }
    let message = format!("a session does not serve {}", asked.join(", "));
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_context("settings", asked.join(","))
        .with_hint(instead))
}

impl SbxRun {
    /// The same run in a session: the branch is that of a work tree, processors and memory are limits.
    ///
    /// # Errors
    ///
    /// If the memory is no size, or the processors are no number of them; and for each setting that only
    /// `sbx` itself serves, by its name.
    pub fn options(&self) -> Result<SandboxOptions> {
        let unserved = [
            ("network_allow", !self.network_allow.is_empty()),
            ("secret_env", !self.secret_env.is_empty()),
            ("secret_oauth", !self.secret_oauth.is_empty()),
            ("secret_oauth_refresh", !self.secret_oauth_refresh.is_empty()),
            ("codex_auth_from_host", self.codex_auth_from_host),
        ];
        let instead = "choose the network by `create.network`, and pass keys by `create.env`";
        refuse_unserved(&unserved, instead)?;
        self.options_for_sbx()
    }

    /// The same where the session's backend is `sbx`, which is given the hosts, secrets and sign-ins itself.
    ///
    /// # Errors
    ///
    /// If the memory is no size, or the processors are no number of them.
    pub fn options_for_sbx(&self) -> Result<SandboxOptions> {
        let wrong = |what: &str| Error::new(ErrorKind::InvalidInput, what.to_owned());
        let mut options = SandboxOptions::new(&self.workspace);
        options.name.clone_from(&self.name);
        options.remove_on_exit = self.remove_on_exit;
        options.force_recreate = self.force_recreate;
        if let Some(branch) = &self.branch {
            options.given.mode = WorkspaceMode::Worktree;
            options.given.branch = Some(branch.clone());
        }
        if let Some(cpus) = self.cpus {
            let millis = u32::try_from(cpus).ok().and_then(|cpus| cpus.checked_mul(1000));
            let millis = millis.filter(|millis| *millis > 0);
            options.create.limits.cpu_millis =
                Some(millis.ok_or_else(|| wrong("cpus is no number of processors"))?.into());
        }
        if let Some(memory) = &self.memory {
            let bytes =
                size(memory).ok_or_else(|| wrong("memory is no size, such as `512m` or `8g`"))?;
            options.create.limits.memory = Some(bytes);
        }
        Ok(options)
    }
}

/// A size with a binary unit.
fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k') => (text.get(..at)?, 10),
        (at, 'm') => (text.get(..at)?, 20),
        (at, 'g') => (text.get(..at)?, 30),
        (at, 't') => (text.get(..at)?, 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn path(input: Input<'_>) -> Checked<String> {
    match input.value().as_str() {
        Some(path) => Ok(PosixPath::new(path).to_string()),
        None => Err(input.field_error("path_type", "Input is not a valid path")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use bastide_model::lax;

    #[test]
    fn defaults_are_those_users_know() {
        let docker: DockerRun = lax::read(&json!({"workspace": "/w/"})).unwrap();
        let want = json!({"id": "docker", "workspace": "/w", "image": "python:3.12-slim",
            "name": null, "workdir": "/workspace", "docker_args": [], "env": {},
            "remove_on_exit": true});
        assert_eq!(docker.dump().unwrap(), want);
        let sbx: SbxRun = lax::read(&json!({"workspace": "/w"})).unwrap();
        let want = json!({"id": "docker_sbx", "workspace": "/w", "name": null, "branch": null,
            "cpus": null, "memory": null, "remove_on_exit": true, "force_recreate": false,
            "network_allow": [], "secret_env": {}, "secret_oauth": [],
            "secret_oauth_refresh": [], "codex_auth_from_host": false});
        assert_eq!(sbx.dump().unwrap(), want);
        assert_eq!(lax::read::<SbxRun>(&want).unwrap(), sbx);
    }

    #[test]
    fn run_in_sessions_as_they_are_written() {
        let written = json!({"workspace": "/w", "name": "n", "branch": "b", "cpus": 2,
            "memory": "512m", "remove_on_exit": false, "force_recreate": true});
        let options = lax::read::<SbxRun>(&written).unwrap().options().unwrap();
        assert_eq!(options.given.mode, WorkspaceMode::Worktree);
        assert_eq!(options.given.branch.as_deref(), Some("b"));
        assert_eq!(options.create.limits.memory, Some(512 << 20));
        assert!(options.force_recreate && !options.remove_on_exit);
        for (key, value) in [("memory", json!("much")), ("memory", json!("0g")), ("cpus", json!(0))]
        {
            let wrong = json!({"workspace": "/w", key: value});
            assert!(lax::read::<SbxRun>(&wrong).unwrap().options().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let all = [
            ("network_allow", json!(["a.example:443"])),
            ("secret_env", json!({"openai": "KEY"})),
            ("secret_oauth", json!(["openai"])),
            ("secret_oauth_refresh", json!(["openai"])),
            ("codex_auth_from_host", json!(true)),
        ];
        for (name, value) in all {
            let run: SbxRun = lax::read(&json!({"workspace": "/w", name: value})).unwrap();
            let refused = run.options().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains(name), "{refused}");
        }
    }

    #[test]
    fn a_workspace_is_needed_and_is_a_path() {
        for input in [json!({}), json!({"workspace": null}), json!({"workspace": 1})] {
            assert!(lax::read::<DockerRun>(&input).is_err(), "{input}");
            assert!(lax::read::<SbxRun>(&input).is_err(), "{input}");
        }
    }
}
