//! What is done before a session is saved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;

use crate::Result;

type Hook = Arc<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// The hooks of a session.
#[derive(Default)]
pub(crate) struct Hooks {
    registered: Mutex<Registered>,
    /// Whoever runs them, runs all of them.
    running: tokio::sync::Mutex<()>,
    failed: AtomicBool,
}

#[derive(Default)]
struct Registered {
    hooks: Vec<Hook>,
    have_run: bool,
}

impl Hooks {
    pub(crate) fn register(&self, hook: Hook) {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.hooks.push(hook);
        registered.have_run = false;
    }

    /// Whether one ever failed, or was given up in the middle.
    pub(crate) fn have_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Runs all of them in order, unless they ran already; the first failure is the one to tell.
    pub(crate) async fn run(&self) -> Result<()> {
        let _running = self.running.lock().await;
        let hooks = {
            let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
            if registered.have_run {
                return Ok(());
            }
            registered.have_run = true;
            registered.hooks.clone()
        };
        let failed_before = self.have_failed();
        // Whoever stops waiting in the middle has not heard them all out.
        self.failed.store(true, Ordering::Release);
        let mut done = Ok(());
        for hook in hooks {
            let one = hook().await;
            done = done.and(one);
        }
        self.failed.store(failed_before || done.is_err(), Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::{Error, ErrorKind};

    fn hook(count: &Arc<AtomicUsize>, fails: bool) -> Hook {
        let count = Arc::clone(count);
        Arc::new(move || {
            let number = count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match fails {
                    true => Err(Error::new(ErrorKind::Io, format!("hook {number}"))),
                    false => Ok(()),
                }
            })
        })
    }

    #[tokio::test]
    async fn runs_all_of_them_once_and_remembers_a_failure() {
        let (hooks, count) = (Hooks::default(), Arc::new(AtomicUsize::new(0)));
        assert!(hooks.run().await.is_ok() && !hooks.have_failed());
        for fails in [false, true, true, false] {
            hooks.register(hook(&count, fails));
        }
        assert_eq!(hooks.run().await.unwrap_err().message(), "hook 1");
        assert_eq!(count.load(Ordering::SeqCst), 4);
        assert!(hooks.run().await.is_ok(), "they ran already");
        assert!(hooks.have_failed());
        hooks.register(hook(&count, false));
        assert_eq!(hooks.run().await.unwrap_err().message(), "hook 5");
        assert_eq!(count.load(Ordering::SeqCst), 9, "all of them again");
    }
}
