//! Running the programs that mount, as root inside the sandbox.

use std::time::Duration;

use bastide_model::Secret;
use bastide_model::mount::{RequiredTool, ToolCheck};

use crate::{Command, Output, Result, Session};

/// How long a program may take to say whether it is there.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How much of what a program says is kept.
const SAID: usize = 64 * 1024;

/// Only root can mount.
pub(super) const ROOT: &str = "0";

/// Makes a folder of root's alone and writes its input into a file in it. In memory, so that keys reach
/// no disk; and where everybody may make files and nobody may touch another's, so that whoever owns the
/// workspace cannot put something else in the place of a configuration that root is about to read.
const WRITE_PRIVATE: &str = "set -eu; umask 077; d=$(mktemp -d /dev/shm/bastide-mount.XXXXXXXXXX); \
                             cat > \"$d/$1\"; printf %s \"$d\"";

/// Runs a command as root to its end. It is part of another operation, and makes no events.
pub(super) async fn run(
    session: &Session,
    command: Command,
    time_limit: Duration,
) -> Result<Output> {
    let limit = command.output_limit;
    let command = command.user(ROOT).timeout(time_limit);
    session.spawn_unrecorded(command).await?.output(limit).await
}

/// Where a program is, or that it is missing.
pub(super) async fn find(session: &Session, tool: &RequiredTool) -> Result<Option<String>> {
    match tool.check {
        ToolCheck::Found { program, or_at } => {
            let script = "command -v \"$1\" && exit 0; shift; \
                          for f do test -x \"$f\" && printf '%s\\n' \"$f\" && exit 0; done; exit 1";
            let argv = ["sh", "-c", script, "sh", program].into_iter().chain(or_at.iter().copied());
            let output = run(session, quiet(argv), TIMEOUT).await?;
            if output.exit.code != 0 {
                return Err(tool.missing().with_safe_message());
            }
            let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            Ok(Some(found).filter(|path| path.starts_with('/')))
        }
        ToolCheck::Succeeds(argv) => {
            let output = run(session, quiet(argv.iter().copied()), TIMEOUT).await?;
            // Some print the help of what is above a word they do not know, and succeed.
            let said = [output.stdout.as_slice(), &output.stderr].concat();
            let asked = argv.iter().take_while(|word| !word.starts_with('-')).copied();
            let asked = asked.collect::<Vec<_>>().join(" ");
            let knows = String::from_utf8_lossy(&said).contains(&asked);
            match output.exit.code == 0 && knows {
                true => Ok(None),
                false => Err(tool.missing().with_safe_message()),
            }
        }
    }
}

fn quiet<'a>(argv: impl Iterator<Item = &'a str>) -> Command {
    Command::new(argv).output_limit(SAID)
}

/// Writes a file that only root can read; says which folder it is in.
pub(super) async fn write_private(
    session: &Session,
    name: &str,
    content: &Secret,
) -> Result<Option<String>> {
    let command = Command::new(["sh", "-c", WRITE_PRIVATE, "sh", name])
        .input(content.as_bytes().to_vec())
        .output_limit(SAID);
    let output = run(session, command, TIMEOUT).await?;
    let folder = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_made = output.exit.code == 0 && folder.starts_with("/dev/shm/bastide-mount.");
    Ok(is_made.then_some(folder))
}

/// Removes such a folder. What cannot be removed goes with the machine: it is in memory.
pub(super) async fn remove_private(session: &Session, folder: &str) {
    let command = Command::new(["rm", "-rf", "--", folder]).output_limit(SAID);
    drop(run(session, command, TIMEOUT).await);
}
