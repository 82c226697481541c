//! What the command says that keeps a guest running.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

/// The file of a session's folder that it is in.
const NAME: &str = "keeper.log";

/// How many bytes of it are kept.
const MOST: u64 = 64 << 10;

/// How many letters of it are told.
const TOLD: usize = 500;

/// Where the command writes to. The beginning is kept, and the rest is read and thrown away: whoever is root inside can
/// have it say more than a disk holds. What reads it ends with the command, and outlives this process as that does.
pub(crate) fn open(folder: &Path) -> io::Result<OwnedFd> {
    let (reading, writing) = io::pipe()?;
    let script = format!("head -c {MOST}; exec cat > /dev/null");
    let mut reader = Command::new("sh");
    reader.args(["-c", &script]).current_dir("/").process_group(0);
    reader.stdin(reading).stdout(fs::File::create(folder.join(NAME))?).stderr(Stdio::null());
    reader.spawn()?;
    Ok(writing.into())
}

/// How it begins.
pub(crate) fn read(folder: &Path) -> String {
    let log = fs::read(folder.join(NAME)).unwrap_or_default();
    String::from_utf8_lossy(&log).trim().chars().take(TOLD).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn keeps_the_beginning_and_reads_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = fs::File::from(open(folder.path()).unwrap());
        log.write_all(b"this went wrong\n").unwrap();
        // More than the pipe holds: somebody reads all of it.
        log.write_all(&vec![b'x'; 4 << 20]).unwrap();
        assert_eq!(fs::metadata(folder.path().join(NAME)).unwrap().len(), MOST);
        assert!(read(folder.path()).starts_with("this went wrong"));
    }
}
