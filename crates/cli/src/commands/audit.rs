//! `bastide audit`

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use bastide::events::{
    AUDIT_FOLDER, AuditKey, AuditProblem, AuditProof, AuditPublicKey, AuditReport, audit_folder,
    audited, forget, prove, verify,
};
use bastide::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use super::events::{find, logs};
use crate::args::values::parse_time;
use crate::config;
use crate::ui::Ui;

/// The exit code of a log that was tampered with.
const TAMPERED: u8 = 1;

/// Check and prove what is on record
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    task: AuditTask,
}

#[derive(Debug, clap::Subcommand)]
enum AuditTask {
    /// Check that nothing on record was changed, removed or moved
    ///
    /// Ends with 1 if something was. A last write that a crash cut off is not tampering, and is said. With a
    /// key, a log that was cut back since it was last signed, or whose end is not signed, is not good.
    Verify {
        /// The session; all of them when left out
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Also check that it is signed by this key
        #[arg(long, value_name = "PUBLIC KEY")]
        key: Option<AuditPublicKey>,
        /// Print an array of objects
        #[arg(long)]
        json: bool,
    },
    /// Print a proof that a record is on record, which needs nothing but itself
    Prove {
        /// The number of the record
        #[arg(value_name = "SEQ")]
        seq: u64,
        /// The session; needed where there are several
        #[arg(value_name = "ID")]
        id: Option<String>,
    },
    /// Check a proof, and print the record it proves
    Check {
        /// The file with the proof; - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Also check that it is signed by this key
        #[arg(long, value_name = "PUBLIC KEY")]
        key: Option<AuditPublicKey>,
    },
    /// Make a key that signs what is put on record, and print its public half
    ///
    /// Set BASTIDE_AUDIT_KEY to the file to have everything signed from then on.
    Keygen {
        /// A file that does not exist yet
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Remove what is on record about sessions that are long gone
    Prune {
        /// How long nothing must have been put on record (such as 12h)
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        older_than: Duration,
        /// Print an array
        #[arg(long)]
        json: bool,
    },
}

impl AuditArgs {
    /// Whether a program reads what is printed.
    pub(crate) fn json(&self) -> bool {
        match &self.task {
            AuditTask::Verify { json, .. }
            | AuditTask::Keygen { json, .. }
            | AuditTask::Prune { json, .. } => *json,
            AuditTask::Prove { .. } | AuditTask::Check { .. } => false,
        }
    }
}

pub(crate) fn run(ui: &mut Ui, args: AuditArgs) -> Result<ExitCode> {
    match args.task {
        AuditTask::Verify { id, key, json } => verify_all(ui, id.as_deref(), key, json),
        AuditTask::Prove { seq, id } => {
            let home = config::home()?;
            let id = match (id, &logs(&home)?[..]) {
                (Some(id), _) => find(&home, &id)?,
                (None, [only]) => only.clone(),
                (None, _) => {
                    let message = "which session is meant?";
                    return Err(Error::new(ErrorKind::InvalidInput, message)
                        .with_hint("give its name after the number"));
                }
            };
            let proof = prove(&home, &id, seq)?;
            ui.json(&serde_json::to_value(proof).map_err(unreadable)?)?;
            Ok(ExitCode::SUCCESS)
        }
        AuditTask::Check { file, key } => {
            let proof: AuditProof = serde_json::from_str(&read(&file)?).map_err(unreadable)?;
            proof.check(key)?;
            ui.json_text(&proof.record)?;
            Ok(ExitCode::SUCCESS)
        }
        AuditTask::Keygen { file, json } => {
            let public = AuditKey::generate(&file)?.public().to_string();
            match json {
                true => ui.json(&json!({ "public_key": public }))?,
                false => ui.line(&public)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        AuditTask::Prune { older_than, json } => prune(ui, older_than, json),
    }
}

fn verify_all(
    ui: &mut Ui,
    id: Option<&str>,
    key: Option<AuditPublicKey>,
    json: bool,
) -> Result<ExitCode> {
    let home = config::home()?;
    let ids = match id {
        Some(id) => vec![find(&home, id)?],
        None => audited(&home)?,
    };
    let mut is_valid = true;
    let mut reports = Vec::new();
    let mut unreadable = None;
    for one in &ids {
        match verify(&home, one, key) {
            Ok(report) => {
                is_valid &= report.is_valid();
                match json {
                    true => reports.push(object(&report)),
                    false => show(ui, &report)?,
                }
            }
            Err(error) if id.is_some() => return Err(error),
            // The others are checked all the same.
            Err(error) => {
                match json {
                    true => {
                        reports.push(json!({"id": one, "good": false, "error": error.message()}));
                    }
                    false => ui.line(&format!("{one}\tUNREADABLE\t{}", error.message()))?,
                }
                unreadable = Some(error);
            }
        }
    }
    if json {
        ui.json(&Value::Array(reports))?;
    }
    match unreadable {
        _ if !is_valid => Ok(ExitCode::from(TAMPERED)),
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn show(ui: &mut Ui, report: &AuditReport) -> Result<()> {
    let mut notes = Vec::new();
    match (report.signed, &report.key) {
        (Some(seq), Some(key)) => notes.push(format!("signed up to {seq} by {key}")),
        _ => notes.push("not signed".to_owned()),
    }
    if report.mended > 0 {
        notes.push(format!("{} writes were cut off and went on", report.mended));
    }
    if report.torn > 0 {
        notes.push(format!("the last write was cut off after {} bytes", report.torn));
    }
    let word = match report.is_valid() {
        true => "good",
        false if report.problems.iter().all(AuditProblem::is_only_unsigned) => "UNSIGNED",
        false => "TAMPERED",
    };
    let (id, records) = (&report.id, report.records);
    ui.line(&format!(
        "{id}\t{word}\t{records} records\t{}\thead {}",
        notes.join(", "),
        report.head
    ))?;
    for problem in &report.problems {
        ui.line(&format!("{id}\t{problem}"))?;
    }
    Ok(())
}

fn object(report: &AuditReport) -> Value {
    json!({
        "id": report.id,
        "good": report.is_valid(),
        "records": report.records,
        "files": report.files,
        "head": report.head,
        "problems": report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "mended": report.mended,
        "torn": report.torn,
        "signed": report.signed,
        "key": report.key,
        "ended": report.is_ended,
    })
}

fn prune(ui: &mut Ui, older_than: Duration, json: bool) -> Result<ExitCode> {
    let home = config::home()?;
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Io, format!("cannot remove what is on record: {error}"))
    };
    let mut removed = Vec::new();
    for id in logs(&home)? {
        let folder = audit_folder(&home, &id);
        let is_there = home.join("sessions").join(id.as_str()).exists();
        let files = std::fs::read_dir(&folder).map_err(failed)?.flatten();
        // An empty folder is as old as it is itself.
        let own = std::fs::metadata(&folder).ok();
        let times = files.filter_map(|file| file.metadata().ok()).chain(own);
        let times = times.filter_map(|file| file.modified().ok());
        let age = times.max().and_then(|last| SystemTime::now().duration_since(last).ok());
        if is_there || age.is_none_or(|age| age < older_than) {
            continue;
        }
        forget(&home, &id)?;
        removed.push(id);
    }
    if json {
        ui.json(&json!(removed))?;
    } else {
        for id in &removed {
            ui.line(&format!("removed {AUDIT_FOLDER}/{id}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &std::path::Path) -> Result<String> {
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    read.map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot read {}: {error}", file.display()))
    })?;
    Ok(text)
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("this is no proof: {error}"))
}
