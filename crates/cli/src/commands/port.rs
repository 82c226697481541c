//! `bastide port`

use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

use crate::clients::clients;
use crate::ui::Ui;

/// Publish a port of a session on this machine, and print its address
///
/// The address stays the same for as long as the session runs.
#[derive(Debug, clap::Args)]
pub(crate) struct PortArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The port inside
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: PortArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let endpoint = session.expose(args.port).await?;
    let port = u16::try_from(endpoint.port).unwrap_or_default();
    if args.json {
        let url = endpoint.url_for("http")?;
        ui.json(&json!({ "host": endpoint.host, "port": port, "tls": endpoint.tls, "url": url }))?;
    } else {
        ui.line(&format!("{}:{port}", endpoint.host))?;
    }
    Ok(ExitCode::SUCCESS)
}
