//! One thread of this process that puts logs on the disk, each a second after it was written to.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::log::AuditLog;

/// How long something may be written and not on the disk.
const DELAY: Duration = Duration::from_secs(1);

/// How long somebody waits who wants it there now.
const PATIENCE: Duration = Duration::from_secs(10);

enum Wish {
    Soon(Weak<AuditLog>),
    Now(Arc<AuditLog>, oneshot::Sender<()>),
    File(File),
}

/// Puts a log on the disk in a second, if it is still there.
pub(super) fn soon(log: &Arc<AuditLog>) {
    wish(Wish::Soon(Arc::downgrade(log)));
}

/// Puts a log on the disk, and waits for it, if not for ever.
pub(super) async fn now(log: &Arc<AuditLog>) {
    let (done, is_done) = oneshot::channel();
    wish(Wish::Now(Arc::clone(log), done));
    // A disk that does not answer must not keep anybody from ending.
    drop(tokio::time::timeout(PATIENCE, is_done).await);
}

/// Puts a file that is complete on the disk.
pub(super) fn file(file: &File) {
    if let Ok(file) = file.try_clone() {
        wish(Wish::File(file));
    }
}

fn wish(wish: Wish) {
    static WISHES: OnceLock<Option<Sender<Wish>>> = OnceLock::new();
    let wishes = WISHES.get_or_init(|| {
        let (sender, wishes) = mpsc::channel();
        let thread = std::thread::Builder::new().name("bastide-audit".to_owned());
        // Without the thread the kernel puts it on the disk in its own time.
        thread.spawn(move || serve(&wishes)).ok().map(|_| sender)
    });
    if let Some(wishes) = wishes {
        // The thread ends with the process only.
        drop(wishes.send(wish));
    }
}

fn serve(wishes: &mpsc::Receiver<Wish>) {
    let mut due: VecDeque<(Instant, Weak<AuditLog>)> = VecDeque::new();
    loop {
        let wish = match due.front() {
            Some((at, _)) => {
                match wishes.recv_timeout(at.saturating_duration_since(Instant::now())) {
                    Ok(wish) => Some(wish),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            None => match wishes.recv() {
                Ok(wish) => Some(wish),
                Err(_) => return,
            },
        };
        // A disk that fails here fails the next record, too, and that is told.
        match wish {
            Some(Wish::Soon(log)) => due.push_back((Instant::now() + DELAY, log)),
            Some(Wish::Now(log, done)) => {
                drop(log.sync_here());
                drop(log);
                // Whoever waited may have given up.
                let _ = done.send(());
            }
            Some(Wish::File(file)) => drop(file.sync_data()),
            None => {
                if let Some(log) = due.pop_front().and_then(|(_, log)| log.upgrade()) {
                    drop(log.sync_here());
                }
            }
        }
    }
}
