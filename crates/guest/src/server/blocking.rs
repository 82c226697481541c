//! The one way to the disk: blocking calls on a pool of threads, under a deadline.
//!
//! The threads are our own, not the runtime's: where none can be made the runtime panics, and commands can use up what
//! threads are made of.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bastide_proto::{Fault, FaultKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::call::fault;
use super::credentials::{act, who};

/// How many threads wait for disks at most.
const MAX_THREADS: usize = 64;

/// How long a thread waits for more work before it ends.
const KEEP: Duration = Duration::from_secs(1);

/// How long one piece of work may take. Pieces are small, so whatever takes longer waits for a file
/// system that does not answer.
const MOST: Duration = Duration::from_secs(20);

/// The threads of this process.
static WORKERS: Workers = Workers::new();

type Work = Box<dyn FnOnce() + Send>;

/// Does a small piece of work that may block. It goes on in its thread if it takes too long; the
/// caller does not. A call that acts for a user acts for that user there, too.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let who = who();
    let work = move || match who {
        Some(who) => act(&who, work),
        None => Ok(work()),
    };
    match tokio::time::timeout(MOST, start(work)?).await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) => Err(fault("cannot act for the user", &error)),
        Ok(Err(_)) => Err(Fault::new(FaultKind::Internal, "the guest failed at a file")),
        Err(_) => {
            let message = format!("the file system did not answer within {} s", MOST.as_secs());
            Err(Fault::new(FaultKind::Stuck, message))
        }
    }
}

/// Has a thread do something, and says where its result will be.
pub(crate) fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<oneshot::Receiver<T>, Fault> {
    let (done, result) = oneshot::channel();
    let runtime = Handle::try_current().ok();
    let work = Box::new(move || {
        // What is dropped here may have to be cleared away, which is a task of the runtime's.
        let _entered = runtime.as_ref().map(Handle::enter);
        // Whoever waited for it may be gone.
        drop(done.send(work()));
    });
    let make = || std::thread::Builder::new().spawn(|| WORKERS.serve()).map(drop);
    match WORKERS.submit(work, make) {
        Ok(()) => Ok(result),
        Err(error) => Err(fault("no thread can be made for it", &error)),
    }
}

/// Threads that do work in the order in which it comes.
struct Workers {
    queue: Mutex<Queue>,
    wake: Condvar,
}

struct Queue {
    waiting: VecDeque<Work>,
    threads: usize,
    /// Those of them that have nothing to do.
    idle: usize,
}

impl Workers {
    const fn new() -> Self {
        let queue = Queue { waiting: VecDeque::new(), threads: 0, idle: 0 };
        Self { queue: Mutex::new(queue), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nobody panics while holding it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes work. Where no thread has time one more is made; where none can be, those that are busy come to it later.
    /// Without any it is not taken.
    fn submit(&self, work: Work, make: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut queue = self.lock();
        if queue.idle <= queue.waiting.len() && queue.threads < MAX_THREADS {
            match make() {
                Ok(()) => queue.threads += 1,
                Err(error) if queue.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        queue.waiting.push_back(work);
        self.wake.notify_one();
        Ok(())
    }

    /// The life of a thread.
    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            while let Some(work) = queue.waiting.pop_front() {
                drop(queue);
                work();
                queue = self.lock();
            }
            queue.idle += 1;
            let (woken, waited) =
                self.wake.wait_timeout(queue, KEEP).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if waited.timed_out() && queue.waiting.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    fn none() -> io::Result<()> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn takes_no_work_that_nobody_could_ever_do() {
        let workers = Workers::new();
        assert!(workers.submit(Box::new(|| {}), none).is_err());
        assert!(workers.lock().waiting.is_empty(), "it would be done after it was refused");
    }

    #[test]
    fn does_all_of_it_with_as_many_threads_as_there_can_be() {
        let workers = Arc::new(Workers::new());
        let (sender, receiver) = mpsc::channel();
        let serving = Arc::clone(&workers);
        let mut made =
            Some(move || std::thread::Builder::new().spawn(move || serving.serve()).map(drop));
        for number in 0..100 {
            let sender = sender.clone();
            let make = || made.take().map_or_else(none, |make| make());
            workers.submit(Box::new(move || sender.send(number).unwrap()), make).unwrap();
        }
        let done: Vec<i32> = (0..100).map(|_| receiver.recv_timeout(MOST).unwrap()).collect();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn ends_threads_that_have_nothing_to_do() {
        let workers = Arc::new(Workers::new());
        let serving = Arc::clone(&workers);
        let (sender, receiver) = mpsc::channel();
        let make = move || {
            let serve = move || {
                serving.serve();
                sender.send(()).unwrap();
            };
            std::thread::Builder::new().spawn(serve).map(drop)
        };
        workers.submit(Box::new(|| {}), make).unwrap();
        receiver.recv_timeout(MOST).unwrap();
        let queue = workers.lock();
        assert_eq!((queue.threads, queue.idle), (0, 0));
    }
}
