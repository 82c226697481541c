//! Bringing a sandbox up: it is made, the guest gets in, and receives what the session is.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bastide::backend::Retained;
use bastide::host::process_identity::{ProcessIdentity, kill, note_keeper};
use bastide::host::token;
use bastide::{
    Booted, Connection, Error, ErrorKind, Machine, MachineSpec, NetworkAccess, Result,
    SessionFolder,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{Resolver, ResourceLimits};
use bastide_proto::container::{
    BIN_PATH, ContainerReady, ContainerReport, ContainerSpec, FOLDER, GUEST_PATH, MAX_SPEC,
    RUN_PATH,
};
use bastide_proto::hello::Token;
use bastide_proto::{GuestPath, LENGTH_BYTES, prefixed_length};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use crate::backend::NAME;
use crate::codex;
use crate::defaults::SandboxDefaults;
use crate::dial::{DialStream, dial};
use crate::dialect::Dialect;
use crate::exec_log;
use crate::global::{ANSWER, SIGN_IN, is_stored, sign_in, store};
use crate::options::SbxOptions;
use crate::program::{Call, Sbx, refused};
use crate::receipt::receipt;
use crate::resource_record::{ResourceRecord, SandboxSettings, SignInLock, stop};
use crate::state::State;

/// How long a sandbox may take to be made: its image may have to be fetched first.
const MAKE: Duration = Duration::from_secs(900);

/// How long a small command inside may take; the sandbox may have to start for it.
const INSIDE: Duration = Duration::from_secs(120);

/// How long the guest may take to be there, once it was started.
const ARRIVAL: Duration = Duration::from_secs(60);

/// How long it may take to start what it starts.
const REPORT: Duration = Duration::from_secs(20);

/// How long to wait before calling the guest again.
const AGAIN: Duration = Duration::from_millis(50);

/// The agent of `sbx` whose image has no agent of its own.
const AGENT: &str = "shell";

/// How the command inside ends that looks for what can be written to, and found something.
const WRITABLE: i32 = 73;

/// Everything a boot needs.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) sbx: &'a Sbx,
    pub(crate) dialect: Dialect,
    pub(crate) guest: &'a GuestBinary,
    pub(crate) folder: &'a SessionFolder,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) options: &'a SbxOptions,
    pub(crate) sandbox: String,
    /// Where the workspace is, if the manifest did not say so: a folder of the session's on this host.
    pub(crate) root: Option<GuestPath>,
}

impl Boot<'_> {
    /// Brings the sandbox of a session up.
    pub(crate) async fn run(self) -> Result<Booted> {
        let token = token::load_or_make(self.folder.path()).map_err(|error| self.failed(&error))?;
        let journal = ResourceRecord::load(self.folder.path())?;
        let was_there = match &journal {
            Some(_) => self.sbx.find(&self.sandbox).await?.is_some(),
            None => false,
        };
        let made_with = SandboxSettings::of(self.options);
        let mut journal = journal.unwrap_or_else(|| ResourceRecord {
            program: self.sbx.program().to_owned(),
            sandbox: self.sandbox.clone(),
            signed_in: Vec::new(),
            uses: Vec::new(),
            made_with: SandboxSettings::default(),
            lacks_rules: false,
        });
        self.note(&mut journal, |journal| journal.made_with = made_with).await?;
        match self.start(&token, &mut journal, was_there).await {
            Ok(booted) => Ok(booted),
            Err(error) => {
                // The first failure is the one to tell; a sweep tries again.
                match was_there || !self.folder.is_new() {
                    true => drop(stop(self.sbx, &self.sandbox).await),
                    false => drop(journal.release(self.folder.path()).await),
                }
                Err(error)
            }
        }
    }

    async fn start(
        &self,
        token: &Token,
        journal: &mut ResourceRecord,
        was_there: bool,
    ) -> Result<Booted> {
        self.sign_in(journal).await?;
        if !was_there {
            // On record first: one that is found later, and has no rules yet, is not taken for one that has them.
            self.note(journal, |journal| journal.lacks_rules = true).await?;
            self.make().await?;
        }
        self.set_rules_and_secrets(journal).await?;
        self.install_guest().await?;
        self.check_read_only().await?;
        let defaults = SandboxDefaults::read(self.sbx, &self.sandbox, INSIDE).await?;
        let keeper = self.keep_guest()?;
        if let Err(error) = note_keeper(self.folder.path(), &keeper) {
            end(&keeper);
            return Err(self.failed(&error));
        }
        let greeted = self.greet_guest(&defaults, token, &keeper).await;
        let (stream, up) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                end(&keeper);
                return Err(error);
            }
        };
        let state = State {
            dir: self.folder.path().to_owned(),
            program: self.sbx.program().to_owned(),
            sandbox: self.sandbox.clone(),
            keeper,
            root: self.root.clone(),
        };
        let state = serde_json::to_value(state).map_err(|error| self.failed(&error.into()))?;
        let machine = Machine {
            id: self.folder.id().clone(),
            backend: NAME.to_owned(),
            state,
            receipt: receipt(self.dialect, self.spec, self.options, &up),
            environment: defaults.environment,
            protocol: bastide_proto::VERSION,
        };
        let (stream, token) = (Box::new(stream), token.clone());
        let connection = Some(Connection {
            stream,
            token,
            side: None,
            greeted: false,
            outage: std::time::Duration::ZERO,
        });
        let retained = match (was_there, &self.root) {
            (true, _) => Retained::System,
            // The workspace is on this host, and outlives any sandbox.
            (false, Some(_)) => Retained::Files,
            (false, None) => Retained::Nothing,
        };
        Ok(Booted { machine, connection, keep_alive: None, retained })
    }

    /// Signs in where that was asked for. It holds for the whole machine, so what was not there before is
    /// put on record first, and forgotten with the session.
    async fn sign_in(&self, journal: &mut ResourceRecord) -> Result<()> {
        if self.options.oauth_refresh.is_empty() && self.options.oauth.is_empty() {
            return Ok(());
        }
        let _alone = SignInLock::take(self.folder.path()).await?;
        // Others leave their sign-ins to sessions that rely on them.
        *journal = ResourceRecord::load(self.folder.path())?.unwrap_or_else(|| journal.clone());
        let refreshed = self.options.oauth_refresh.iter().map(|service| (service, true));
        let asked = self.options.oauth.iter().map(|service| (service, false));
        for (service, always) in refreshed.chain(asked) {
            if !journal.uses.contains(service) {
                journal.uses.push(service.clone());
                journal.store(self.folder.path()).map_err(|error| self.failed(&error))?;
            }
            let is_there = is_stored(self.sbx, self.dialect, service, ANSWER).await?;
            if is_there && !always {
                continue;
            }
            if !is_there && !journal.signed_in.contains(service) {
                journal.signed_in.push(service.clone());
                journal.store(self.folder.path()).map_err(|error| self.failed(&error))?;
            }
            sign_in(self.sbx, self.dialect, service, SIGN_IN, None).await?;
        }
        Ok(())
    }

    async fn make(&self) -> Result<()> {
        let args = self.create_args()?;
        self.sbx.check_call(&args, MAKE).await.map(drop)
    }

    fn create_args(&self) -> Result<Vec<OsString>> {
        let mut args: Vec<OsString> = vec!["create".into(), self.dialect.quiet().into()];
        let mut option = |name: &str, value: String| args.extend([name.into(), value.into()]);
        option("--name", self.sandbox.clone());
        if let Some(millis) = self.spec.limits.cpu_millis {
            option("--cpus", millis.div_ceil(1000).max(1).to_string());
        }
        if let Some(bytes) = self.spec.limits.memory {
            option("--memory", format!("{}m", bytes.div_ceil(1 << 20)));
        }
        if let Some(image) = &self.options.template {
            option("--template", image.clone());
        }
        if self.is_closed() && self.dialect.denies_at_create() {
            option("--deny-network", "**".to_owned());
        }
        args.push(AGENT.into());
        args.extend(self.folders()?);
        Ok(args)
    }

    /// Whether no host at all can be reached.
    fn is_closed(&self) -> bool {
        self.spec.network == NetworkAccess::None && self.options.network_allow.is_empty()
    }

    /// The folders of this host inside, each at its own path: the workspace first.
    fn folders(&self) -> Result<Vec<OsString>> {
        let mut folders = Vec::new();
        if let Some(root) = &self.root {
            make_private_folder(Path::new(root.as_str())).map_err(|error| self.failed(&error))?;
            folders.push(root.as_str().into());
        }
        for grant in &self.spec.grants {
            if grant.host.as_os_str().is_empty() {
                continue;
            }
            if grant.path.as_str().contains(':') {
                let message = format!(
                    "{} cannot be granted: sbx takes what follows a colon for an option",
                    grant.path
                );
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("give the folder another name"));
            }
            let host = grant.host.canonicalize().map_err(|error| {
                let what = grant.host.display();
                let message = format!("{what} cannot be granted at {}: {error}", grant.path);
                Error::new(ErrorKind::InvalidInput, message)
            })?;
            if host != Path::new(grant.path.as_str()) {
                let message = format!(
                    "{} cannot be granted at {}: sandboxes of sbx have folders of the host at their \
                     own paths",
                    host.display(),
                    grant.path
                );
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("grant it at its own path, without links on the way"));
            }
            let mut arg = host.into_os_string();
            if grant.read_only {
                arg.push(":ro");
            }
            folders.push(arg);
        }
        Ok(folders)
    }

    /// Puts something on record, beside what others put there meanwhile: their sign-ins, if it relies on one.
    async fn note(
        &self,
        journal: &mut ResourceRecord,
        change: impl FnOnce(&mut ResourceRecord),
    ) -> Result<()> {
        let mut _alone = None;
        if !journal.uses.is_empty() {
            _alone = Some(SignInLock::take(self.folder.path()).await?);
            *journal = ResourceRecord::load(self.folder.path())?.unwrap_or_else(|| journal.clone());
        }
        change(journal);
        journal.store(self.folder.path()).map_err(|error| self.failed(&error))
    }

    /// Which hosts can be reached from this one sandbox.
    async fn give_rules(&self) -> Result<()> {
        let rule = |decision, hosts: &str| self.dialect.rule(decision, &self.sandbox, hosts);
        if self.is_closed() && !self.dialect.denies_at_create() {
            self.sbx.check_call(&rule("deny", "**")?, ANSWER).await?;
        }
        if !self.options.network_allow.is_empty() {
            let hosts = self.options.network_allow.join(",");
            self.sbx.check_call(&rule("allow", &hosts)?, ANSWER).await?;
        }
        Ok(())
    }

    /// Rules and secrets of this one sandbox, which go with it.
    async fn set_rules_and_secrets(&self, journal: &mut ResourceRecord) -> Result<()> {
        if journal.lacks_rules {
            self.give_rules().await?;
            self.note(journal, |journal| journal.lacks_rules = false).await?;
        }
        for (service, value) in &self.options.secrets {
            let args = self.dialect.set_secret(Some(&self.sandbox), service);
            store(self.sbx, &args, &value.0, ANSWER).await?;
        }
        match &self.options.codex_login {
            Some(login) => codex::copy_login(self.sbx, &self.sandbox, login).await,
            None => Ok(()),
        }
    }

    async fn install_guest(&self) -> Result<()> {
        let make = format!(
            "mkdir -p {FOLDER} {BIN_PATH} && rm -rf {RUN_PATH} && mkdir -m 700 {RUN_PATH} && rm -f {GUEST_PATH}"
        );
        let args = ["exec", "-u", "root", &self.sandbox, "sh", "-c", &make];
        self.sbx.check_call(&args, INSIDE).await?;
        let to = format!("{}:{GUEST_PATH}", self.sandbox);
        let args = [OsString::from("cp"), self.guest.path().into(), to.into()];
        self.sbx.check_call(&args, INSIDE).await.map(drop)
    }

    /// Whether everything that is granted for reading only can really not be written to. No release says
    /// what it makes of a folder inside another.
    async fn check_read_only(&self) -> Result<()> {
        let closed: Vec<_> = self.spec.grants.iter().filter(|grant| grant.read_only).collect();
        if closed.is_empty() {
            return Ok(());
        }
        let script = format!(
            "for path; do if [ -w \"$path\" ]; then echo \"$path\"; exit {WRITABLE}; fi; done"
        );
        let fixed = ["exec", "-u", "root", &self.sandbox, "sh", "-c", &script, "sh"];
        let paths = closed.iter().map(|grant| grant.path.as_str());
        let args: Vec<_> = fixed.into_iter().chain(paths).collect();
        let output = self.sbx.call(&args, Call::default(), INSIDE).await?;
        if output.is_success() {
            return Ok(());
        }
        if output.code != Some(WRITABLE) {
            return Err(refused(&args, &output));
        }
        let what = output.text();
        let message = format!(
            "{} can be written to in the sandbox, and is granted for reading only",
            what.trim()
        );
        Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("use another backend, or the mode `clone` for a run"))
    }

    /// Starts the guest. The command that runs it stays for as long as the sandbox does: sandboxes in which
    /// nothing runs are stopped.
    fn keep_guest(&self) -> Result<ProcessIdentity> {
        let args = ["exec", "-u", "root", &self.sandbox, GUEST_PATH, "container"];
        let started = || -> io::Result<ProcessIdentity> {
            let log = exec_log::open(self.folder.path())?;
            let mut command = self.sbx.command(&args);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn()?;
            let pid = child.id().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            ProcessIdentity::of(pid)
        };
        started().map_err(|error| self.sbx.not_started(&error))
    }

    /// Calls the guest until it is there, and tells it what the session is.
    async fn greet_guest(
        &self,
        defaults: &SandboxDefaults,
        token: &Token,
        keeper: &ProcessIdentity,
    ) -> Result<(DialStream, ContainerReady)> {
        let spec = self.container_spec(defaults, token);
        let message = bastide_proto::encode_prefixed(&spec);
        let message = message.map_err(|error| self.failed(&io::Error::other(error)))?;
        let deadline = Instant::now() + ARRIVAL;
        loop {
            let mut stream = dial(self.sbx, &self.sandbox)?;
            let why = match timeout(REPORT, exchange(&mut stream, &message)).await {
                Ok(Ok(ContainerReport::Up(up))) => return Ok((stream, up)),
                Ok(Ok(ContainerReport::Failed(failure))) => {
                    let system = io::Error::from_raw_os_error(failure.errno);
                    let message = format!("cannot {}: {system}", failure.step);
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it does not answer".to_owned(),
            };
            let is_gone = keeper.open().is_ok_and(|process| process.is_none());
            if is_gone || Instant::now() >= deadline {
                // What it said last may be on its way into the log.
                tokio::time::sleep(AGAIN).await;
                let output = exec_log::read(self.folder.path());
                let message =
                    format!("the guest did not start in sandbox {}: {why} {output}", self.sandbox);
                return Err(Error::new(ErrorKind::AgentLost, message.trim_end()));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    fn container_spec(&self, defaults: &SandboxDefaults, token: &Token) -> ContainerSpec {
        let grants = |read_only: bool| {
            let kept = self.spec.grants.iter().filter(move |grant| grant.read_only == read_only);
            kept.map(|grant| grant.path.as_str().to_owned())
        };
        let root = self.root.as_ref().unwrap_or(&self.spec.root).as_str().to_owned();
        let limits = &self.spec.limits;
        ContainerSpec {
            token: token.0,
            user: Some(defaults.user.clone()),
            limits: ResourceLimits {
                memory: None,
                pids: limits.pids,
                cpu_millis: limits.cpu_millis,
                disk: limits.disk,
            },
            writable: std::iter::once(root).chain(grants(false)).collect(),
            readable: grants(true).collect(),
            // What of the host is in a microVM is shared by sbx, under another kernel's numbers and owners.
            identities: Vec::new(),
            writes_to_host: false,
            resolver: Resolver::default(),
            filtered: true,
            new_privileges: false,
            mounts: false,
        }
    }

    fn failed(&self, error: &io::Error) -> Error {
        let (id, dir) = (self.folder.id(), self.folder.path());
        let message = format!("cannot start session {id} in {}: {error}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    }
}

async fn exchange(stream: &mut DialStream, message: &[u8]) -> io::Result<ContainerReport> {
    stream.write_all(message).await?;
    stream.flush().await?;
    let mut prefix = [0; LENGTH_BYTES];
    stream.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, MAX_SPEC).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    bastide_proto::decode::<ContainerReport>(&body).map_err(io::Error::other)
}

/// Ends the process that keeps a guest running.
pub(crate) fn end(keeper: &ProcessIdentity) {
    if let Ok(Some(process)) = keeper.open() {
        // One that has ended meanwhile needs no end.
        drop(kill(&process));
    }
}

fn make_private_folder(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// The folder of a session that is its workspace.
pub(crate) fn workspace_of(folder: &Path) -> PathBuf {
    folder.join("files")
}
