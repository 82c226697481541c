//! The floor: the same without any sandbox.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::operation::Operation;
use crate::packages;
use crate::workload::Workload;

/// Programs of this machine, as they are.
#[derive(Debug)]
pub(crate) struct Bare {
    folder: PathBuf,
    python: Option<PathBuf>,
}

impl Bare {
    pub(crate) fn new(folder: &Path, python: Option<&Path>) -> Self {
        Self { folder: folder.to_owned(), python: python.map(Path::to_owned) }
    }

    pub(crate) async fn measure(&self, operation: Operation) -> io::Result<Duration> {
        match operation {
            Operation::Exec => spawn(1),
            Operation::ExecMany(count) => spawn(count),
            Operation::Install => self.install(),
            Operation::Restore(work) => self.copy(work),
            other => Err(io::Error::other(format!("`{other}` is not measured without a sandbox"))),
        }
    }

    /// A file read and written again, on the file system of everybody's workspaces.
    fn copy(&self, work: Workload) -> io::Result<Duration> {
        let target = tempfile::tempdir_in(&self.folder)?;
        let (from, to) = (Workload::only_file(&work.folder()), Workload::only_file(target.path()));
        let started = Instant::now();
        std::fs::copy(from, to)?;
        Ok(started.elapsed())
    }

    /// The command line, from its start to its end.
    pub(crate) fn cli(&self, program: &Path) -> io::Result<Duration> {
        let started = Instant::now();
        let status = Command::new(program)
            .args(["run", "--", "true"])
            .env("BASTIDE_HOME", self.folder.join("cli"))
            .stdin(Stdio::null())
            .status()?;
        let took = started.elapsed();
        if status.success() { Ok(took) } else { Err(io::Error::other("`bastide run` failed")) }
    }

    fn install(&self) -> io::Result<Duration> {
        let python = self.python.as_deref().ok_or_else(|| io::Error::other("no interpreter"))?;
        let wheels = packages::make()?;
        let target = tempfile::tempdir_in(&self.folder)?;
        let started = Instant::now();
        let command = packages::install(python, &wheels, target.path());
        let status = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
        let took = started.elapsed();
        if status.success() { Ok(took) } else { Err(io::Error::other("pip failed")) }
    }
}

/// So many programs at the same time, until all are over. Output is collected, as everybody does.
fn spawn(count: usize) -> io::Result<Duration> {
    let started = Instant::now();
    let start = |_| {
        Command::new("/bin/true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    let all: Vec<_> = (0..count).map(start).collect::<io::Result<_>>()?;
    for child in all {
        if !child.wait_with_output()?.status.success() {
            return Err(io::Error::other("/bin/true failed"));
        }
    }
    Ok(started.elapsed())
}
