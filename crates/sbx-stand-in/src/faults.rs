//! What is to go wrong.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::state::Database;
use crate::{Failure, Outcome};

/// Strikes if this call is to fail.
pub(crate) fn strike(world: &Database, words: &[String]) -> Result<Option<Outcome>, Failure> {
    let line = words.join(" ");
    for fault in world.faults() {
        if fault == "noise" {
            writeln!(io::stdout(), "Starting the daemon (sandboxd)...\r\n[ready]\r")?;
            continue;
        }
        let Some((verb, what)) = fault.split_once(':') else { continue };
        if line != verb && !line.starts_with(&format!("{verb} ")) {
            continue;
        }
        match what {
            "hang" => hang(),
            "tree" => {
                // It inherits our streams, and its number is left for whoever looks for it.
                let child = Command::new("sleep").arg("3600").stdin(Stdio::null()).spawn()?;
                std::fs::write(world.path("child"), child.id().to_string())?;
                hang();
            }
            code => {
                let code: u16 = code.parse().unwrap_or(1);
                let code = u8::try_from(code).unwrap_or(1).max(1);
                let message = format!("request failed: {what} (injected)");
                return Ok(Some(Err(Failure(code, message))));
            }
        }
    }
    Ok(None)
}

/// Never ends.
fn hang() -> ! {
    loop {
        std::thread::park();
    }
}
