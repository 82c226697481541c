//! Commands and files of a sandbox.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use bastide::{Command, ExitReason, OutputEvent, Process};
use tokio::io::AsyncReadExt;

use crate::arguments::Arguments;
use crate::state::{Database, say};
use crate::stored::sentinels;
use crate::{Failure, Outcome, fail};

/// How much is read at once.
const CHUNK: usize = 64 * 1024;

/// The search path of a sandbox. The last folder stands for what an image brings, such as an agent.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.programs";

/// A command to be run.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) folder: Option<String>,
    /// Whether it has our standard input.
    pub(crate) input: bool,
}

pub(crate) async fn exec(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] = &[
        (&["-e", "--env"], true),
        (&["-i", "--interactive"], false),
        (&["-t", "--tty"], false),
        (&["-u", "--user"], true),
        (&["-w", "--workdir"], true),
        (&["--privileged"], false),
        (&["-d", "--detach"], false),
    ];
    let given = Arguments::parse(rest, known, 1)?;
    let name = given.word(0, "SANDBOX")?;
    if given.has("-d") {
        return fail("detached commands are not supported");
    }
    let argv = match given.after.clone() {
        Some(after) => after,
        None => given.words.get(1..).unwrap_or_default().to_vec(),
    };
    if let Some(at) = argv.iter().position(String::is_empty) {
        return fail(format!("400 Bad Request: cmd element {at} is empty"));
    }
    if argv.is_empty() {
        return fail("COMMAND is missing");
    }
    let env = given.values("-e").filter_map(|pair| pair.split_once('='));
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let folder = given.value("-w").map(str::to_owned);
    let input = given.has("-i");
    run_inside(world, name, Inside { argv, env, folder, input }).await
}

/// Runs a command in a sandbox, with our streams. Whoever is asked for as a user, it is the sandbox's own.
pub(crate) async fn run_inside(world: &Database, name: &str, wanted: Inside) -> Outcome {
    let session = world.session(name).await?;
    let sandbox = world.sandbox(name)?;
    let folder = wanted.folder.as_ref().unwrap_or(&sandbox.folder);
    let wrong = |error| Failure(1, format!("{folder}: {error}"));
    let folder: bastide::GuestPath = folder.parse().map_err(wrong)?;
    let program = wanted.argv.first().cloned().unwrap_or_default();
    let mut command = Command::new(wanted.argv.iter().map(String::as_str)).cwd(folder);
    command = command.env("PATH", PATH).env("HOME", "/home/agent");
    let own = sentinels(world, name)?;
    for (key, value) in own.iter().chain(&sandbox.env).chain(&wanted.env) {
        command = command.env(key.as_str(), value.as_str());
    }
    let input = wanted.input && !io::stdin().is_terminal();
    if input {
        command = command.stream_input();
    }
    let process = match session.spawn(command).await {
        Ok(process) => process,
        Err(error) if error.is_not_found() => return not_found(&program),
        Err(error) => return Err(error.into()),
    };
    join(process, &program, input).await
}

/// The real one complains on standard output.
fn not_found(program: &str) -> Outcome {
    say(format!("exec: \"{program}\": executable file not found in $PATH"))?;
    Ok(127)
}

async fn join(mut process: Process, program: &str, input: bool) -> Outcome {
    let writer = process.writer();
    let feed = async {
        if !input {
            return;
        }
        let mut stdin = tokio::io::stdin();
        loop {
            let mut chunk = vec![0; CHUNK];
            match stdin.read(&mut chunk).await {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    chunk.truncate(count);
                    if writer.write(chunk).await.is_err() {
                        return;
                    }
                }
            }
        }
        // One that has ended reads no more.
        drop(writer.close().await);
    };
    let hear = async {
        loop {
            match process.next().await? {
                OutputEvent::Stdout(chunk) => write(&mut io::stdout(), &chunk)?,
                OutputEvent::Stderr(chunk) => write(&mut io::stderr(), &chunk)?,
                OutputEvent::Lost(_) => {}
                OutputEvent::Exit(exit) => return Ok::<_, Failure>(exit),
            }
        }
    };
    tokio::pin!(feed);
    tokio::pin!(hear);
    let mut is_fed = false;
    let exit = loop {
        tokio::select! {
            exit = &mut hear => break exit?,
            () = &mut feed, if !is_fed => is_fed = true,
        }
    };
    if exit.reason == ExitReason::NotStarted {
        return not_found(program);
    }
    Ok(u8::try_from(exit.code).unwrap_or(1))
}

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Copies a file in or out.
pub(crate) async fn copy(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[(&["-L", "--follow-link"], false)], usize::MAX)?;
    let (from, to) = (given.word(0, "SRC")?, given.word(1, "DST")?);
    let part = |text: &str| -> Option<(String, String)> {
        let (name, path) = text.split_once(':')?;
        path.starts_with('/').then(|| (name.to_owned(), path.to_owned()))
    };
    match (part(from), part(to)) {
        (None, Some((name, path))) => copy_in(world, Path::new(from), &name, &path).await,
        (Some((name, path)), None) => {
            let argv = ["cat".to_owned(), path];
            let session = world.session(&name).await?;
            let output = session.exec(Command::new(argv.iter().map(String::as_str))).await?;
            fs::write(to, output.stdout)?;
            Ok(0)
        }
        _ => fail("one side of `sbx cp` is SANDBOX:/ABSOLUTE/PATH"),
    }
}

async fn copy_in(world: &Database, from: &Path, name: &str, path: &str) -> Outcome {
    let session = world.session(name).await?;
    let script = "cat > \"$0\" && chmod 755 \"$0\"";
    let command = Command::new(["sh", "-c", script, path]).input(fs::read(from)?);
    let output = session.exec(command).await?;
    match output.exit.code {
        0 => Ok(0),
        _ => fail(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
