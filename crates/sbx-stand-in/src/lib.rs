#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod arguments;
mod clones;
mod faults;
mod inside;
mod machine;
mod ports;
mod profile;
mod sandboxes;
mod state;
mod stored;
mod templates;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use crate::state::Database;

/// The variable that says where everything is remembered.
const STATE: &str = "SBX_STAND_IN_STATE";

/// How a call ends.
pub(crate) type Outcome = Result<u8, Failure>;

/// Why a call fails: its exit code, and what it says.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) u8, pub(crate) String);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(1, error.to_string())
    }
}

impl From<bastide::Error> for Failure {
    fn from(error: bastide::Error) -> Self {
        Self(1, error.to_string())
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self(1, error.to_string())
    }
}

/// A failure in the words of the real program.
pub(crate) fn fail(message: impl Into<String>) -> Outcome {
    Err(Failure(1, message.into()))
}

/// One call, with these words.
#[must_use]
pub fn main(words: Vec<String>) -> ExitCode {
    let served = serve(&words);
    match served {
        Ok(code) => ExitCode::from(code),
        Err(Failure(code, message)) => {
            if !message.is_empty() {
                drop(writeln!(io::stderr(), "Error: {message}"));
            }
            ExitCode::from(code)
        }
    }
}

fn serve(words: &[String]) -> Outcome {
    let state = std::env::var_os(STATE)
        .ok_or_else(|| Failure(1, format!("the stand-in for sbx needs {STATE}")))?;
    let world = Database::open(PathBuf::from(state))?;
    world.log(words)?;
    if let Some(outcome) = faults::strike(&world, words)? {
        return outcome;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(dispatch(&world, words));
    // The thread that reads standard input cannot be interrupted.
    runtime.shutdown_background();
    outcome
}

async fn dispatch(world: &Database, words: &[String]) -> Outcome {
    let verb = words.first().map_or("", String::as_str);
    let rest = words.get(1..).unwrap_or_default();
    match verb {
        "version" | "--version" => return machine::version(world),
        "login" => return machine::login(world),
        "logout" => return machine::logout(world),
        "diagnose" => return machine::diagnose(world, rest),
        _ => {}
    }
    if !world.is_signed_in() {
        return fail("you are not logged in to Docker; run `sbx login`");
    }
    match verb {
        "ls" => sandboxes::list(world, rest),
        "create" => sandboxes::create(world, rest).await,
        "run" => sandboxes::run(world, rest).await,
        "stop" => sandboxes::stop(world, rest).await,
        "rm" => sandboxes::remove(world, rest).await,
        "prune" => sandboxes::prune(world, rest).await,
        "reset" => sandboxes::reset(world, rest).await,
        "exec" => inside::exec(world, rest).await,
        "cp" => inside::copy(world, rest).await,
        "secret" => stored::secret(world, rest),
        "policy" => stored::policy(world, rest),
        "ports" => ports::ports(world, rest).await,
        "template" => templates::template(world, rest),
        "daemon" | "settings" => machine::settings(verb, rest),
        other => fail(format!("unknown command {other:?} for \"sbx\"")),
    }
}

/// The stand-in as a test has it: a program named `sbx` in a folder, and what it remembers.
#[derive(Debug)]
pub struct StandIn {
    program: PathBuf,
    state: PathBuf,
}

impl StandIn {
    /// Puts a program named `sbx` of that release into `folder`; somebody is signed in, and the policy is
    /// chosen.
    ///
    /// # Errors
    ///
    /// If the stand-in has not been built (`cargo build --workspace`), or the folder cannot be written to.
    pub fn install(folder: &Path, version: &str) -> io::Result<Self> {
        let real = built()?;
        let state = folder.join("state");
        fs::create_dir_all(&state)?;
        fs::write(state.join("version"), version)?;
        fs::write(state.join("signed-in"), "")?;
        fs::write(state.join("initialized"), "")?;
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        let program = bin.join("sbx");
        let quote =
            |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let script = format!(
            "#!/bin/sh\n# A stand-in for tests, not Docker's sbx.\n{STATE}={} exec {} \"$@\"\n",
            quote(&state),
            quote(&real)
        );
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Self { program, state })
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder the program is in, for a search path.
    #[must_use]
    pub fn bin(&self) -> &Path {
        self.program.parent().unwrap_or(&self.program)
    }

    /// A folder whose programs are in every sandbox, as an agent is in its image. A test that wants any makes it.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.state.join("programs")
    }

    /// What it remembers.
    #[must_use]
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Has something go wrong from now on; an empty text mends everything.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn fault(&self, faults: &str) -> io::Result<()> {
        fs::write(self.state.join("faults"), faults)
    }

    /// Makes a script the agent of this name.
    ///
    /// # Errors
    ///
    /// If that cannot be written down.
    pub fn agent(&self, name: &str, script: &str) -> io::Result<()> {
        let folder = self.state.join("agents");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), script)
    }

    /// The words of every call so far.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn calls(&self) -> io::Result<Vec<Vec<String>>> {
        let text = match fs::read_to_string(self.state.join("argv.log")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let words = text.lines().map(|line| -> serde_json::Result<_> {
            let call: Value = serde_json::from_str(line)?;
            let words = call["argv"].as_array().cloned().unwrap_or_default();
            Ok(words.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        });
        Ok(words.collect::<serde_json::Result<_>>()?)
    }

    /// Something that is stored, by the name of its file: `sandboxes`, `secrets` or `rules`.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn stored(&self, name: &str) -> io::Result<Value> {
        match fs::read(self.state.join(format!("{name}.json"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Value::Null),
            text => Ok(serde_json::from_slice(&text?)?),
        }
    }
}

/// The program that was built beside the test that asks.
fn built() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let folders = test.ancestors().skip(1).take(3);
    let found = folders.map(|folder| folder.join("sbx-stand-in")).find(|path| path.is_file());
    found.ok_or_else(|| {
        let message = "the stand-in for sbx is not built: `cargo build --workspace --bins`";
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}
