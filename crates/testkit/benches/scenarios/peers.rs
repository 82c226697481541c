//! Other tools that confine one command: told to confine as much as they can, and to show as much as we do.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a sandbox of ours shows of this machine.
const SHOWN: [&str; 6] = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/dev"];

/// A tool of somebody else's.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    program: PathBuf,
    /// Its options, up to the command.
    options: Vec<String>,
    workspace: PathBuf,
}

impl Peer {
    /// Sandlock: Landlock, seccomp and a supervisor, no namespaces.
    pub(crate) fn sandlock(program: &Path, folder: &Path) -> io::Result<Self> {
        let mut peer = Self::new(program, &folder.join("sandlock"))?;
        peer.options.push("run".to_owned());
        for path in SHOWN.into_iter().filter(|path| Path::new(path).exists()) {
            peer.options.extend(["-r".to_owned(), path.to_owned()]);
        }
        peer.options.extend(["-w".to_owned(), peer.workspace.to_string_lossy().into_owned()]);
        Ok(peer)
    }

    /// nono: Landlock and a supervisor.
    pub(crate) fn nono(program: &Path, folder: &Path) -> io::Result<Self> {
        let mut peer = Self::new(program, &folder.join("nono"))?;
        let workspace = peer.workspace.to_string_lossy().into_owned();
        let words = ["run", "--silent", "--no-audit", "--block-net", "--allow"];
        peer.options.extend(words.into_iter().map(str::to_owned));
        peer.options.push(workspace);
        Ok(peer)
    }

    fn new(program: &Path, workspace: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(workspace)?;
        let (program, workspace) = (program.to_owned(), workspace.to_owned());
        Ok(Self { program, options: Vec::new(), workspace })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options).arg("--").current_dir(&self.workspace);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// A new sandbox, to the end of its first command, whose output is here.
    pub(crate) fn run(&self) -> io::Result<Duration> {
        let started = Instant::now();
        let output = self.command().args(["echo", "hello"]).output()?;
        let took = started.elapsed();
        self.check(output.stdout.ends_with(b"hello\n"))?;
        Ok(took)
    }

    /// As many at the same moment: what each took, in milliseconds.
    pub(crate) fn burst(&self, many: usize) -> io::Result<Vec<f64>> {
        let one = || {
            let started = Instant::now();
            let status = self.command().arg("true").stdout(Stdio::null()).status()?;
            self.check(status.success())?;
            Ok(started.elapsed().as_secs_f64() * 1e3)
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..many).map(|_| scope.spawn(one)).collect();
            let failed = |_| io::Error::other("a thread panicked");
            all.into_iter().map(|one| one.join().map_err(failed)?).collect()
        })
    }

    fn check(&self, is_fine: bool) -> io::Result<()> {
        match is_fine {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} failed", self.program.display()))),
        }
    }
}
