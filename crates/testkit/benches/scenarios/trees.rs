//! What people use instead of points: copies, archives and commits of a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::operation::Operation;
use crate::who::Subject;
use crate::workload::Workload;

/// Folders on a disk, each with what a workspace has.
#[derive(Debug)]
pub(crate) struct Trees {
    folder: PathBuf,
    changes: usize,
}

impl Trees {
    pub(crate) fn new(disk: &Path) -> Self {
        Self { folder: disk.join("trees"), changes: 0 }
    }

    pub(crate) fn measure(
        &mut self,
        subject: Subject,
        operation: Operation,
    ) -> io::Result<Duration> {
        let none = || io::Error::other(format!("`{operation}` is not measured so"));
        let work = operation.workload().ok_or_else(none)?;
        let tree = self.tree(work)?;
        if let Operation::CheckpointChanged(_) = operation {
            self.change(&tree)?;
        }
        let (copy, archive) = (self.folder.join("copy"), self.folder.join("archive"));
        let started = Instant::now();
        match subject {
            Subject::Walk => {
                walk(&tree)?;
                if let Operation::JournaledExec(_) = operation {
                    walk(&tree)?;
                }
            }
            Subject::Tar => {
                run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&tree).arg("."))?;
            }
            Subject::Git => commit(&tree)?,
            Subject::CopyAll => run(Command::new("cp").arg("-a").arg(&tree).arg(&copy))?,
            Subject::Reflink => {
                run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&tree).arg(&copy))?;
            }
            _ => return Err(none()),
        }
        let took = started.elapsed();
        match subject {
            Subject::CopyAll | Subject::Reflink => fs::remove_dir_all(copy)?,
            Subject::Tar => fs::remove_file(archive)?,
            _ => {}
        }
        Ok(took)
    }

    /// A copy of what a workspace has, with all of it in one commit.
    fn tree(&self, work: Workload) -> io::Result<PathBuf> {
        let tree = self.folder.join(work.to_string());
        if !tree.exists() {
            fs::create_dir_all(&self.folder)?;
            run(Command::new("cp").arg("-a").arg(work.folder()).arg(&tree))?;
            if let Workload::Files(_) = work {
                git(&tree, &["init", "--quiet"])?;
                commit(&tree)?;
            }
        }
        Ok(tree)
    }

    /// One file of each folder.
    fn change(&mut self, tree: &Path) -> io::Result<()> {
        let round = self.changes % 100;
        self.changes += 1;
        for folder in 0..100 {
            let path = tree.join(folder.to_string()).join((folder + round * 100).to_string());
            let mut content = fs::read(&path)?;
            content.extend_from_slice(b"changed\n");
            fs::write(&path, content)?;
        }
        Ok(())
    }
}

/// Looks at everything in a folder.
fn walk(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            walk(&entry.path())?;
        }
    }
    Ok(())
}

fn commit(tree: &Path) -> io::Result<()> {
    git(tree, &["add", "-A"])?;
    git(tree, &["commit", "--quiet", "--allow-empty", "-m", "point"])
}

fn git(tree: &Path, arguments: &[&str]) -> io::Result<()> {
    let person = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"];
    // Beside the folder: copies and archives are to be of what is in the workspace alone.
    let mut command = Command::new("git");
    command.arg("--git-dir").arg(tree.with_extension("git")).arg("--work-tree").arg(tree);
    run(command.args(person).args(arguments))
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
