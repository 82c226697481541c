//! Making, listing, stopping and removing sandboxes.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bastide::model::{Manifest, PathGrant};
use bastide::{CreateOptions, SessionId};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::inside::{Inside, run_inside};
use crate::state::{Database, Sandbox, Sandboxes, last_part, say};
use crate::{Failure, Outcome, fail};
use crate::{clones, ports, stored, templates};

/// The agents there are.
const AGENTS: [&str; 11] = [
    "claude",
    "codex",
    "copilot",
    "cursor",
    "devin",
    "docker-agent",
    "droid",
    "gemini",
    "kiro",
    "opencode",
    "shell",
];

/// Places of a microVM's own disk that can be written to. A local sandbox has none of its own, so these
/// stand for it.
const DISK: [(&str, &str); 2] = [("home", "/home/agent"), ("bastide", "/.bastide")];

pub(crate) fn list(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] =
        &[(&["--json"], false), (&["--format"], true), (&["-q", "--quiet"], false)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let all = if world.has_fault("lost") { Sandboxes::new() } else { world.sandboxes()? };
    if given.has("--json") || given.value("--format") == Some("json") {
        let rows: Vec<Value> =
            all.iter().map(|(name, sandbox)| row(world, name, sandbox)).collect();
        let list = match world.profile.minor < 30 {
            true => Value::Array(rows),
            false => json!({"sandboxes": rows}),
        };
        return say(list.to_string());
    }
    if all.is_empty() {
        return say("No sandboxes found.\nUse `sbx run` to create one.");
    }
    if !given.has("-q") {
        say("SANDBOX   AGENT   STATUS   PORTS   WORKSPACE")?;
    }
    for (name, sandbox) in all {
        let workspace = sandbox.workspaces.first().map_or("", String::as_str);
        match given.has("-q") {
            true => say(name)?,
            false => {
                let ports: Vec<_> = sandbox.ports.iter().map(ports::text).collect();
                let (status, ports) = (status(&sandbox), ports.join(", "));
                say(format!("{name}   {}   {status}   {ports}   {workspace}", sandbox.agent))?
            }
        };
    }
    Ok(0)
}

fn status(sandbox: &Sandbox) -> &'static str {
    if sandbox.running { "running" } else { "stopped" }
}

fn row(world: &Database, name: &str, sandbox: &Sandbox) -> Value {
    let mut row = json!({"name": name, "agent": sandbox.agent, "status": status(sandbox),
                         "workspaces": sandbox.workspaces});
    if let Some(fields) = row.as_object_mut() {
        if world.profile.minor != 32 {
            fields.insert("id".to_owned(), sandbox.session.to_string().into());
        }
        if !sandbox.ports.is_empty() {
            fields.insert("ports".to_owned(), ports::rows(&sandbox.ports).into());
        }
    }
    row
}

fn options_of(world: &Database, is_run: bool) -> Vec<(&'static [&'static str], bool)> {
    let mut known: Vec<(&'static [&'static str], bool)> = vec![
        (&["--name"], true),
        (&["--cpus"], true),
        (&["-m", "--memory"], true),
        (&["-t", "--template"], true),
        (&["--pull"], true),
    ];
    let profile = world.profile;
    if profile.has_branches() {
        known.push((&["--branch"], true));
    }
    if profile.has_clones() {
        known.push((&["--clone"], false));
    }
    if profile.denies_at_create() {
        known.push((&["--deny-network"], true));
    }
    if profile.has_env() {
        known.push((&["-e", "--env"], true));
    }
    if is_run {
        known.push((&["-d", "--detach"], false));
        if profile.renamed_options() {
            known.push((&["--rm"], false));
        }
    } else if profile.renamed_options() {
        known.push((&["--no-progress"], false));
    } else {
        known.push((&["-q", "--quiet"], false));
    }
    known
}

pub(crate) async fn create(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &options_of(world, false), usize::MAX)?;
    let name = make(world, &given).await?;
    if !given.has("-q") && !given.has("--no-progress") {
        announce(world, &name)?;
    }
    Ok(0)
}

fn announce(world: &Database, name: &str) -> Result<(), Failure> {
    let sandbox = world.sandbox(name)?;
    let workspace = sandbox.workspaces.first().map_or("", String::as_str);
    let text =
        format!("✓ Created sandbox '{name}'\n  Workspace: {workspace}\n  Agent: {}", sandbox.agent);
    writeln!(io::stderr(), "{text}")?;
    Ok(())
}

/// The folders a command line names, and which of them are for reading only.
fn folders(world: &Database, words: &[String]) -> Result<Vec<(String, bool)>, Failure> {
    let one = |word: &String| -> Result<(String, bool), Failure> {
        let (path, read_only) = match word.strip_suffix(":ro") {
            Some(path) => (path, !world.has_fault("writable")),
            None => (word.as_str(), false),
        };
        let real = Path::new(path).canonicalize();
        let real = real.map_err(|error| Failure(1, format!("{path}: {error}")))?;
        Ok((real.to_string_lossy().into_owned(), read_only))
    };
    words.iter().map(one).collect()
}

/// Makes a sandbox, and gives its name.
async fn make(world: &Database, given: &Arguments) -> Result<String, Failure> {
    let agent = given.word(0, "AGENT")?;
    if !AGENTS.contains(&agent) {
        return Err(Failure(1, format!("unknown agent {agent:?}")));
    }
    if !world.path("initialized").exists() {
        return Err(Failure(1, "no network policy yet; run `sbx policy init`".to_owned()));
    }
    let mut folders = folders(world, given.words.get(1..).unwrap_or_default())?;
    if folders.is_empty() && !world.profile.has_json_everywhere() {
        return Err(Failure(1, "PATH is missing".to_owned()));
    }
    let first = folders.first().map(|(path, _)| path.clone());
    let named = format!("{agent}-{}", last_part(first.as_deref().unwrap_or("workspace")));
    let name = given.value("--name").map_or(named, str::to_owned);
    check_name(&name)?;
    refuse_clash(world, &name, agent, first.as_deref())?;
    if let (Some(branch), Some((path, _))) = (given.value("--branch"), folders.first_mut()) {
        *path = worktree(path, &name, branch)?;
    }
    if let Some(cpus) = given.value("--cpus")
        && cpus.parse::<u32>().is_err()
    {
        return Err(Failure(1, format!("invalid argument {cpus:?} for --cpus")));
    }
    if let Some(tag) = given.value("-t") {
        templates::unpack(world, tag, &name)?;
    }
    let clone_of = match given.has("--clone") {
        true => {
            let (repository, _) = folders.first().ok_or_else(|| {
                Failure(1, "--clone needs the main worktree of a Git repository".to_owned())
            })?;
            clones::make(world, &name, repository)?;
            Some(repository.clone())
        }
        false => None,
    };
    let session = match boot(world, &name, &folders, clone_of.as_deref()).await {
        Ok(session) => session,
        Err(failure) => {
            clone_of.iter().for_each(|repository| clones::forget(&name, repository));
            return Err(failure);
        }
    };
    let folder = match &clone_of {
        Some(_) => Some(clones::FOLDER.to_owned()),
        None => folders.first().map(|(path, _)| path.clone()),
    };
    let env = given.values("-e").filter_map(|pair| pair.split_once('='));
    let sandbox = Sandbox {
        agent: agent.to_owned(),
        workspaces: folders.into_iter().map(|(path, _)| path).collect(),
        session,
        running: true,
        env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        cpus: given.value("--cpus").map(str::to_owned),
        memory: given.value("-m").map(str::to_owned),
        folder: folder.unwrap_or_else(|| "/workspace".to_owned()),
        ports: Vec::new(),
        clone_of,
    };
    world.change("sandboxes.json", |all: &mut Sandboxes| {
        all.insert(name.clone(), sandbox);
        Ok(())
    })?;
    for host in given.values("--deny-network") {
        stored::remember(world, "deny", Some(&name), vec![host.to_owned()])?;
    }
    Ok(name)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    match (2..=63).contains(&name.len()) && name.chars().all(is_plain) && name != "default" {
        true => Ok(()),
        false => Err(Failure(1, format!("invalid sandbox name {name:?}"))),
    }
}

fn refuse_clash(
    world: &Database,
    name: &str,
    agent: &str,
    folder: Option<&str>,
) -> Result<(), Failure> {
    let all = world.sandboxes()?;
    if world.profile.name_attaches() {
        return match all.contains_key(name) {
            true => Err(Failure(
                1,
                format!(
                    "sandbox \"{name}\" already exists for this workspace; use 'sbx run --name {name}'"
                ),
            )),
            false => Ok(()),
        };
    }
    // One for each agent and workspace.
    let is_same = |sandbox: &Sandbox| {
        sandbox.agent == agent && sandbox.workspaces.first().map(String::as_str) == folder
    };
    let taken = all.iter().find(|(known, sandbox)| *known == name || is_same(sandbox));
    match taken {
        Some((known, _)) => Err(Failure(
            1,
            format!(
                "sandbox '{known}' already exists; --name can only be used when creating a new sandbox\n\
                 To attach to it: sbx run {known} [-- AGENT_ARGS...]"
            ),
        )),
        None => Ok(()),
    }
}

/// A work tree of a branch, as releases before 0.31 make it; the folder itself if that fails.
fn worktree(repository: &str, sandbox: &str, branch: &str) -> Result<String, Failure> {
    let place = format!("{repository}/.sbx/{sandbox}-worktrees/{branch}");
    let made = Command::new("git")
        .args(["-C", repository, "worktree", "add", "-b", branch, &place])
        .stdin(Stdio::null())
        .output()?;
    if made.status.success() {
        return Ok(place);
    }
    writeln!(io::stderr(), "Warning: could not create a worktree; using the workspace itself")?;
    Ok(repository.to_owned())
}

async fn boot(
    world: &Database,
    name: &str,
    folders: &[(String, bool)],
    clone_of: Option<&str>,
) -> Result<SessionId, Failure> {
    let mut manifest = Manifest::default();
    let grant = |path: &str, host: Option<String>, read_only: bool| PathGrant {
        path: path.to_owned(),
        read_only,
        description: None,
        host_path: host,
    };
    for (at, (path, read_only)) in folders.iter().enumerate() {
        match at {
            0 if clone_of.is_some() => {
                let source = grant(clones::SOURCE, Some(path.clone()), true);
                manifest.extra_path_grants.push(source);
            }
            0 => manifest.root.clone_from(path),
            _ => manifest.extra_path_grants.push(grant(path, None, *read_only)),
        }
    }
    for (place, inside) in DISK {
        let folder = world.disk(name, place);
        fs::create_dir_all(&folder)?;
        let folder = folder.canonicalize()?.to_string_lossy().into_owned();
        manifest.extra_path_grants.push(grant(inside, Some(folder), false));
    }
    if let Ok(programs) = world.path("programs").canonicalize() {
        let programs = programs.to_string_lossy().into_owned();
        manifest.extra_path_grants.push(grant("/.programs", Some(programs), true));
    }
    let id = SessionId::random();
    let options = CreateOptions::default().detached().id(id.clone());
    let which = |path: &String| fs::metadata(path).map(|found| found.ino());
    let before = folders.first().map(|(path, _)| which(path)).transpose()?;
    let client = world.client()?;
    let session = client.create(&manifest, options).await?;
    // A local sandbox makes a workspace that is missing. Here whoever wanted it removed it meanwhile.
    if let (Some(before), Some((path, _))) = (before, folders.first())
        && which(path).ok() != Some(before)
    {
        session.delete().await?;
        for folder in Path::new(path).ancestors().take(2) {
            drop(fs::remove_dir(folder));
        }
        return Err(Failure(1, format!("{path} was removed")));
    }
    Ok(id)
}

pub(crate) async fn run(world: &Database, rest: &[String]) -> Outcome {
    let mut given = Arguments::parse(rest, &options_of(world, true), usize::MAX)?;
    let after = given.after.take().unwrap_or_default();
    let all = world.sandboxes()?;
    let word = given.words.first().cloned();
    let by_name = given.value("--name").map(str::to_owned);
    let name = match (word, by_name) {
        (Some(word), _) if all.contains_key(&word) && !AGENTS.contains(&word.as_str()) => {
            if world.profile.name_attaches() {
                writeln!(io::stderr(), "Warning: `sbx run SANDBOX` is deprecated; use --name")?;
            }
            word
        }
        (_, Some(name)) if all.contains_key(&name) && world.profile.name_attaches() => name,
        (Some(_), _) => {
            if given.words.len() == 1 {
                let cwd = std::env::current_dir()?;
                given.words.push(cwd.to_string_lossy().into_owned());
            }
            let name = make(world, &given).await?;
            announce(world, &name)?;
            name
        }
        (None, _) => return fail("AGENT is missing"),
    };
    if given.has("-d") {
        return say(&name);
    }
    let sandbox = world.sandbox(&name)?;
    writeln!(io::stderr(), "Starting {} agent in sandbox '{name}'...", sandbox.agent)?;
    let argv = agent_command(world, &sandbox.agent, after)?;
    let code = run_inside(world, &name, Inside { argv, input: true, ..Inside::default() }).await?;
    if given.has("--rm") {
        remove_one(world, &name).await?;
    }
    Ok(code)
}

/// What an agent is called with: further arguments come after its own if the first is an option, and take
/// their place if it is a word.
fn agent_command(
    world: &Database,
    agent: &str,
    after: Vec<String>,
) -> Result<Vec<String>, Failure> {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let adds = after.first().is_none_or(|first| first.starts_with('-'));
    if agent == "shell" {
        return Ok(if adds { [own(&["bash", "-l"]), after].concat() } else { after });
    }
    let flags = match agent {
        "codex" => own(&["--dangerously-bypass-approvals-and-sandbox"]),
        "claude" => own(&["--dangerously-skip-permissions"]),
        _ => Vec::new(),
    };
    let script = fs::read_to_string(world.path("agents").join(agent));
    let script = script.unwrap_or_else(|_| "echo \"$0\" \"$@\"".to_owned());
    let called = own(&["sh", "-c", &script, agent]);
    Ok([called, if adds { flags } else { Vec::new() }, after].concat())
}

pub(crate) async fn stop(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[(&["--json"], false)], usize::MAX)?;
    for name in &given.words {
        let sandbox = world.sandbox(name)?;
        if sandbox.running {
            world.client()?.stop(&sandbox.session).await?;
            world.change_sandbox(name, |sandbox| {
                sandbox.running = false;
                sandbox.ports.clear();
            })?;
        }
        say(format!("Stopped sandbox '{name}'"))?;
    }
    Ok(0)
}

pub(crate) async fn remove(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] =
        &[(&["-f", "--force"], false), (&["--all"], false), (&["--json"], false)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let names = match given.has("--all") {
        true => world.sandboxes()?.into_keys().collect(),
        false => given.words.clone(),
    };
    for name in &names {
        world.sandbox(name)?;
        if !given.has("-f") {
            writeln!(io::stdout(), "Remove sandbox '{name}'? [y/N] ")?;
            let mut answer = String::new();
            io::stdin().read_line(&mut answer)?;
            if !answer.trim().eq_ignore_ascii_case("y") {
                return fail("removal was not confirmed");
            }
        }
        remove_one(world, name).await?;
        say(format!("Removed sandbox '{name}'"))?;
    }
    Ok(0)
}

async fn remove_one(world: &Database, name: &str) -> Result<(), Failure> {
    let sandbox = world.sandbox(name)?;
    world.client()?.delete(&sandbox.session).await?;
    sandbox.clone_of.iter().for_each(|repository| clones::forget(name, repository));
    for folder in &sandbox.workspaces {
        if folder.contains(&format!("/.sbx/{name}-worktrees/")) {
            // Nothing is left of it if it is gone already.
            drop(fs::remove_dir_all(folder));
        }
    }
    drop(fs::remove_dir_all(world.path("disks").join(name)));
    stored::forget(world, name)?;
    world.change("sandboxes.json", |all: &mut Sandboxes| {
        all.remove(name);
        Ok(())
    })
}

pub(crate) async fn prune(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] = &[(&["-f", "--force"], false), (&["--dry-run"], false)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    for (name, sandbox) in world.sandboxes()? {
        if !sandbox.running {
            say(&name)?;
            if given.has("-f") && !given.has("--dry-run") {
                remove_one(world, &name).await?;
            }
        }
    }
    Ok(0)
}

pub(crate) async fn reset(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] =
        &[(&["-f", "--force"], false), (&["--preserve-secrets"], false)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    if !given.has("-f") {
        return fail("a reset needs a confirmation");
    }
    for name in world.sandboxes()?.into_keys() {
        remove_one(world, &name).await?;
    }
    say("Reset done")
}
