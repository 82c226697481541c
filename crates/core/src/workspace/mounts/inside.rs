//! Mounting with a program inside the sandbox.

use std::time::Duration;

use bastide_model::manifest::MountTarget;
use bastide_model::mount::{
    HelperRun, MountPattern, MountSite, MountSource, MountStep, RcloneMode,
};
use bastide_model::{Error, Manifest, PosixPath};
use tokio::time::Instant;
use uuid::Uuid;

use super::cause;
use super::commands::{ROOT, find, remove_private, run, write_private};
use super::table::MountTable;
use crate::compat::raise;
use crate::{Command, ErrorKind, ExitReason, Output, Result, Session};

/// How long a program that mounts may take, where it has no limit of its own.
const HELPER: Duration = Duration::from_secs(60);

/// How long a mount may take to show up once its program has said that it is done.
const APPEARS: Duration = Duration::from_secs(30);

/// How long the first listing may take.
const LISTING: Duration = Duration::from_secs(60);

/// How long one attempt to unmount may take.
const UNMOUNTING: Duration = Duration::from_secs(30);

/// How long to wait before looking again, or trying again.
const AGAIN: Duration = Duration::from_millis(100);
const NEXT_ATTEMPT: Duration = Duration::from_secs(1);

/// How much of what a program says is kept.
const SAID: usize = 64 * 1024;

/// The longest configuration of the user's that is read.
const MAX_CONFIG: u64 = 1 << 20;

/// One mount of a session, with a program inside.
pub(super) struct InsideMount<'a> {
    pub(super) session: &'a Session,
    pub(super) manifest: &'a Manifest,
    pub(super) target: &'a MountTarget<'a>,
    pub(super) backend: &'a str,
    pub(super) session_id: Uuid,
}

/// Files that were written for a program: the path it is told in its plan, and where the file is.
#[derive(Default)]
struct PrivateFiles {
    moved: Vec<(String, String)>,
    folders: Vec<String>,
}

impl PrivateFiles {
    fn path_of(&self, argument: &str) -> String {
        let found = self.moved.iter().find(|(planned, _)| planned == argument);
        found.map_or_else(|| argument.to_owned(), |(_, real)| real.clone())
    }
}

impl InsideMount<'_> {
    fn site(&self) -> MountSite<'_> {
        MountSite {
            manifest: self.manifest,
            session_id: self.session_id,
            backend: self.backend,
            has_volumes: true,
        }
    }

    fn mount_point(&self) -> PosixPath {
        self.target.path.normalized()
    }

    /// Mounts, and sees that it answers. When this fails nothing is mounted, and nothing that was written
    /// for it is left. Says which folder has to stay as long as the mount does.
    pub(super) async fn mount(&self) -> Result<Option<String>> {
        let mounting = self.target.mount.mounting(self.site(), self.target.path.clone())?;
        let file = match mounting.file_to_read() {
            Some(path) => {
                let files = self.session.files_as(ROOT);
                let read = files.read_bounded(path.as_str(), MAX_CONFIG).await;
                Some(read.map_err(|error| match error.kind() {
                    ErrorKind::NotFound => error,
                    _ => mounting.unreadable(),
                })?)
            }
            None => None,
        };
        let steps = mounting.plan(file.as_deref())?.steps;
        let mut files = PrivateFiles::default();
        let done = match self.execute(&steps, &mut files).await {
            Ok(()) => self.prove().await,
            Err(error) => Err(error),
        };
        let keeps_file = matches!(self.target.mount.source, MountSource::Box(_));
        if done.is_err() {
            // The first failure is the one to tell.
            drop(self.unmount().await);
        }
        let kept = files.folders.first().cloned().filter(|_| done.is_ok() && keeps_file);
        for folder in files.folders.iter().filter(|folder| Some(*folder) != kept.as_ref()) {
            // Whoever mounts has read it; only Box's tokens are written back.
            remove_private(self.session, folder).await;
        }
        done.map(|()| kept)
    }

    async fn execute(&self, steps: &[MountStep], files: &mut PrivateFiles) -> Result<()> {
        let mut program = None;
        for step in steps {
            match step {
                MountStep::Require(tool) => program = find(self.session, tool).await?.or(program),
                MountStep::MakeFolder(path) if *path == self.mount_point() => {
                    self.make_mount_point().await?;
                }
                MountStep::MakeFolder(path) if !self.is_for_private_file(path, steps) => {
                    self.session.files_as(ROOT).mkdir_all(path.as_str()).await?;
                }
                MountStep::LeaveOutOfSnapshots(path)
                    if !self.is_for_private_file(&self.absolute(path), steps) =>
                {
                    self.session.life.skip(path.clone());
                }
                MountStep::MakeFolder(_) | MountStep::LeaveOutOfSnapshots(_) => {}
                MountStep::WritePrivateFile { path, content } => {
                    let name = path.names().next_back().unwrap_or("config").to_owned();
                    let folder = write_private(self.session, &name, content).await?;
                    let folder = folder.ok_or_else(|| {
                        self.failed("no file that only root can read can be made in /dev/shm")
                    })?;
                    files.moved.push((self.absolute(path).to_string(), format!("{folder}/{name}")));
                    files.folders.push(folder);
                }
                MountStep::Run(helper) => {
                    self.run_helper(helper, program.as_deref(), files).await?;
                }
                MountStep::Unmount(_) | MountStep::EndServers { .. } => {}
            }
        }
        Ok(())
    }

    fn absolute(&self, path: &PosixPath) -> PosixPath {
        self.manifest.root_path().join(path).normalized()
    }

    /// Whether a folder of the plan is only there for a file that is elsewhere here.
    fn is_for_private_file(&self, folder: &PosixPath, steps: &[MountStep]) -> bool {
        steps.iter().any(|step| match step {
            MountStep::WritePrivateFile { path, .. } => {
                let file = self.absolute(path);
                file.below(folder).is_some_and(|name| name.depth() == 1)
            }
            _ => false,
        })
    }

    /// Makes the folder that is mounted on. Nothing may be in it, because nobody would see it any more;
    /// and no link may lead there, because something else would be hidden.
    async fn make_mount_point(&self) -> Result<()> {
        let place = self.mount_point();
        let files = self.session.files_as(ROOT);
        files.mkdir_all(place.as_str()).await?;
        let root = self.manifest.root_path().normalized();
        let mut step = root.clone();
        for name in place.below(&root).iter().flat_map(PosixPath::names) {
            step = step.join(&PosixPath::new(name));
            if !files.lstat(step.as_str()).await?.is_dir() {
                return Err(self.refused(&format!("{step} is a link")));
            }
        }
        if !files.ls(place.as_str()).await?.is_empty() {
            return Err(self.refused("there is something in it already"));
        }
        Ok(())
    }

    async fn run_helper(
        &self,
        helper: &HelperRun,
        program: Option<&str>,
        files: &PrivateFiles,
    ) -> Result<()> {
        let mut argv: Vec<String> = helper.argv.iter().map(|word| files.path_of(word)).collect();
        if let (Some(name), Some(program)) = (argv.first_mut(), program)
            && program.ends_with(&format!("/{name}"))
        {
            program.clone_into(name);
        }
        self.probe_store(&argv).await?;
        let mut command = Command::new(argv.iter().map(String::as_str)).output_limit(SAID);
        for (key, value) in &helper.env {
            command = command.env(*key, &**value);
        }
        if helper.in_background {
            return self.session.launch_unrecorded(command.user(ROOT)).await.map(drop);
        }
        let time_limit = helper.timeout.unwrap_or(HELPER);
        let mut output = run(self.session, command.clone(), time_limit).await?;
        for _ in 1..helper.attempts {
            if output.exit.code == 0 {
                break;
            }
            tokio::time::sleep(NEXT_ATTEMPT).await;
            output = run(self.session, command.clone(), time_limit).await?;
        }
        match output.exit.code == 0 {
            true => Ok(()),
            false => Err(self.explained(helper.failed(&output.stderr), &output)),
        }
    }

    /// Asks the store before it is mounted: rclone mounts whatever it is told, and every access fails then.
    async fn probe_store(&self, argv: &[String]) -> Result<()> {
        let Some(MountPattern::Rclone(pattern)) = self.target.mount.strategy.pattern() else {
            return Ok(());
        };
        let at = match pattern.mode {
            RcloneMode::Fuse => 2,
            RcloneMode::Nfs => 3,
        };
        let config = argv.iter().position(|word| word == "--config");
        let (Some(program), Some(remote), Some(config)) =
            (argv.first(), argv.get(at), config.and_then(|at| argv.get(at + 1)))
        else {
            return Ok(());
        };
        if !remote.contains(':') {
            // The client of a server that was asked already.
            return Ok(());
        }
        let output = self.list_remote(program, remote, config).await?;
        if output.exit.code == 0 {
            return Ok(());
        }
        let is_missing = cause::named_in(&output.stderr) == cause::named_in(b"directory not found");
        let bucket = remote.trim_end_matches('/').split_once('/').map(|(bucket, _)| bucket);
        if let (true, Some(bucket)) = (is_missing, bucket) {
            // A prefix is a folder that is there once something is in it.
            let output = self.list_remote(program, bucket, config).await?;
            if output.exit.code == 0 {
                return Ok(());
            }
        }
        let failed = raise::mount_command("rclone lsf", None);
        Err(self.explained(failed, &output))
    }

    async fn list_remote(&self, program: &str, remote: &str, config: &str) -> Result<Output> {
        let argv = [
            program,
            "lsf",
            remote,
            "--config",
            config,
            "--max-depth",
            "1",
            "--retries",
            "1",
            "--low-level-retries",
            "1",
            "--contimeout",
            "10s",
            "--timeout",
            "15s",
        ];
        run(self.session, Command::new(argv).output_limit(SAID), HELPER).await
    }

    /// Waits until the mount is there, and has it list what is in it.
    async fn prove(&self) -> Result<()> {
        let place = self.mount_point();
        let deadline = Instant::now() + APPEARS;
        while MountTable::read(self.session).await?.at(place.as_str()).is_none() {
            if Instant::now() > deadline {
                return Err(self.failed("its program succeeded, and nothing is mounted"));
            }
            tokio::time::sleep(AGAIN).await;
        }
        self.list().await
    }

    /// Has the mount list what is in it.
    async fn list(&self) -> Result<()> {
        let place = self.mount_point();
        let list = Command::new(["ls", "-A", "--", place.as_str()]).output_limit(SAID);
        let output = run(self.session, list, LISTING).await?;
        if output.exit.reason == ExitReason::Timeout {
            let limit = LISTING.as_secs();
            return Err(
                self.failed(&format!("the store did not list what is in it within {limit} s"))
            );
        }
        match output.exit.code {
            0 => Ok(()),
            _ => Err(self.explained(raise::mount_command("ls", None), &output)),
        }
    }

    /// Whether something that looks like this mount is there and answers.
    pub(super) async fn is_live(&self) -> Result<bool> {
        let table = MountTable::read(self.session).await?;
        let Some(mounted) = table.at(self.mount_point().as_str()) else { return Ok(false) };
        let is_kind = match self.target.mount.strategy.pattern() {
            Some(MountPattern::Rclone(rclone)) if rclone.mode == RcloneMode::Nfs => {
                mounted.kind.starts_with("nfs")
            }
            Some(MountPattern::S3Files(_)) | None => true,
            Some(_) => mounted.kind.starts_with("fuse"),
        };
        let as_asked = mounted.read_only == self.target.mount.read_only;
        Ok(is_kind && as_asked && self.list().await.is_ok())
    }

    /// Whether anything is mounted there.
    pub(super) async fn is_mounted(&self) -> Result<bool> {
        Ok(MountTable::read(self.session).await?.at(self.mount_point().as_str()).is_some())
    }

    /// Unmounts: with each command of the plan until nothing is mounted there any more. What is in use
    /// stays, and its program with it, so that no file of it is lost.
    pub(super) async fn unmount(&self) -> Result<()> {
        let plan = self.target.mount.detaching(self.site(), &self.mount_point())?;
        for step in &plan.steps {
            match step {
                MountStep::Unmount(commands) => {
                    for argv in commands {
                        if !self.is_mounted().await? {
                            break;
                        }
                        let argv = argv.iter().map(String::as_str);
                        let command = Command::new(argv).output_limit(SAID);
                        drop(run(self.session, command, UNMOUNTING).await?);
                    }
                    if self.is_mounted().await? {
                        return Err(self.in_use());
                    }
                }
                MountStep::EndServers { remote_name } => self.end_servers(remote_name).await?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends what serves the remote over NFS; what answers for FUSE ends with its mount.
    async fn end_servers(&self, remote: &str) -> Result<()> {
        let remote = format!("{remote}:");
        for process in self.session.list_processes().await? {
            let argv: Vec<&str> = process.argv.iter().map(String::as_str).collect();
            if let [program, "serve", "nfs", served, ..] = argv.as_slice()
                && program.ends_with("rclone")
                && served.starts_with(&remote)
                && process.exit.is_none()
            {
                self.session.kill_unrecorded(process.id).await?;
            }
        }
        Ok(())
    }

    fn in_use(&self) -> Error {
        let place = self.mount_point();
        let message = format!("{place} cannot be unmounted: a command uses it; end that first");
        raise::mount_command("umount", None).with_message(message).with_safe_message()
    }

    fn refused(&self, why: &str) -> Error {
        let message = format!("nothing can be mounted at {}: {why}", self.mount_point());
        raise::mount_config(message).with_safe_message()
    }

    fn failed(&self, why: &str) -> Error {
        let (kind, place) = (self.target.mount.type_name(), self.mount_point());
        let message = format!("cannot mount the {kind} at {place}: {why}");
        raise::mount_command("mount", None).with_message(message).with_safe_message()
    }

    /// The failure of a program, with the cause that it names. What it said itself stays in the context,
    /// which does not leave the session where there are credentials.
    fn explained(&self, error: Error, output: &Output) -> Error {
        let cause = cause::named_in(&output.stderr);
        let cause =
            cause.or_else(|| cause::named_in(&output.stdout)).unwrap_or(match output.exit.reason {
                ExitReason::Timeout => "its program did not end in time",
                _ => "its program failed",
            });
        let (kind, place) = (self.target.mount.type_name(), self.mount_point());
        let message = format!("cannot mount the {kind} at {place}: {cause}");
        error.with_message(message).with_safe_message()
    }
}
