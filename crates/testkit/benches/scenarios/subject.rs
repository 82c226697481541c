//! Who is measured.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bastide_testkit::engine::images;

use crate::bare::Bare;
use crate::bwrap;
use crate::docker_exec::DockerExec;
use crate::operation::Operation;
use crate::ours::BastideSubject;
use crate::peers::Peer;
use crate::reference::Reference as ReferenceProcess;
use crate::trees::Trees;
pub(crate) use crate::who::Subject;

/// What is there to measure with.
#[derive(Debug)]
pub(crate) struct Available {
    /// A folder in memory, for everybody's files.
    pub(crate) folder: PathBuf,
    /// A folder on a disk, for what is measured there.
    pub(crate) disk: Option<PathBuf>,
    /// An interpreter that has the reference.
    pub(crate) python: Option<PathBuf>,
    /// The command line of this project.
    pub(crate) cli: Option<PathBuf>,
    /// Whether bubblewrap is installed.
    pub(crate) bwrap: bool,
    /// The command line of sandlock.
    pub(crate) sandlock: Option<PathBuf>,
    /// That of nono.
    pub(crate) nono: Option<PathBuf>,
    /// Where a Docker daemon is that has the images of the tests.
    pub(crate) docker: Option<String>,
}

/// Who is measured on a disk.
#[derive(Debug)]
struct OnDisk {
    ours: BastideSubject,
    /// Who would be used instead of points.
    trees: Trees,
    reference: Option<ReferenceProcess>,
}

/// Everybody who can be measured here.
#[derive(Debug)]
pub(crate) struct Subjects {
    available: Available,
    ours: BastideSubject,
    bare: Bare,
    reference: Option<ReferenceProcess>,
    on_disk: Option<OnDisk>,
    docker: Option<BastideSubject>,
    docker_reference: Option<ReferenceProcess>,
    docker_exec: Option<DockerExec>,
    pub(crate) sandlock: Option<Peer>,
    nono: Option<Peer>,
}

impl Subjects {
    pub(crate) async fn start(available: Available) -> io::Result<Self> {
        let ours = BastideSubject::start(&available.folder, available.python.as_deref()).await?;
        let bare = Bare::new(&available.folder, available.python.as_deref());
        let python = available.python.as_deref();
        let start = |python| ReferenceProcess::start(python, &available.folder, None);
        let reference = python.map(start).transpose()?;
        let on_disk = match &available.disk {
            Some(disk) => Some(OnDisk {
                ours: BastideSubject::start(disk, None).await?,
                trees: Trees::new(disk),
                reference: python
                    .map(|python| ReferenceProcess::start(python, disk, None))
                    .transpose()?,
            }),
            None => None,
        };
        let host = available.docker.as_deref();
        let docker = match host {
            Some(host) => Some(BastideSubject::in_containers(&available.folder, host).await?),
            None => None,
        };
        let in_containers =
            host.zip(python).map(|(host, python)| (python, Some((host, images::BASE))));
        let start = |(python, docker)| ReferenceProcess::start(python, &available.folder, docker);
        let docker_reference = in_containers.map(start).transpose()?;
        let docker_exec = available.docker.as_deref().map(DockerExec::start).transpose()?;
        let folder = &available.folder;
        let sandlock = available.sandlock.as_deref();
        let sandlock = sandlock.map(|program| Peer::sandlock(program, folder)).transpose()?;
        let nono = available.nono.as_deref();
        let nono = nono.map(|program| Peer::nono(program, folder)).transpose()?;
        Ok(Self {
            sandlock,
            nono,
            available,
            ours,
            bare,
            reference,
            on_disk,
            docker,
            docker_reference,
            docker_exec,
        })
    }

    /// Whether somebody is here.
    pub(crate) fn has(&self, subject: Subject) -> bool {
        match subject {
            Subject::Local | Subject::Audited | Subject::Spawn | Subject::Copy => true,
            Subject::Walk
            | Subject::Tar
            | Subject::Git
            | Subject::CopyAll
            | Subject::Reflink
            | Subject::Once => self.on_disk.is_some(),
            Subject::Host => self.available.python.is_some(),
            Subject::Cli => self.available.cli.is_some(),
            Subject::Reference => self.reference.is_some(),
            Subject::Docker => self.docker.is_some(),
            Subject::DockerReference => self.docker_reference.is_some(),
            Subject::DockerExec => self.docker_exec.is_some(),
            Subject::Bwrap => self.available.bwrap,
            Subject::Sandlock => self.sandlock.is_some(),
            Subject::Nono => self.nono.is_some(),
        }
    }

    /// Whether there is a place to measure an operation in.
    pub(crate) fn has_place_for(&self, operation: Operation) -> bool {
        !operation.is_on_disk() || self.on_disk.is_some()
    }

    /// How long somebody takes for an operation, once.
    pub(crate) async fn measure(
        &mut self,
        subject: Subject,
        operation: Operation,
    ) -> io::Result<Duration> {
        let missing = || io::Error::other(format!("{} is not here", subject.name()));
        if let Some(work) = operation.workload() {
            work.make()?;
        }
        let on_disk = self.on_disk.as_mut().filter(|_| operation.is_on_disk());
        match (subject, on_disk) {
            (Subject::Local, Some(disk)) => return disk.ours.measure(operation).await,
            (Subject::Once, Some(disk)) => return disk.ours.measure(operation.once()).await,
            (Subject::Walk, Some(disk)) => {
                let exec = match operation {
                    Operation::JournaledExec(_) => disk.ours.measure(Operation::Exec).await?,
                    _ => Duration::ZERO,
                };
                return Ok(exec + disk.trees.measure(subject, operation)?);
            }
            (_, Some(disk)) if operation.is_of_points() => {
                return disk.trees.measure(subject, operation);
            }
            (Subject::Reference, Some(OnDisk { reference: Some(reference), .. })) => {
                return reference.measure(operation);
            }
            _ => {}
        }
        match subject {
            Subject::Local => self.ours.measure(operation).await,
            Subject::Audited => self.ours.measure_audited(operation).await,
            Subject::Cli => {
                let program = self.available.cli.as_deref().ok_or_else(missing)?;
                self.bare.cli(program)
            }
            Subject::Spawn | Subject::Host | Subject::Copy => self.bare.measure(operation).await,
            Subject::Reference => self.reference.as_mut().ok_or_else(missing)?.measure(operation),
            Subject::Docker => self.docker.as_mut().ok_or_else(missing)?.measure(operation).await,
            Subject::DockerReference => {
                self.docker_reference.as_mut().ok_or_else(missing)?.measure(operation)
            }
            Subject::DockerExec => self.docker_exec.as_ref().ok_or_else(missing)?.run(),
            Subject::Bwrap => bwrap::run(&self.available.folder),
            Subject::Walk
            | Subject::Tar
            | Subject::Git
            | Subject::CopyAll
            | Subject::Reflink
            | Subject::Once => Err(missing()),
            Subject::Sandlock => self.sandlock.as_ref().ok_or_else(missing)?.run(),
            Subject::Nono => self.nono.as_ref().ok_or_else(missing)?.run(),
        }
    }

    /// Ends everything that was started.
    pub(crate) async fn end(self) -> io::Result<()> {
        if let Some(docker) = self.docker {
            docker.end().await?;
        }
        if let Some(docker_exec) = self.docker_exec {
            docker_exec.end()?;
        }
        if let Some(on_disk) = self.on_disk {
            drop(on_disk.reference);
            on_disk.ours.end().await?;
        }
        self.ours.end().await
    }
}
