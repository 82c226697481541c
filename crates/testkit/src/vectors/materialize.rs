//! Area `materialize`: laying out manifests, compared by what is there afterwards.
//!
//! The cases record the commands of the reference. What binds is what they come to: the tree, the
//! files that were returned, the error. Where a case has a command fail, a program of that name that
//! fails is put before the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bastide::compat::ManifestPart;
use bastide::{CreateOptions, GitFetch, GitOptions, Session};
use bastide_model::users::Group;
use bastide_model::{EntryKind, Error, ErrorKind, Manifest, PathGrant, PosixPath, Result, lax};
use serde_json::{Map, Value, json};

use super::compare::error_object;
use super::session::with_session;
use super::{Case, Handler, tree};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("apply_manifest", |case| {
        in_workspace(case, async |session, manifest, part| {
            let done = session.compat().apply_manifest(part).await?;
            let files = done.files.iter();
            let files: Vec<Value> =
                files.map(|file| json!({"path": file.path, "sha256": file.sha256})).collect();
            Ok(json!({"tree": listed(session, manifest).await?, "files": files}))
        })
    }),
    ("apply_manifest_outcome", |case| {
        let done = in_workspace(case, async |session, manifest, part| {
            let done = session.compat().apply_manifest(part).await;
            let result = match done {
                Ok(_) => json!("ok"),
                Err(error) => error_object(&error),
            };
            Ok(json!({"tree": listed(session, manifest).await?, "result": result}))
        });
        // What is refused before there is a session leaves nothing.
        Ok(done.unwrap_or_else(|error| json!({"tree": {}, "result": error_object(&error)})))
    }),
    ("session_start", |case| {
        in_workspace(case, async |session, manifest, _| {
            session.start().await?;
            let ready = session.state_json()?["workspace_root_ready"].clone();
            Ok(json!({"tree": listed(session, manifest).await?, "workspace_root_ready": ready}))
        })
    }),
];

/// Where the programs that fail are, in a case's scratch folder.
const PROGRAMS: &str = "programs";

fn in_workspace(
    case: &Case<'_>,
    work: impl AsyncFnOnce(&Session, &Manifest, ManifestPart) -> Result<Value>,
) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let mut manifest: Manifest = lax::read(case.get("manifest"))?;
    // A root elsewhere would be a folder of this machine.
    "/workspace".clone_into(&mut manifest.root);
    if case.flag("provision_accounts", true)? {
        add_groups(&mut manifest)?;
    } else {
        manifest.users.clear();
        manifest.groups.clear();
    }
    let mut options = CreateOptions::default();
    options.base_dir = Some(scratch.join(case.optional_text("base_dir")?.unwrap_or_default()));
    options.git = GitOptions::fetched(GitFetch::Inside);
    let has_git =
        manifest.entries.values().any(|entry| matches!(entry.kind, EntryKind::GitRepo(_)));
    if has_git {
        let programs = programs(scratch, case.list("exec_rules")?)?;
        let shown = programs.to_string_lossy().into_owned();
        options.env = vec![("PATH".to_owned(), format!("{shown}:/usr/bin:/bin"))];
        if is_without_git(case) {
            options.env = vec![("PATH".to_owned(), shown.clone())];
        }
        let grant = PathGrant { path: shown, read_only: true, description: None, host_path: None };
        manifest.extra_path_grants.push(grant);
    }
    let part = match case.flag("only_ephemeral", false)? {
        true => ManifestPart::Ephemeral,
        false => ManifestPart::Whole,
    };
    let laid_out = manifest.clone();
    with_session(case, &manifest, options, async |session| work(session, &laid_out, part).await)
}

/// The groups that entries name; the reference's recorder takes every name.
fn add_groups(manifest: &mut Manifest) -> Result<()> {
    let mut names = BTreeSet::new();
    for step in manifest.walk()? {
        let (_, entry) = step?;
        names.extend(entry.group.as_ref().map(|group| group.name().to_owned()));
    }
    let groups = names.into_iter().map(|name| Group { name, users: Vec::new() });
    manifest.groups.extend(groups);
    Ok(())
}

fn is_without_git(case: &Case<'_>) -> bool {
    let rules = case.get("exec_rules").as_array().into_iter().flatten();
    rules.into_iter().any(|rule| rule["match"] == "command -v git")
}

/// Programs that fail where the rules say so, and do as little as they can where not.
fn programs(scratch: &Path, rules: &[Value]) -> Result<PathBuf> {
    let folder = scratch.join(PROGRAMS);
    let failed = |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string());
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut cases = String::new();
    let mut has_git = true;
    for rule in rules {
        let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        has_git &= text("match") != "command -v git";
        let (code, said) = (rule["exit_code"].as_i64().unwrap_or(0), text("stderr"));
        cases.push_str(&format!(
            "case \"$line\" in *'{}'*) printf '%s' '{said}' >&2; exit {code};; esac\n",
            text("match")
        ));
    }
    let clone = "for last; do :; done\ncase \"$1\" in clone|init) mkdir -p \"$last/a/b\";; esac\n";
    let all = [("git", clone), ("cp", "exec /bin/cp \"$@\"\n"), ("sh", "exec /bin/sh \"$@\"\n")];
    for (name, rest) in all {
        if name == "git" && !has_git {
            continue;
        }
        let path = folder.join(name);
        let text = format!("#!/bin/sh\nline=\"{name} $*\"\n{cases}{rest}");
        fs::write(&path, text).map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(folder)
}

/// What is in the workspace. Modes are those of entries: of what lies in them nothing was recorded.
async fn listed(session: &Session, manifest: &Manifest) -> Result<Value> {
    let mut entries = BTreeSet::new();
    for step in manifest.walk().into_iter().flatten() {
        let Ok((path, _)) = step else { break };
        entries.insert(path.to_string());
    }
    let mut tree = BTreeMap::new();
    let mut folders = vec![PosixPath::default()];
    while let Some(folder) = folders.pop() {
        let place = PosixPath::new(session.root().as_str()).join(&folder);
        for info in session.files().ls(place.as_str()).await? {
            let name = info.path.rsplit('/').next().unwrap_or_default().to_owned();
            let path = folder.join(&PosixPath::new(&name));
            let mut node = Map::new();
            node.insert("type".to_owned(), if info.is_dir() { "dir" } else { "file" }.into());
            if entries.contains(path.as_str()) {
                node.insert("mode".to_owned(), format!("{:04o}", info.mode & 0o7777).into());
            }
            match info.is_dir() {
                true => folders.push(path.clone()),
                false => {
                    let content = session.files().read(&info.path).await?;
                    let content = String::from_utf8_lossy(&content).into_owned();
                    node.insert("content".to_owned(), content.into());
                }
            }
            tree.insert(path.to_string(), Value::Object(node));
        }
    }
    Ok(json!(tree))
}

/// What the recorded commands of the reference come to, and nothing that is different every time.
pub(crate) fn outcome(answer: &Value) -> Value {
    let failed = answer["result"]["type"].as_str().unwrap_or_default();
    let mut tree = match answer.get("calls") {
        Some(calls) => tree_of(calls, failed != "GitCopyError"),
        None => answer["tree"].clone(),
    };
    if !failed.is_empty() {
        // How far the reference came with the entry that failed is not for us to repeat.
        for node in tree.as_object_mut().into_iter().flat_map(Map::values_mut) {
            node.as_object_mut().map(|node| node.remove("mode"));
        }
    }
    let mut answer = plain(answer);
    if let Some(object) = answer.as_object_mut()
        && (object.remove("calls").is_some() || object.contains_key("tree"))
    {
        object.insert("tree".to_owned(), tree);
    }
    answer
}

/// The answer without the names of temporary folders and of an image that no session of ours has.
fn plain(value: &Value) -> Value {
    match value {
        Value::String(text) if text.contains("/sandbox-git-") => "<clone>".into(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Object(object) => {
            let kept = object.iter().filter(|(key, _)| *key != "image");
            Value::Object(kept.map(|(key, value)| (key.clone(), plain(value))).collect())
        }
        other => other.clone(),
    }
}

/// The tree that recorded calls make.
fn tree_of(calls: &Value, copies: bool) -> Value {
    let root = "/workspace";
    let mut tree: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    let below = |path: &str| {
        let path =
            path.strip_prefix("/srv/ws").map_or(path.to_owned(), |rest| format!("{root}{rest}"));
        let rest = path.strip_prefix(root)?.trim_matches('/');
        (!rest.is_empty()).then(|| rest.to_owned())
    };
    let folder = |tree: &mut BTreeMap<String, Map<String, Value>>, path: &str| {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            let node = tree.entry(path[..end].to_owned()).or_default();
            node.entry("type").or_insert_with(|| "dir".into());
        }
    };
    for call in calls.as_array().into_iter().flatten() {
        let words: Vec<&str> =
            call["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match (call["op"].as_str(), words.as_slice()) {
            (Some("write"), _) => {
                let Some(path) = call["path"].as_str().and_then(below) else { continue };
                if let Some((parent, _)) = path.rsplit_once('/') {
                    folder(&mut tree, parent);
                }
                let node = tree.entry(path).or_default();
                node.insert("type".to_owned(), "file".into());
                node.insert("content".to_owned(), call["content"].clone());
            }
            (_, ["mkdir", "-p", path]) => {
                if let Some(path) = below(path) {
                    folder(&mut tree, &path);
                }
            }
            (_, ["chmod", mode, path]) => {
                if let Some(path) = below(path) {
                    tree.entry(path).or_default().insert("mode".to_owned(), (*mode).into());
                }
            }
            // The programs of these cases clone an empty folder `a/b`.
            (_, ["cp", "-R", "--", from, to]) if copies && !from.contains("/a/b/") => {
                if let Some(path) = below(to) {
                    folder(&mut tree, &format!("{path}/a/b"));
                }
            }
            _ => {}
        }
    }
    json!(tree)
}
