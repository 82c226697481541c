//! `bastide files`

use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use bastide::{Content, FileInfo, FileKind, Result, Session};
use serde_json::{Map, Value, json};

use super::ls::ago;
use crate::clients::clients;
use crate::foreground;
use crate::ui::{Table, Ui};

/// Look at and change the files of a session
#[derive(Debug, clap::Args)]
pub(crate) struct FilesArgs {
    #[command(subcommand)]
    task: FilesTask,
}

#[derive(Debug, clap::Subcommand)]
enum FilesTask {
    /// List a folder, by default the workspace
    Ls {
        #[command(flatten)]
        at: FolderArgs,
    },
    /// Print a file
    Cat {
        #[command(flatten)]
        at: PathArgs,
    },
    /// Write standard input to a file
    Put {
        #[command(flatten)]
        at: PathArgs,
    },
    /// Remove a file, a link or an empty folder
    Rm {
        #[command(flatten)]
        at: PathArgs,
        /// Remove a folder with everything in it
        #[arg(short, long)]
        recursive: bool,
    },
    /// Make a folder
    Mkdir {
        #[command(flatten)]
        at: PathArgs,
        /// Make the folders above it too
        #[arg(short, long)]
        parents: bool,
    },
}

#[derive(Debug, clap::Args)]
struct PathArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The path inside, from the root or from the workspace
    #[arg(value_name = "PATH")]
    path: String,

    /// Print an object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct FolderArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The folder inside, from the root or from the workspace
    #[arg(value_name = "PATH", default_value = ".", hide_default_value = true)]
    path: String,

    /// Print an array of objects
    #[arg(long)]
    json: bool,
}

impl FilesArgs {
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            FilesTask::Ls { at } => at.json,
            FilesTask::Cat { at }
            | FilesTask::Put { at }
            | FilesTask::Rm { at, .. }
            | FilesTask::Mkdir { at, .. } => at.json,
        }
    }
}

pub(crate) async fn run(ui: &mut Ui, args: FilesArgs) -> Result<ExitCode> {
    let client = clients()?;
    let attach = async |id: &str| client.attach(&client.find(id)?).await;
    match args.task {
        FilesTask::Ls { at } => {
            let entries = attach(&at.id).await?.files().ls(&at.path).await?;
            if at.json {
                ui.json(&entries.iter().map(object).collect())?;
            } else {
                ui.table(&table(&entries))?;
            }
        }
        FilesTask::Cat { at } if at.json => {
            let session = attach(&at.id).await?;
            let mut object = path_of(&session, &at);
            foreground::put_text(&mut object, "content", &session.files().read(&at.path).await?);
            ui.json(&object.into())?;
        }
        FilesTask::Cat { at } => cat(ui, &attach(&at.id).await?, &at.path).await?,
        FilesTask::Put { at } => {
            let session = attach(&at.id).await?;
            session.files().write(&at.path, Content::stream(tokio::io::stdin())).await?;
            done(ui, &session, &at)?;
        }
        FilesTask::Rm { at, recursive } => {
            let session = attach(&at.id).await?;
            match recursive {
                true => session.files().rm_all(&at.path).await?,
                false => session.files().rm(&at.path).await?,
            }
            done(ui, &session, &at)?;
        }
        FilesTask::Mkdir { at, parents } => {
            let session = attach(&at.id).await?;
            match parents {
                true => session.files().mkdir_all(&at.path).await?,
                false => session.files().mkdir(&at.path).await?,
            }
            done(ui, &session, &at)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says to a program what something was done to.
fn done(ui: &mut Ui, session: &Session, at: &PathArgs) -> Result<()> {
    if at.json { ui.json(&path_of(session, at).into()) } else { Ok(()) }
}

fn path_of(session: &Session, at: &PathArgs) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("id".to_owned(), json!(session.id()));
    object.insert("path".to_owned(), json!(at.path));
    object
}

/// Prints a file.
pub(super) async fn cat(ui: &mut Ui, session: &Session, path: &str) -> Result<()> {
    let mut reader = session.files().open(path).await?;
    while let Some(chunk) = reader.next().await? {
        ui.command_out(&chunk)?;
    }
    Ok(())
}

fn name(info: &FileInfo) -> &str {
    info.path.rsplit('/').next().unwrap_or_default()
}

fn kind(info: &FileInfo) -> &'static str {
    match info.kind {
        FileKind::Dir => "directory",
        FileKind::File => "file",
        FileKind::Symlink => "symlink",
        _ => "other",
    }
}

fn target(info: &FileInfo) -> Option<String> {
    info.target.as_ref().map(|target| String::from_utf8_lossy(target).into_owned())
}

fn table(entries: &[FileInfo]) -> Table {
    let mut table = Table::new(&["KIND", "MODE", "OWNER", "SIZE", "CHANGED", "NAME"]);
    for info in entries {
        let owner = info.owner.clone().unwrap_or_else(|| info.uid.to_string());
        let name = match target(info) {
            Some(target) => format!("{} -> {target}", name(info)),
            None => name(info).to_owned(),
        };
        table.row([
            kind(info).to_owned(),
            format!("{:04o}", info.mode),
            owner,
            info.size.to_string(),
            ago(info.modified),
            name,
        ]);
    }
    table
}

fn object(info: &FileInfo) -> Value {
    let modified = info.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "name": name(info),
        "path": info.path,
        "kind": kind(info),
        "mode": info.mode,
        "uid": info.uid,
        "gid": info.gid,
        "owner": info.owner,
        "group": info.group,
        "size": info.size,
        "modified_at_ms": u64::try_from(modified.as_millis()).unwrap_or(u64::MAX),
        "target": target(info),
    })
}
