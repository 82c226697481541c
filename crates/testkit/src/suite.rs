//! Running trials against a backend.
//!
//! A trial is one sentence that must be true of every backend, shown on a session of its own. The same
//! trials run on every backend; what a machine cannot do is skipped with its reason, never silently.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bastide::model::{Entry, Manifest};
use bastide::snapshot::store::Store;
use bastide::{Backend, Client, Command, CreateOptions, Output, Session};
use libtest_mimic::{Arguments, Failed};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long one trial may take. Every call in it has a deadline of its own; this one is for the
/// trial that finds a call without.
const TRIAL: Duration = Duration::from_secs(120);

/// The same where each session takes seconds to make.
const POD_TRIAL: Duration = Duration::from_secs(280);

/// The same with the big counts: some of those are times.
const FULL_TRIAL: Duration = Duration::from_secs(900);

/// The variable that names the file in which skipped trials are counted.
const SKIPPED: &str = "BASTIDE_TEST_SKIPPED";

/// What a trial can use.
#[derive(Debug, Clone)]
pub struct Context {
    /// The backend under trial.
    pub backend: Arc<dyn Backend>,
    /// Whether the big counts are run, not a tenth of them.
    pub full: bool,
}

/// What can go wrong in a trial.
pub type TrialError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a trial: any error fails it, with its message.
pub type Outcome = Result<(), TrialError>;

/// Why a trial says nothing here: the machine lacks what it is about.
#[derive(Debug)]
struct Skip(String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a trial that this machine cannot do. It counts as passed, and is named with its reason.
pub fn skip(reason: impl Into<String>) -> TrialError {
    Box::new(Skip(reason.into()))
}

type Body = fn(Context) -> Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One trial.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// What must be true, as a sentence in snake case.
    pub name: &'static str,
    /// How it is shown.
    pub body: Body,
    /// As whom commands of [`sh`] and of probes run, if not as the session's own user.
    pub user: Option<&'static str>,
}

impl Trial {
    /// The same trial with its commands run as somebody else.
    #[must_use]
    pub fn as_user(self, user: &'static str) -> Self {
        Self { user: Some(user), ..self }
    }
}

/// Trials of one run share a home, so one that sweeps it finds what others left there on purpose.
static HOME: RwLock<()> = RwLock::const_new(());

/// Keeps sweeps away while this trial has sessions that ended, or were never made to their end.
pub async fn block_sweeps() -> RwLockReadGuard<'static, ()> {
    HOME.read().await
}

/// The process that a process of this host came from.
///
/// # Errors
///
/// Fails if there is no such process.
pub fn parent(pid: u32) -> Result<u32, TrialError> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(parent.ok_or("a process without a parent")?.trim().parse()?)
}

/// Waits until no trial minds a sweep.
pub async fn sweeping() -> RwLockWriteGuard<'static, ()> {
    HOME.write().await
}

tokio::task_local! {
    static AS: Option<&'static str>;
}

/// The same command as whom this trial runs commands.
#[must_use]
pub fn as_asked(command: Command) -> Command {
    match AS.try_with(|user| *user).ok().flatten() {
        Some(user) => command.user(user),
        None => command,
    }
}

/// Makes a [`Trial`] of an async function.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        &[$($crate::suite::Trial {
            name: stringify!($name),
            body: |context| Box::pin($name(context)),
            user: None,
        }),*]
    };
}

impl Context {
    /// A client for the backend.
    #[must_use]
    pub fn client(&self) -> Client {
        client_for(Arc::clone(&self.backend))
    }

    /// A session with nothing in its workspace.
    ///
    /// # Errors
    ///
    /// Fails if the backend cannot make it.
    pub async fn session(&self) -> bastide::Result<Session> {
        self.session_with(&Manifest::default()).await
    }

    /// A session with this workspace.
    ///
    /// # Errors
    ///
    /// Fails if the backend cannot make it.
    pub async fn session_with(&self, manifest: &Manifest) -> bastide::Result<Session> {
        self.client().create(manifest, CreateOptions::default()).await
    }

    /// A big count, or a tenth of it.
    #[must_use]
    pub fn count(&self, full: usize) -> usize {
        if self.full { full } else { full.div_ceil(10) }
    }
}

/// A client for a backend. Where machines keep no files, it knows the store of its home, as the command line does.
#[must_use]
pub fn client_for(backend: Arc<dyn Backend>) -> Client {
    let client = Client::new(Arc::clone(&backend));
    if backend.keeps_files() {
        return client;
    }
    let known = Store::open(backend.home().join("snapshots"))
        .and_then(|store| store.known_to(Client::new(backend)));
    known.unwrap_or(client)
}

/// A workspace with the test program itself in it, to be run inside as a
/// [probe](crate::escape::probe): so a trial needs nothing that an image may not have.
///
/// # Errors
///
/// Fails if the test program cannot be read.
pub fn with_probe(mut manifest: Manifest) -> std::io::Result<Manifest> {
    let program = match stripped() {
        Ok(path) => std::fs::read(path)?,
        // Then all of it goes in, which only takes longer.
        Err(_) => std::fs::read("/proc/self/exe")?,
    };
    manifest.entries.insert("probe".to_owned(), Entry::file(program));
    Ok(manifest)
}

/// This program without what only a debugger reads: most of it, and every session with a probe gets a copy. Made once where
/// temporary files go, by whichever thread of whichever process comes first.
fn stripped() -> std::io::Result<std::path::PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self/exe")?;
    let name = format!("bastide-probe-{}-{}-{}", own.ino(), own.mtime(), own.size());
    let path = std::env::temp_dir().join(name);
    if !path.exists() {
        // Of each that makes one: what two write at a time is none.
        let unfinished = tempfile::NamedTempFile::new()?.into_temp_path();
        let mut strip = std::process::Command::new("strip");
        strip.arg("-o").arg(&unfinished).arg(std::env::current_exe()?);
        if !strip.status()?.success() {
            return Err(std::io::Error::other("it was not stripped"));
        }
        unfinished.persist(&path).map_err(|failed| failed.error)?;
    }
    Ok(path)
}

/// A shell command that must not take longer than a trial may.
#[must_use]
pub fn sh(line: &str) -> Command {
    as_asked(Command::shell(line).timeout(Duration::from_secs(60)))
}

/// What a shell command says, which must end well.
///
/// # Errors
///
/// Fails if it cannot be run, or ends with anything but 0; its standard error is in the message.
pub async fn say(session: &Session, line: &str) -> Result<String, TrialError> {
    let Output { stdout, stderr, exit, .. } = session.exec(sh(line)).await?;
    if exit.code != 0 {
        let stderr = String::from_utf8_lossy(&stderr);
        return Err(format!("`{line}` ended with {}: {stderr}", exit.code).into());
    }
    Ok(String::from_utf8(stdout)?)
}

/// How many processes of the session there are whose command line holds a match of `pattern`. They are
/// told from others by where they started: on some rungs those of the host can be seen too.
///
/// # Errors
///
/// Fails if that cannot be counted.
pub async fn running(session: &Session, pattern: &str) -> Result<usize, TrialError> {
    let root = session.root();
    let line = format!(
        "for p in /proc/[0-9]*; do [ \"$(readlink $p/cwd)\" = '{root}' ] && tr '\\0' ' ' < $p/cmdline && echo
         done 2>/dev/null | grep -c '{pattern}' || true"
    );
    Ok(say(session, &line).await?.trim().parse()?)
}

/// Where commands of the session may keep what is not in the workspace.
///
/// # Errors
///
/// Fails if they cannot be asked.
pub async fn scratch(session: &Session) -> Result<String, TrialError> {
    Ok(say(session, "echo ${TMPDIR:-/tmp}").await?.trim().to_owned())
}

/// Runs suites of trials as a test binary does: it takes the usual arguments and prints the usual
/// lines.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test program speaks on the terminal")]
pub fn run(suites: &[(&str, &Context, Vec<Trial>)]) -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = Vec::new();
    for (suite, context, trials) in suites {
        for trial in trials {
            let (context, trial) = (Context::clone(context), *trial);
            let name = format!("{suite}::{}", trial.name);
            tests.push(libtest_mimic::Trial::test(name.clone(), move || {
                perform(&name, context, trial)
            }));
        }
    }
    let conclusion = libtest_mimic::run(&arguments, tests);
    for (_, context, _) in suites {
        match clear(context) {
            Ok(left) if left.is_empty() || conclusion.has_failed() => {}
            Ok(left) => {
                eprintln!("error: trials left sessions behind: {}", left.join(", "));
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("error: cannot clear away what trials left behind: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    conclusion.exit_code()
}

/// Names suites that cannot be run here, and says why: each trial is reported as ignored.
#[must_use]
#[expect(clippy::print_stderr, reason = "a test program speaks on the terminal")]
pub fn skip_all(suite: &str, trials: &[Trial], reason: &str) -> ExitCode {
    let arguments = Arguments::from_args();
    let ignored = |trial: &Trial| {
        let name = format!("{suite}::{}", trial.name);
        libtest_mimic::Trial::test(name, || Ok(())).with_ignored_flag(true)
    };
    if !arguments.list {
        eprintln!("skipped: {} trials of {suite}: {reason}", trials.len());
    }
    libtest_mimic::run(&arguments, trials.iter().map(ignored).collect()).exit_code()
}

/// Deletes what a trial that failed half-way left behind, and names it: a session that is not tied to
/// its owner would outlive this program. One whose owner let go of it may still be on its way out.
fn clear(context: &Context) -> Result<Vec<String>, TrialError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = context.client();
        let mut left = Vec::new();
        for info in client.list().await? {
            if client.delete(&info.id).await? && !info.tied_to_owner {
                left.push(info.id.to_string());
            }
        }
        Ok(left)
    })
}

fn perform(name: &str, context: Context, trial: Trial) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Failed::from(error.to_string()))?;
    // A panic unwinds through here and drops the trial's sessions with the runtime: a session that
    // its owner let go of ends.
    let Trial { body, user, .. } = trial;
    let most = if context.full { FULL_TRIAL } else { TRIAL };
    // A pod takes seconds to be there, and trials make many.
    let most = if context.backend.name() == "kubernetes" { most.max(POD_TRIAL) } else { most };
    let body = AS.scope(user, async { tokio::time::timeout(most, body(context)).await });
    let outcome = runtime.block_on(body);
    match outcome {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => match error.downcast::<Skip>() {
            Ok(skipped) => note_skipped(name, &skipped.0).map_err(|error| error.to_string().into()),
            // A trial works in a folder of whoever runs it, and root's is none for the rung `landlock`.
            Err(error) if error.to_string().contains("commands would be root") => {
                note_skipped(name, &error.to_string()).map_err(|error| error.to_string().into())
            }
            // Where a machine has no ids for others, nothing can be tried as one of them.
            Err(error)
                if user.is_some() && error.to_string().starts_with("nothing can be done as") =>
            {
                note_skipped(name, &error.to_string()).map_err(|error| error.to_string().into())
            }
            // A pod of one user has nobody else, and no pod has this host's network: both are refused by name.
            Err(error)
                if error.to_string().contains("its pod runs as one user only")
                    || error.to_string().starts_with("pods have no network `host`") =>
            {
                note_skipped(name, &error.to_string()).map_err(|error| error.to_string().into())
            }
            Err(error) => Err(Failed::from(error.to_string())),
        },
        Err(_) => Err(Failed::from(format!("still not over after {most:?}"))),
    }
}

/// Names a trial that was skipped: on the terminal, and to whoever counts.
#[expect(clippy::print_stderr, reason = "a test program speaks on the terminal")]
fn note_skipped(name: &str, reason: &str) -> std::io::Result<()> {
    use std::io::Write;
    let line = format!("skipped {name}: {reason}\n");
    eprint!("{line}");
    let Some(list) = std::env::var_os(SKIPPED) else { return Ok(()) };
    let mut list = std::fs::File::options().append(true).open(list)?;
    list.write_all(line.as_bytes())
}
