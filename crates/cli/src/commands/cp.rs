//! `bastide cp`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bastide::{Content, Error, ErrorKind, Result, Session};
use serde_json::json;

use super::files::cat;
use crate::clients::{Clients, clients};
use crate::transfer::{
    CopyEndpoint, CopyProgress, CopyReport, HostSink, HostSource, SessionSink, SessionSource, Sink,
    Source, copy, last_name,
};
use crate::ui::{ProgressLine, Ui};

/// Copy files and folders between this machine and sessions
///
/// Either side is a path of this machine, ID:PATH, or - for the content of a file from standard input or to standard
/// output. A copy into a folder that exists gets the name of what is copied; of SRC/. it is what lies in it. Permissions,
/// times and links are kept; a file is replaced once its copy is whole. Pipes, sockets, devices, and on the way out
/// links that lead out of what is copied, are left out: each is named, and the exit code is 125.
#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// What is copied
    #[arg(value_name = "SRC", value_parser = CopyEndpoint::parse)]
    source: CopyEndpoint,

    /// Where to
    #[arg(value_name = "DST", value_parser = CopyEndpoint::parse)]
    destination: CopyEndpoint,

    /// Do not show how far it is
    #[arg(short, long)]
    quiet: bool,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: CpArgs) -> Result<ExitCode> {
    let client = clients()?;
    let shown = if args.quiet { ProgressLine::unseen() } else { ui.progress("copying") };
    let meter = CopyProgress::new(&shown);
    let copied = match (args.source, args.destination) {
        (CopyEndpoint::Stream, CopyEndpoint::Session { id, path }) => {
            let session = attach(&client, &id).await?;
            let path = into_folder(&session, &path, None).await?;
            session.files().write(&path, Content::stream(tokio::io::stdin())).await?;
            CopyReport { files: 1, ..CopyReport::default() }
        }
        (CopyEndpoint::Session { id, path }, CopyEndpoint::Stream) => {
            cat(ui, &attach(&client, &id).await?, &path).await?;
            return Ok(ExitCode::SUCCESS);
        }
        (CopyEndpoint::Host(from), CopyEndpoint::Session { id, path }) => {
            let session = attach(&client, &id).await?;
            let path = into_folder(&session, &path, from.to_str().and_then(last_name)).await?;
            let mut sink = Sink::Session(SessionSink::new(session.files(), &path));
            copy(&Source::Host(HostSource::new(from)), &mut sink, &meter).await?
        }
        (CopyEndpoint::Session { id, path }, CopyEndpoint::Host(to)) => {
            let session = attach(&client, &id).await?;
            let mut sink = Sink::Host(host_sink(to, last_name(&path))?);
            let source = Source::Session(SessionSource::new(session.files(), &path));
            copy(&source, &mut sink, &meter).await?
        }
        (CopyEndpoint::Session { id, path }, CopyEndpoint::Session { id: other, path: to }) => {
            let (from, into) = (attach(&client, &id).await?, attach(&client, &other).await?);
            let to = into_folder(&into, &to, last_name(&path)).await?;
            let mut sink = Sink::Session(SessionSink::new(into.files(), &to));
            let source = Source::Session(SessionSource::new(from.files(), &path));
            copy(&source, &mut sink, &meter).await?
        }
        (
            CopyEndpoint::Host(_) | CopyEndpoint::Stream,
            CopyEndpoint::Host(_) | CopyEndpoint::Stream,
        ) => {
            let message = "one side of a copy is in a session";
            return Err(
                Error::new(ErrorKind::InvalidInput, message).with_hint("write it as ID:PATH")
            );
        }
    };
    drop(shown);
    for what in &copied.left_out {
        ui.note(&format!("left out {what}"));
    }
    if args.json {
        ui.json(&json!({
            "files": copied.files,
            "folders": copied.folders,
            "links": copied.links,
            "left_out": copied.left_out,
        }))?;
    }
    if let Some(first) = copied.left_out.first() {
        let count = copied.left_out.len();
        let message = format!("not everything was copied: {count} left out, the first {first}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(ExitCode::SUCCESS)
}

async fn attach(client: &Clients, id: &str) -> Result<Session> {
    client.attach(&client.find(id)?).await
}

/// Where a copy of something of this name goes in a session: into a folder that exists, else where it
/// says.
async fn into_folder(session: &Session, path: &str, name: Option<&str>) -> Result<String> {
    let is_folder = session.files().stat(path).await.is_ok_and(|info| info.is_dir());
    let trimmed = path.trim_end_matches('/');
    match name {
        Some(name) if is_folder || path.ends_with('/') => Ok(match trimmed {
            "" if path.starts_with('/') => format!("/{name}"),
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        }),
        _ => Ok(path.to_owned()),
    }
}

/// The same on this machine. A link at the path the caller gives is the caller's; one in a folder that
/// happens to have the name of what is copied is nobody's wish.
fn host_sink(path: PathBuf, name: Option<&str>) -> Result<HostSink> {
    let says_folder = path.to_string_lossy().ends_with('/');
    match name {
        Some(name) if says_folder || Path::new(&path).is_dir() => HostSink::beneath(&path, name),
        _ => Ok(HostSink::new(path)),
    }
}
