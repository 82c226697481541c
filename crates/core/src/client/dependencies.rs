//! What sessions need of the program around them, by name.
//!
//! A client holds a template. Every session has a copy of its bindings and makes its own values from
//! them; what it made and owns is closed with the session, the youngest first.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::compat::raise;
use crate::{Error, ErrorClass, ErrorKind, Result};

type SharedValue = Arc<dyn Any + Send + Sync>;
type Close = Box<dyn FnOnce() -> BoxFuture<'static, Result<()>> + Send>;
type Factory = Arc<dyn Fn(Dependencies) -> BoxFuture<'static, Result<Dependency>> + Send + Sync>;
type Outcome = Option<std::result::Result<SharedValue, Arc<Error>>>;

/// A value that a factory made.
pub struct Dependency {
    value: SharedValue,
    close: Option<Close>,
}

impl Dependency {
    /// A value that need not be closed.
    pub fn new<T: Any + Send + Sync>(value: Arc<T>) -> Self {
        Self { value, close: None }
    }

    /// A value that is closed with the session that made it.
    pub fn closed_by<T, F>(value: Arc<T>, close: impl FnOnce(Arc<T>) -> F + Send + 'static) -> Self
    where
        T: Any + Send + Sync,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let shared = Arc::clone(&value);
        Self { value: shared, close: Some(Box::new(move || Box::pin(close(value)))) }
    }
}

impl fmt::Debug for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dependency").field("is_owned", &self.close.is_some()).finish()
    }
}

/// Values and factories of values, by key. Clones share everything; [`template_copy`] shares only
/// the bindings.
///
/// ```
/// use std::sync::Arc;
///
/// use bastide::{Dependencies, Dependency};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let dependencies = Dependencies::default();
/// dependencies.bind_value("region", Arc::new("eu".to_owned()))?;
/// dependencies.bind_factory("client", |_| {
///     Box::pin(async { Ok(Dependency::closed_by(Arc::new(7_u32), |_| async { Ok(()) })) })
/// })?;
/// assert_eq!(*dependencies.require::<u32>("client", "an example").await?, 7);
/// dependencies.close().await;
/// # Ok::<(), bastide::Error>(())
/// # }).unwrap();
/// ```
///
/// [`template_copy`]: Self::template_copy
#[derive(Clone, Default)]
pub struct Dependencies {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    bindings: BTreeMap<String, Binding>,
    /// Counts bindings, so that what a replaced one makes is known as such.
    generation: u64,
    /// What was made and has to be closed, the oldest first.
    owned: Vec<Close>,
    closing: Option<watch::Receiver<bool>>,
}

struct Binding {
    generation: u64,
    source: Source,
}

enum Source {
    Value(SharedValue),
    Factory { make: Factory, is_cached: bool, made: FactoryState },
}

#[derive(Default)]
enum FactoryState {
    #[default]
    Nothing,
    Running(watch::Receiver<Outcome>, JoinHandle<()>),
    Value(SharedValue),
}

/// What somebody who asks has to do.
enum Lookup {
    Value(SharedValue),
    Wait(watch::Receiver<Outcome>),
    Make(Factory),
    Missing,
}

impl Dependencies {
    /// Binds a value.
    ///
    /// # Errors
    ///
    /// `ValueError` for an empty key, `DependenciesBindingError` for one that is bound.
    pub fn bind_value<T: Any + Send + Sync>(&self, key: &str, value: Arc<T>) -> Result<()> {
        self.bind(key, Source::Value(value), false)
    }

    /// Binds a value in place of what was bound. A factory call that is under way there is
    /// discarded.
    ///
    /// # Errors
    ///
    /// `ValueError` for an empty key.
    pub fn rebind_value<T: Any + Send + Sync>(&self, key: &str, value: Arc<T>) -> Result<()> {
        self.bind(key, Source::Value(value), true)
    }

    /// Binds a factory that is called once, at the first request. Concurrent requests get the same
    /// value; a failure is not cached.
    ///
    /// # Errors
    ///
    /// As [`bind_value`](Self::bind_value).
    pub fn bind_factory(
        &self,
        key: &str,
        make: impl Fn(Self) -> BoxFuture<'static, Result<Dependency>> + Send + Sync + 'static,
    ) -> Result<()> {
        self.bind_made(key, Arc::new(make), true)
    }

    /// Binds a factory that is called for every request.
    ///
    /// # Errors
    ///
    /// As [`bind_value`](Self::bind_value).
    pub fn bind_uncached_factory(
        &self,
        key: &str,
        make: impl Fn(Self) -> BoxFuture<'static, Result<Dependency>> + Send + Sync + 'static,
    ) -> Result<()> {
        self.bind_made(key, Arc::new(make), false)
    }

    fn bind_made(&self, key: &str, make: Factory, is_cached: bool) -> Result<()> {
        self.bind(key, Source::Factory { make, is_cached, made: FactoryState::Nothing }, false)
    }

    fn bind(&self, key: &str, source: Source, overwrite: bool) -> Result<()> {
        if key.is_empty() {
            return Err(raise::value_error("Dependency key must be non-empty"));
        }
        let mut inner = self.lock();
        if !overwrite && inner.bindings.contains_key(key) {
            return Err(already_bound(key));
        }
        inner.generation += 1;
        let generation = inner.generation;
        let before = inner.bindings.insert(key.to_owned(), Binding { generation, source });
        if let Some(Binding {
            source: Source::Factory { made: FactoryState::Running(_, task), .. },
            ..
        }) = before
        {
            // Whoever waits for it sees that it was given up.
            task.abort();
        }
        Ok(())
    }

    /// The same bindings, with no values made from them yet.
    #[must_use]
    pub fn template_copy(&self) -> Self {
        let inner = self.lock();
        let fresh = |(key, binding): (&String, &Binding)| {
            let source = match &binding.source {
                Source::Value(value) => Source::Value(Arc::clone(value)),
                Source::Factory { make, is_cached, .. } => Source::Factory {
                    make: Arc::clone(make),
                    is_cached: *is_cached,
                    made: FactoryState::Nothing,
                },
            };
            (key.clone(), Binding { generation: binding.generation, source })
        };
        let bindings = inner.bindings.iter().map(fresh).collect();
        let copy = Inner { bindings, generation: inner.generation, ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(copy)) }
    }

    /// The value under a key, made if necessary; `None` if nothing is bound there.
    ///
    /// # Errors
    ///
    /// The factory's own error; `TypeError` if the value has another type; `DependenciesError` if a
    /// factory is needed after the session was closed.
    pub async fn get<T: Any + Send + Sync>(&self, key: &str) -> Result<Option<Arc<T>>> {
        let Some(value) = self.find(key).await? else { return Ok(None) };
        match value.downcast() {
            Ok(value) => Ok(Some(value)),
            Err(_) => {
                let message = format!(
                    "Dependency `{key}` is not a `{}` as it should be",
                    std::any::type_name::<T>()
                );
                Err(raise::type_error(message))
            }
        }
    }

    /// The value under a key; `consumer` names who needs it, for the error.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get); `DependenciesMissingDependencyError` if nothing is bound there.
    pub async fn require<T: Any + Send + Sync>(&self, key: &str, consumer: &str) -> Result<Arc<T>> {
        let found = self.get(key).await?;
        found.ok_or_else(|| {
            let who = if consumer.is_empty() { String::new() } else { format!(" for {consumer}") };
            let message = format!(
                "Missing dependency `{key}`{who}. Bind it on a Dependencies instance and pass it \
                 as `dependencies=` when constructing the sandbox client."
            );
            Error::new(ErrorKind::NotFound, message)
                .with_class(ErrorClass::DependenciesMissingDependencyError)
                .with_hint("bind it with `Dependencies::bind_value` and hand it to `Client::with_dependencies`")
        })
    }

    async fn find(&self, key: &str) -> Result<Option<SharedValue>> {
        let found = self.look(key)?;
        let mut waiting = match found {
            Lookup::Missing => return Ok(None),
            Lookup::Value(value) => return Ok(Some(value)),
            Lookup::Make(make) => {
                let made = make(self.clone()).await?;
                return Ok(Some(self.keep(made)?));
            }
            Lookup::Wait(waiting) => waiting,
        };
        let outcome = waiting.wait_for(Option::is_some).await;
        match outcome.as_deref() {
            Ok(Some(Ok(value))) => Ok(Some(Arc::clone(value))),
            Ok(Some(Err(error))) => Err(again(error)),
            // It was given up: the binding was replaced, or the session closed.
            Ok(None) | Err(_) => match self.lock().closing {
                Some(_) => Err(closed()),
                None => Err(replaced(key)),
            },
        }
    }

    fn look(&self, key: &str) -> Result<Lookup> {
        let mut inner = self.lock();
        let is_closed = inner.closing.is_some();
        let Some(Binding { generation, source }) = inner.bindings.get_mut(key) else {
            return Ok(Lookup::Missing);
        };
        let generation = *generation;
        Ok(match source {
            Source::Value(value) => Lookup::Value(Arc::clone(value)),
            Source::Factory { .. } if is_closed => return Err(closed()),
            Source::Factory { make, is_cached: false, .. } => Lookup::Make(Arc::clone(make)),
            Source::Factory { make, made, .. } => match made {
                FactoryState::Value(value) => Lookup::Value(Arc::clone(value)),
                FactoryState::Running(waiting, _) => Lookup::Wait(waiting.clone()),
                FactoryState::Nothing => {
                    let (reported, waiting) = watch::channel(None);
                    let (own, key, make) = (self.clone(), key.to_owned(), Arc::clone(make));
                    // A task of its own: whoever asked first may stop waiting, others do not.
                    let task = tokio::spawn(async move {
                        let made = make(own.clone()).await;
                        let outcome = own.settle(&key, generation, made).await;
                        drop(reported.send(Some(outcome)));
                    });
                    *made = FactoryState::Running(waiting.clone(), task);
                    Lookup::Wait(waiting)
                }
            },
        })
    }

    /// Keeps what a factory made, unless nobody wants it any more.
    async fn settle(
        &self,
        key: &str,
        generation: u64,
        made: Result<Dependency>,
    ) -> std::result::Result<SharedValue, Arc<Error>> {
        let unwanted = {
            let mut inner = self.lock();
            let is_closed = inner.closing.is_some();
            let binding = inner.bindings.get_mut(key);
            let slot = match binding {
                Some(Binding { generation: now, source: Source::Factory { made, .. } })
                    if *now == generation && !is_closed =>
                {
                    Some(made)
                }
                _ => None,
            };
            match (slot, made) {
                (Some(slot), Ok(Dependency { value, close })) => {
                    *slot = FactoryState::Value(Arc::clone(&value));
                    inner.owned.extend(close);
                    return Ok(value);
                }
                (Some(slot), Err(error)) => {
                    *slot = FactoryState::Nothing;
                    return Err(Arc::new(error));
                }
                (None, made) => made,
            }
        };
        if let Ok(Dependency { close: Some(close), .. }) = unwanted {
            drop(close().await);
        }
        Err(Arc::new(replaced(key)))
    }

    /// Keeps what an uncached factory made only as far as it has to be closed.
    fn keep(&self, made: Dependency) -> Result<SharedValue> {
        let mut inner = self.lock();
        if inner.closing.is_some() {
            return Err(closed());
        }
        inner.owned.extend(made.close);
        Ok(made.value)
    }

    /// Closes every value that needs it, the newest first, each once, even if one fails. Bound
    /// values are not closed. A second call waits for the first.
    pub async fn close(&self) {
        let mut done = {
            let mut inner = self.lock();
            match &inner.closing {
                Some(done) => done.clone(),
                None => {
                    let (reported, done) = watch::channel(false);
                    inner.closing = Some(done.clone());
                    let own = self.clone();
                    // A task of its own: whoever asked may stop waiting.
                    tokio::spawn(async move {
                        own.close_all().await;
                        reported.send_replace(true);
                    });
                    done
                }
            }
        };
        // Nobody tells any more if the task was ended with its runtime; there is nothing left to do.
        drop(done.wait_for(|done| *done).await);
    }

    async fn close_all(&self) {
        let mut running = Vec::new();
        {
            let mut inner = self.lock();
            for binding in inner.bindings.values_mut() {
                if let Source::Factory { made, .. } = &mut binding.source
                    && let FactoryState::Running(_, task) = mem::take(made)
                {
                    task.abort();
                    running.push(task);
                }
            }
        }
        for task in running {
            drop(task.await);
        }
        loop {
            let last = self.lock().owned.pop();
            match last {
                // One that cannot be closed is no reason to keep the others open.
                Some(close) => drop(close().await),
                None => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing that holds it can fail half-way.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Dependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().bindings.keys()).finish()
    }
}

fn binding_error(message: String) -> Error {
    Error::new(ErrorKind::Conflict, message).with_class(ErrorClass::DependenciesBindingError)
}

fn already_bound(key: &str) -> Error {
    binding_error(format!("Dependency `{key}` is already bound"))
}

fn replaced(key: &str) -> Error {
    binding_error(format!("Dependency `{key}` was bound again while it was being made"))
}

fn closed() -> Error {
    let message = "the dependencies of this session are closed";
    Error::new(ErrorKind::Conflict, message).with_class(ErrorClass::DependenciesError)
}

/// A failure that several wait for, for one of them.
fn again(error: &Arc<Error>) -> Error {
    let reported = Error::new(error.kind(), error.message());
    let reported = error
        .context()
        .iter()
        .fold(reported, |reported, (key, value)| reported.with_context(key, value.clone()));
    match error.class() {
        Some(class) => reported.with_class(class),
        None => reported,
    }
}

#[cfg(test)]
mod tests;
