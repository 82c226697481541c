//! Workspaces as archives, and sessions that come back from them.

use std::fs;
use std::io::Read as _;

use bastide::{CreateOptions, ResumeOptions, Session, SnapshotChoice};
use bastide_archive::tar::{TarKind, TarReader};
use bastide_model::snapshot::SnapshotSpec;
use bastide_model::{Error, ErrorKind, Manifest, PosixPath, Result, lax};
use serde_json::{Map, Value, json};

use super::session::{client, run, with_session, workspace};
use super::tree::{self, Modes};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("unix_local_persist_workspace", persist),
    ("unix_local_hydrate_workspace", hydrate),
    ("unix_local_snapshot_roundtrip", roundtrip),
];

fn manifest(case: &Case<'_>) -> Result<Manifest> {
    let mut manifest = Map::new();
    manifest.insert("root".to_owned(), workspace(case)?.into());
    if let Value::Object(entries) = case.get("entries") {
        manifest.insert("entries".to_owned(), Value::Object(entries.clone()));
    }
    lax::read(&Value::Object(manifest))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

fn persist(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let is_there = scratch.join("ws").exists();
    let paths = case.texts("skip_paths").unwrap_or_default();
    with_session(case, &manifest(case)?, CreateOptions::default(), async |session| {
        for path in paths {
            session.compat().register_persist_workspace_skip_path(path)?;
        }
        if !is_there {
            // The session made it.
            fs::remove_dir(scratch.join("ws")).map_err(failed)?;
        }
        let archive = session.compat().persist_workspace().await?;
        members(archive.into_file().map_err(failed)?)
    })
}

/// The members of an archive, by name.
pub(crate) fn members(archive: fs::File) -> Result<Value> {
    let mut reader = TarReader::open(archive)?;
    let mut members = Vec::new();
    while let Some(member) = reader.next_member()? {
        let name = String::from_utf8_lossy(&member.name).into_owned();
        let mut node = Map::new();
        node.insert("name".to_owned(), name.clone().into());
        let kind = match member.kind {
            TarKind::Dir => "dir",
            TarKind::File => "file",
            TarKind::Symlink => "symlink",
            TarKind::Hardlink => "hardlink",
            TarKind::Fifo => "fifo",
            _ => "other",
        };
        node.insert("type".to_owned(), kind.into());
        node.insert("mode".to_owned(), format!("{:04o}", member.mode & 0o7777).into());
        if member.kind == TarKind::Symlink {
            let link = String::from_utf8_lossy(&member.link).into_owned();
            node.insert("linkname".to_owned(), link.into());
        }
        if member.kind == TarKind::File {
            let mut content = Vec::new();
            reader.content().read_to_end(&mut content).map_err(failed)?;
            node.extend(tree::content_fields(&content));
        }
        members.push((name, Value::Object(node)));
    }
    members.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(members.into_iter().map(|(_, node)| node).collect())
}

fn hydrate(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.get("tree").as_array().map_or(&[][..], Vec::as_slice))?;
    let tar = case.bytes("tar_b64")?;
    with_session(case, &manifest(case)?, CreateOptions::default(), async |session| {
        session.compat().hydrate_workspace(tar).await?;
        Ok(json!({"tree": tree::list(&scratch.join("ws"), Modes::Shown)?}))
    })
}

fn roundtrip(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.get("tree").as_array().map_or(&[][..], Vec::as_slice))?;
    let (root, snapshots) = (scratch.join("ws"), scratch.join("snaps"));
    let manifest = manifest(case)?;
    run(async {
        let client = client(case)?;
        let mut options = CreateOptions::default();
        options.unix_local = true;
        options.base_dir = Some(scratch.to_owned());
        let base_path = PosixPath::new(&snapshots.to_string_lossy());
        options.snapshot = Some(SnapshotChoice::Spec(SnapshotSpec::Local { base_path }));
        let session = client.create(&manifest, options).await?;
        let done = live(case, &client, &session, &root).await;
        client.delete(session.id()).await?;
        let after_resume = done?;
        let archive = fs::read_dir(&snapshots).map_err(failed)?.next();
        let archive = archive.ok_or_else(|| failed("no snapshot"))?.map_err(failed)?.path();
        let mut answer = after_resume;
        answer["archive"] = members(fs::File::open(archive).map_err(failed)?)?;
        Ok(answer)
    })?
}

async fn live(
    case: &Case<'_>,
    client: &bastide::Client,
    session: &Session,
    root: &std::path::Path,
) -> Result<Value> {
    change(root, case.get("changes"))?;
    session.save().await?;
    session.shutdown().await?;
    let after_stop = tree::list(root, Modes::Shown)?;
    let state = session.state_json()?;
    change(root, case.get("before_resume"))?;
    let resumed = client.resume_state(state.clone(), ResumeOptions::default()).await?;
    let after_resume = tree::list(root, Modes::Shown)?;
    resumed.shutdown().await?;
    Ok(json!({
        "has_fingerprint": state["snapshot_fingerprint"].is_string(),
        "fingerprint_version": state["snapshot_fingerprint_version"],
        "after_stop": after_stop,
        "after_resume": after_resume,
    }))
}

/// Makes nodes, or removes some.
fn change(root: &std::path::Path, nodes: &Value) -> Result<()> {
    for node in nodes.as_array().into_iter().flatten() {
        match node["remove"].as_str() {
            Some(".") => fs::remove_dir_all(root).map_err(failed)?,
            Some(path) => fs::remove_file(root.join(path)).map_err(failed)?,
            None => {
                let path = root.join(node["path"].as_str().unwrap_or_default());
                match node["type"] == "file" && node["mode"].is_null() && path.is_file() {
                    // What is written over keeps its mode.
                    true => fs::write(path, tree::content(node)?).map_err(failed)?,
                    false => tree::create(root, std::slice::from_ref(node))?,
                }
            }
        }
    }
    Ok(())
}
