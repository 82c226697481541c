//! `bastide completions` and `bastide man`

mod markdown;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result};
use clap::CommandFactory;

use crate::args::Args;
use crate::ui::Ui;

/// Print what makes a shell complete our commands
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Print the manual page
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write the pages of all commands into this folder instead
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print a page with all commands, in Markdown, instead
    #[arg(long, conflicts_with = "out")]
    markdown: bool,
}

pub(crate) fn completions(ui: &mut Ui, args: CompletionsArgs) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "bastide", &mut text);
    ui.command_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(ui: &mut Ui, args: &ManArgs) -> Result<ExitCode> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Io, format!("cannot write the manual pages: {error}"))
    };
    if args.markdown {
        ui.command_out(markdown::page(Args::command()).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(failed)?;
            clap_mangen::generate_to(Args::command(), folder).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Args::command()).render(&mut page).map_err(failed)?;
            ui.command_out(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
