//! One thread of this process that puts logs on the disk, each a second after it was written to.

use std::any::Any;
use std::collections::VecDeque;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::log::AuditLog;

/// How long something may be written and not on the disk.
const DELAY: Duration = Duration::from_secs(1);

/// How long somebody waits who wants it there now.
const TIMEOUT: Duration = Duration::from_secs(10);

enum SyncRequest {
    Soon(Arc<AuditLog>),
    All(oneshot::Sender<()>),
    Now(Arc<AuditLog>, oneshot::Sender<()>),
    File(File),
}

/// Puts a log on the disk in a second.
pub(super) fn soon(log: &Arc<AuditLog>) {
    request(SyncRequest::Soon(Arc::clone(log)));
}

/// Puts a log on the disk, and waits for it, if not for ever.
pub(super) async fn now(log: &Arc<AuditLog>) {
    let (done, is_done) = oneshot::channel();
    request(SyncRequest::Now(Arc::clone(log), done));
    // A disk that does not answer must not keep anybody from ending.
    drop(tokio::time::timeout(TIMEOUT, is_done).await);
}

/// Puts everything on the disk that is not there yet, and waits for it, if not for ever.
pub(in crate::events) async fn flush_all() {
    let (done, is_done) = oneshot::channel();
    request(SyncRequest::All(done));
    drop(tokio::time::timeout(TIMEOUT, is_done).await);
}

/// Puts a file that is complete on the disk.
pub(super) fn file(file: &File) {
    if let Ok(file) = file.try_clone() {
        request(SyncRequest::File(file));
    }
}

/// Whoever puts logs on the disk, and the process it does so in: a forked child has none.
type SyncThread = Option<(u32, Option<Sender<SyncRequest>>)>;

static THREAD: Mutex<SyncThread> = Mutex::new(None);

/// Keeps other threads from asking.
pub(crate) fn lock_for_fork() -> impl Any {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn request(request: SyncRequest) {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if thread.as_ref().is_none_or(|(owner, _)| *owner != pid)
        && let Some((_, inherited)) = thread.replace((pid, start()))
    {
        // Its other end is the parent's.
        let _leaked = ManuallyDrop::new(inherited);
    }
    if let Some((_, Some(requests))) = thread.as_ref() {
        // The thread ends with the process only.
        drop(requests.send(request));
    }
}

fn start() -> Option<Sender<SyncRequest>> {
    let (sender, requests) = mpsc::channel();
    let thread = std::thread::Builder::new().name("bastide-audit".to_owned());
    // Without the thread the kernel puts it on the disk in its own time.
    thread.spawn(move || serve(&requests)).ok().map(|_| sender)
}

fn serve(requests: &mpsc::Receiver<SyncRequest>) {
    let mut due: VecDeque<(Instant, Arc<AuditLog>)> = VecDeque::new();
    loop {
        let request = match due.front() {
            Some((at, _)) => {
                match requests.recv_timeout(at.saturating_duration_since(Instant::now())) {
                    Ok(request) => Some(request),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            None => match requests.recv() {
                Ok(request) => Some(request),
                Err(_) => return,
            },
        };
        // A disk that fails here fails the next record, too, and that is told.
        match request {
            Some(SyncRequest::Soon(log)) => due.push_back((Instant::now() + DELAY, log)),
            Some(SyncRequest::Now(log, done)) => {
                drop(log.sync_here());
                drop(log);
                // Whoever waited may have given up.
                let _ = done.send(());
            }
            Some(SyncRequest::All(done)) => {
                due.drain(..).for_each(|(_, log)| drop(log.sync_here()));
                let _ = done.send(());
            }
            Some(SyncRequest::File(file)) => drop(file.sync_data()),
            None => {
                if let Some((_, log)) = due.pop_front() {
                    drop(log.sync_here());
                }
            }
        }
    }
}
