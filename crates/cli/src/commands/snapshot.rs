//! `bastide snapshot`

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bastide::snapshot::store::{PushReport, SaveOptions, SnapshotHealth, VerifyReport};
use bastide::{Error, ErrorKind, Result, Session, SnapshotInfo, Store};
use bastide_remote::Bucket;
use serde_json::{Value, json};

use super::ls::ago;
use crate::args::values::size_text;
use crate::clients::{clients, store};
use crate::config;
use crate::ui::{Table, Ui};

/// The exit code of a check that found something.
const FOUND: u8 = 1;

/// Keep workspaces, and bring them back
#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    task: SnapshotTask,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotTask {
    /// Save the workspace of a session; only what may have changed since the last time is read
    Save {
        /// Session, or the beginning of its id; ID@POINT is a point of it, kept for ever
        #[arg(value_name = "ID")]
        session: String,
        /// What the snapshot is called; one of that name is replaced
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Read every file, whatever is remembered of the last time
        #[arg(long)]
        full_read: bool,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Make the workspace of a session what it was when it was saved
    Restore {
        /// Session, or the beginning of its id
        #[arg(value_name = "ID")]
        session: String,
        /// Which snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// List snapshots
    Ls {
        /// Print an array of objects
        #[arg(long)]
        json: bool,
    },
    /// Check that everything is what was written; exit code 1 if not
    Verify {
        /// Which snapshot; all of them if none is given
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Remove snapshots
    Rm {
        /// Which
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Write a snapshot as a tar archive
    Export {
        /// Which snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// The file; `-` is standard output
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
    /// Make a snapshot of a tar archive
    Import {
        /// The file; `-` is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// What the snapshot is called; one of that name is replaced
        #[arg(long, value_name = "NAME")]
        name: String,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Copy a snapshot to S3-compatible storage; only what is not there is sent
    Push {
        /// Which snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// Where to: s3://bucket/prefix
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Bring a snapshot from S3-compatible storage; only what is not here is fetched
    Pull {
        /// Which snapshot
        #[arg(value_name = "NAME")]
        name: String,
        /// Where from: s3://bucket/prefix
        #[arg(value_name = "ADDRESS")]
        address: String,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Remove what no snapshot needs any more
    Gc {
        /// Print an object
        #[arg(long)]
        json: bool,
    },
}

impl SnapshotArgs {
    /// Whether a program reads what is printed.
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            SnapshotTask::Save { json, .. }
            | SnapshotTask::Restore { json, .. }
            | SnapshotTask::Ls { json }
            | SnapshotTask::Verify { json, .. }
            | SnapshotTask::Rm { json, .. }
            | SnapshotTask::Import { json, .. }
            | SnapshotTask::Push { json, .. }
            | SnapshotTask::Pull { json, .. }
            | SnapshotTask::Gc { json } => *json,
            SnapshotTask::Export { .. } => false,
        }
    }
}

pub(crate) async fn run(ui: &mut Ui, args: SnapshotArgs) -> Result<ExitCode> {
    let store = store()?;
    match args.task {
        SnapshotTask::Save { session, name, full_read, json } => {
            save(ui, &store, (&session, &name), full_read, json).await
        }
        SnapshotTask::Restore { session, name, json } => {
            restore(ui, &store, &session, &name, json).await
        }
        SnapshotTask::Ls { json } => list(ui, &store, json),
        SnapshotTask::Verify { name, json } => verify(ui, &store, name.as_deref(), json),
        SnapshotTask::Rm { names, json } => remove(ui, &store, &names, json),
        SnapshotTask::Export { name, file } => export(&store, &name, &file),
        SnapshotTask::Import { file, name, json } => import(ui, &store, &file, &name, json),
        SnapshotTask::Push { name, address, json } => {
            let bucket = Bucket::open(&address, config::bucket())?;
            let pushed = store.push(&bucket, &name).await?;
            copied(ui, &pushed, json)
        }
        SnapshotTask::Pull { name, address, json } => {
            let bucket = Bucket::open(&address, config::bucket())?;
            let pulled = store.pull(&bucket, &name).await?;
            copied(ui, &pulled, json)
        }
        SnapshotTask::Gc { json } => collect(ui, &store, json),
    }
}

/// A session that runs.
async fn attached(id: &str) -> Result<Session> {
    let client = clients()?;
    client.attach(&client.find(id)?).await
}

async fn save(
    ui: &mut Ui,
    store: &Store,
    (session, name): (&str, &str),
    full_read: bool,
    json: bool,
) -> Result<ExitCode> {
    if let Some((session, point)) = session.split_once('@') {
        let info = attached(session).await?.journal().save_point(point, name).await?;
        match json {
            true => ui.json(&describe(&info))?,
            false => ui.line(&info.fingerprint)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let clients = clients()?;
    let shown = ui.progress("saving");
    let on_progress = |progress| shown.on_progress(progress);
    let mut options = SaveOptions::default().progress(&on_progress);
    options.full_read = full_read;
    let saved = clients.save_snapshot(&clients.find(session)?, store, name, options).await?;
    drop(shown);
    if json {
        let mut object = describe(&saved.info);
        object["files_read"] = json!(saved.files_read);
        object["bytes_read"] = json!(saved.bytes_read);
        object["bytes_added"] = json!(saved.bytes_added);
        object["bytes_stored"] = json!(saved.bytes_stored);
        object["left_out_count"] = json!(saved.left_out);
        object["changed_while_read"] = json!(saved.changed);
        ui.json(&object)?;
    } else {
        for (path, why) in &saved.info.left_out {
            ui.note(&format!("left out {path}: {why}"));
        }
        for path in &saved.changed {
            ui.note(&format!("changed while it was read: {path}"));
        }
        ui.line(&saved.info.fingerprint)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn restore(
    ui: &mut Ui,
    store: &Store,
    session: &str,
    name: &str,
    json: bool,
) -> Result<ExitCode> {
    let session = attached(session).await?;
    let shown = ui.progress("restoring");
    let on_progress = |progress| shown.on_progress(progress);
    let restored = session.snapshots(store).restore(name, Some(&on_progress)).await?;
    drop(shown);
    if json {
        let mut object = describe(&restored.info);
        object["unowned"] = json!(restored.unowned);
        object["unattributed"] = json!(restored.unattributed);
        ui.json(&object)?;
    } else if restored.unowned > 0 {
        let count = restored.unowned;
        ui.note(&format!("{count} entries belong to users this session does not have"));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(ui: &mut Ui, store: &Store, json: bool) -> Result<ExitCode> {
    let all = store.list()?;
    if json {
        let object = |(name, read): &(String, Result<SnapshotInfo>)| match read {
            Ok(info) => describe(info),
            Err(error) => json!({ "name": name, "damaged": error.message() }),
        };
        ui.json(&all.iter().map(object).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "CREATED", "ENTRIES", "SIZE", "FINGERPRINT"]);
    for (name, read) in all {
        match read {
            Ok(info) => table.row([
                name,
                ago(UNIX_EPOCH + Duration::from_millis(info.created_at_ms)),
                info.entries.to_string(),
                size_text(info.bytes),
                info.fingerprint.chars().take(16).collect(),
            ]),
            Err(_) => {
                let none = || "-".to_owned();
                table.row([name, none(), none(), none(), "damaged".to_owned()]);
            }
        }
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn verify(ui: &mut Ui, store: &Store, name: Option<&str>, json: bool) -> Result<ExitCode> {
    let shown = ui.progress("verifying");
    let on_progress = |progress| shown.on_progress(progress);
    let found = store.verify(name, Some(&on_progress))?;
    drop(shown);
    if json {
        ui.json(&health(&found))?;
    } else {
        for snapshot in &found.snapshots {
            let SnapshotHealth { name, broken, damaged, damaged_count, .. } = snapshot;
            match broken {
                Some(why) => ui.line(&format!("{name}: broken: {why}"))?,
                None if *damaged_count == 0 => ui.line(&format!("{name}: whole"))?,
                None => {
                    ui.line(&format!("{name}: {damaged_count} files are damaged"))?;
                    for path in damaged {
                        ui.line(&format!("  {path}"))?;
                    }
                }
            }
        }
        for what in &found.elsewhere {
            ui.line(what)?;
        }
    }
    Ok(if found.is_intact() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn health(found: &VerifyReport) -> Value {
    let snapshots: Vec<Value> = found
        .snapshots
        .iter()
        .map(|one| {
            json!({
                "name": one.name,
                "whole": one.is_intact(),
                "broken": one.broken,
                "damaged": one.damaged,
                "damaged_count": one.damaged_count,
            })
        })
        .collect();
    json!({
        "whole": found.is_intact(),
        "snapshots": snapshots,
        "elsewhere": found.elsewhere,
        "chunks": found.chunks,
        "bytes": found.bytes,
    })
}

fn remove(ui: &mut Ui, store: &Store, names: &[String], json: bool) -> Result<ExitCode> {
    for name in names {
        if !store.remove(name)? {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no snapshot {name}"))
                .with_hint("`bastide snapshot ls` lists them"));
        }
    }
    if json {
        ui.json(&json!({ "removed": names }))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn export(store: &Store, name: &str, file: &Path) -> Result<ExitCode> {
    if file == Path::new("-") {
        let out = io::stdout().lock();
        if out.is_terminal() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "an archive is nothing for a terminal",
            )
            .with_hint("name a file, or send the output somewhere"));
        }
        store.export(name, out)?;
    } else {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Io, format!("cannot write {}: {error}", file.display()))
        };
        // A file that is there is replaced by a whole one, or stays.
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let part = folder.join(format!(
            ".{}.{}.part",
            file.file_name().unwrap_or_default().to_string_lossy(),
            std::process::id()
        ));
        let written = File::create_new(&part)
            .map_err(failed)
            .and_then(|out| store.export(name, io::BufWriter::new(out)))
            .and_then(|()| std::fs::rename(&part, file).map_err(failed));
        if written.is_err() {
            drop(std::fs::remove_file(&part));
        }
        written?;
    }
    Ok(ExitCode::SUCCESS)
}

fn import(ui: &mut Ui, store: &Store, file: &Path, name: &str, json: bool) -> Result<ExitCode> {
    let info = if file == Path::new("-") {
        store.import(name, io::stdin().lock())?
    } else {
        let input = File::open(file).map_err(|error| {
            let message = format!("cannot read {}: {error}", file.display());
            Error::new(ErrorKind::NotFound, message)
        })?;
        store.import(name, io::BufReader::new(input))?
    };
    if json {
        ui.json(&describe(&info))?;
    } else {
        ui.line(&info.fingerprint)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(ui: &mut Ui, store: &Store, json: bool) -> Result<ExitCode> {
    let done = store.collect()?;
    if json {
        ui.json(&json!({
            "packs_removed": done.packs_removed,
            "bytes_removed": done.bytes_removed,
            "packs_waiting": done.packs_waiting,
            "bytes_waiting": done.bytes_waiting,
            "packs_rewritten": done.packs_rewritten,
        }))?;
    } else {
        ui.line(&format!("{} freed", size_text(done.bytes_removed)))?;
        if done.packs_waiting > 0 {
            let waiting = size_text(done.bytes_waiting);
            ui.note(&format!("{waiting} more once those who use the store now are done"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn copied(ui: &mut Ui, report: &PushReport, json: bool) -> Result<ExitCode> {
    if json {
        let mut object = describe(&report.info);
        object["chunks_sent"] = json!(report.chunks);
        object["bytes_sent"] = json!(report.bytes);
        ui.json(&object)?;
    } else {
        ui.line(&format!("{} of {}", size_text(report.bytes), size_text(report.info.bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that is known about a snapshot.
fn describe(info: &SnapshotInfo) -> Value {
    json!({
        "name": info.name,
        "fingerprint": info.fingerprint,
        "created_at_ms": info.created_at_ms,
        "session": info.session,
        "entries": info.entries,
        "bytes": info.bytes,
        "left_out": info.left_out,
    })
}
