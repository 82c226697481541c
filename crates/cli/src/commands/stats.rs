//! `bastide stats`

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Result, SessionId, SessionStatus, Usage};
use futures::future::join_all;
use serde_json::{Map, Value};

use crate::clients::{Clients, clients};
use crate::ui::{Table, Ui, message};

/// How often it is looked again on a terminal.
const EVERY: Duration = Duration::from_secs(2);

/// Sessions that are asked at a time.
const AT_ONCE: usize = 16;

/// Show what running sessions use: processors, memory, bytes read and written
///
/// On a terminal it goes on until it is interrupted. Looking at a session keeps no idle one alive.
#[derive(Debug, clap::Args)]
pub(crate) struct StatsArgs {
    /// The sessions; all that run if none is given
    #[arg(value_name = "ID")]
    ids: Vec<String>,

    /// Look once, also on a terminal
    #[arg(long)]
    once: bool,

    /// Print an object with one for each session
    #[arg(long)]
    pub(crate) json: bool,
}

/// A session, and what it uses or why that cannot be told.
type Row = (SessionId, Result<Usage>);

pub(crate) async fn run(ui: &mut Ui, args: StatsArgs) -> Result<ExitCode> {
    let clients = clients()?;
    let named: Vec<SessionId> =
        args.ids.iter().map(|id| clients.find(id)).collect::<Result<_>>()?;
    if args.json {
        let rows = look(&clients, &named).await?;
        let object = rows.into_iter().map(|(id, usage)| (id.to_string(), value(usage)));
        ui.json(&Value::Object(object.collect::<Map<_, _>>()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_live = !args.once && std::io::stdout().is_terminal();
    loop {
        let rows = look(&clients, &named).await?;
        if is_live {
            // To the top, and nothing of what was there before.
            ui.command_out(b"\x1b[H\x1b[2J")?;
        }
        show(ui, rows)?;
        if !is_live {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(clients: &Clients, named: &[SessionId]) -> Result<Vec<Row>> {
    let ids = match named.is_empty() {
        false => named.to_vec(),
        true => {
            let all = clients.list().await?.into_iter();
            let running = all.filter(|info| info.status == SessionStatus::Running);
            running.map(|info| info.id).collect()
        }
    };
    let mut rows = Vec::with_capacity(ids.len());
    for some in ids.chunks(AT_ONCE) {
        let asked = some.iter().map(|id| async { (id.clone(), clients.usage(id).await) });
        rows.extend(join_all(asked).await);
    }
    if named.is_empty() {
        // One that ended since it was listed is none that runs.
        rows.retain(|(_, usage)| usage.is_ok());
        return Ok(rows);
    }
    match rows.pop() {
        // Somebody asked for this very one.
        Some((_, Err(error))) if rows.is_empty() => return Err(error),
        last => rows.extend(last),
    }
    Ok(rows)
}

fn show(ui: &mut Ui, rows: Vec<Row>) -> Result<()> {
    let mut table = Table::new(&["ID", "CPU", "PEAK MEMORY", "READ", "WRITTEN", "COUNTED BY"]);
    for (id, usage) in rows {
        let row = match usage {
            Ok(usage) => [
                id.to_string(),
                seconds(&usage),
                size(usage.peak_memory),
                size(usage.read),
                size(usage.written),
                usage.source.as_str().to_owned(),
            ],
            Err(error) => {
                let mut row: [String; 6] = Default::default();
                (row[0], row[5]) = (id.to_string(), message(&error).into_owned());
                row
            }
        };
        table.row(row);
    }
    ui.table(&table)
}

fn value(usage: Result<Usage>) -> Value {
    match usage {
        Ok(usage) => usage.to_json(),
        Err(error) => serde_json::json!({ "error": message(&error) }),
    }
}

/// Time of processors, for people.
pub(super) fn seconds(usage: &Usage) -> String {
    format!("{:.2} s", usage.cpu.as_secs_f64())
}

/// A number of bytes, for people.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut shift = 0;
    while shift < 4 && bytes >> (10 * shift) >= 1024 {
        shift += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "a size for people has few digits")]
    let value = bytes as f64 / f64::from(1 << (10 * shift.min(2)));
    let value = if shift > 2 { value / f64::from(1 << (10 * (shift - 2))) } else { value };
    match shift {
        0 => format!("{bytes} B"),
        _ => format!("{value:.1} {}", units[shift]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_sizes_as_people_do() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (300 << 20, "300.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
