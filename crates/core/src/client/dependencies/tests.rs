//! Dependencies as programs use them.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;

type Log = Arc<Mutex<Vec<&'static str>>>;

fn counting(
    count: &Arc<AtomicUsize>,
) -> impl Fn(Dependencies) -> BoxFuture<'static, Result<Dependency>> + use<> {
    let count = Arc::clone(count);
    move |_| {
        let made = count.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { Ok(Dependency::new(Arc::new(made))) })
    }
}

#[tokio::test]
async fn makes_a_cached_value_once_for_all_who_ask() {
    let (dependencies, count) = (Dependencies::default(), Arc::new(AtomicUsize::new(0)));
    dependencies.bind_factory("a", counting(&count)).unwrap();
    let (one, other) =
        tokio::join!(dependencies.get::<usize>("a"), dependencies.require::<usize>("a", "x"));
    assert!(Arc::ptr_eq(&one.unwrap().unwrap(), &other.unwrap()));
    assert_eq!(count.load(Ordering::SeqCst), 1);
    let copy = dependencies.template_copy();
    assert_eq!(*copy.require::<usize>("a", "x").await.unwrap(), 1, "a session makes its own");
    dependencies.bind_uncached_factory("b", counting(&count)).unwrap();
    for want in [2, 3] {
        assert_eq!(*dependencies.require::<usize>("b", "").await.unwrap(), want);
    }
}

#[tokio::test]
async fn tells_what_is_missing_or_bound_twice() {
    let dependencies = Dependencies::default();
    assert!(dependencies.get::<u8>("a").await.unwrap().is_none());
    let missing = dependencies.require::<u8>("a", "RemoteSnapshot").await.unwrap_err();
    assert_eq!(missing.class(), Some(ErrorClass::DependenciesMissingDependencyError));
    assert!(missing.message().starts_with("Missing dependency `a` for RemoteSnapshot. Bind it"));
    dependencies.bind_value("a", Arc::new(1_u8)).unwrap();
    let twice = dependencies.bind_value("a", Arc::new(1_u8)).unwrap_err();
    assert_eq!(twice.class(), Some(ErrorClass::DependenciesBindingError));
    assert_eq!(twice.message(), "Dependency `a` is already bound");
    assert_eq!(
        dependencies.bind_value("", Arc::new(1)).unwrap_err().class(),
        Some(ErrorClass::ValueError)
    );
    assert_eq!(
        dependencies.get::<u16>("a").await.unwrap_err().class(),
        Some(ErrorClass::TypeError)
    );
    dependencies.rebind_value("a", Arc::new(2_u8)).unwrap();
    assert_eq!(*dependencies.require::<u8>("a", "").await.unwrap(), 2);
}

#[tokio::test]
async fn keeps_no_failure() {
    let (dependencies, count) = (Dependencies::default(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    let make = move |_| -> BoxFuture<'static, Result<Dependency>> {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            if first {
                return Err(Error::new(ErrorKind::Timeout, "too slow").with_context("k", 1));
            }
            Ok(Dependency::new(Arc::new(5_u8)))
        })
    };
    dependencies.bind_factory("a", make).unwrap();
    let failed = dependencies.require::<u8>("a", "").await.unwrap_err();
    assert_eq!((failed.kind(), failed.message()), (ErrorKind::Timeout, "too slow"));
    assert_eq!(failed.context()["k"], 1);
    assert_eq!(*dependencies.require::<u8>("a", "").await.unwrap(), 5);
}

/// A factory that waits, and says that it has begun.
fn waiting(
    begun: &Arc<Notify>,
) -> impl Fn(Dependencies) -> BoxFuture<'static, Result<Dependency>> + use<> {
    let begun = Arc::clone(begun);
    move |_| {
        let begun = Arc::clone(&begun);
        Box::pin(async move {
            begun.notify_one();
            std::future::pending().await
        })
    }
}

#[tokio::test]
async fn gives_up_what_is_bound_again_or_closed_meanwhile() {
    for is_closed in [false, true] {
        let (dependencies, begun) = (Dependencies::default(), Arc::new(Notify::new()));
        dependencies.bind_factory("a", waiting(&begun)).unwrap();
        let asking = tokio::spawn({
            let dependencies = dependencies.clone();
            async move { dependencies.get::<u8>("a").await }
        });
        begun.notified().await;
        let want = match is_closed {
            false => {
                dependencies.rebind_value("a", Arc::new(9_u8)).unwrap();
                ErrorClass::DependenciesBindingError
            }
            true => {
                dependencies.close().await;
                ErrorClass::DependenciesError
            }
        };
        assert_eq!(asking.await.unwrap().unwrap_err().class(), Some(want));
    }
}

#[tokio::test]
async fn closes_what_it_made_the_youngest_first_and_nothing_else() {
    let (dependencies, log) = (Dependencies::default(), Log::default());
    for (key, fails) in [("one", false), ("two", true), ("three", false)] {
        let log = Arc::clone(&log);
        let make = move |_| -> BoxFuture<'static, Result<Dependency>> {
            let log = Arc::clone(&log);
            Box::pin(async move {
                Ok(Dependency::closed_by(Arc::new(()), move |_| async move {
                    log.lock().unwrap().push(key);
                    match fails {
                        true => Err(Error::new(ErrorKind::Io, "stuck")),
                        false => Ok(()),
                    }
                }))
            })
        };
        dependencies.bind_factory(key, make).unwrap();
    }
    dependencies.bind_value("bound", Arc::new(1_u8)).unwrap();
    for key in ["three", "one", "two", "one"] {
        dependencies.require::<()>(key, "").await.unwrap();
    }
    dependencies.close().await;
    dependencies.close().await;
    assert_eq!(*log.lock().unwrap(), ["two", "one", "three"]);
    assert_eq!(
        dependencies.get::<()>("one").await.unwrap_err().class(),
        Some(ErrorClass::DependenciesError)
    );
    assert_eq!(*dependencies.require::<u8>("bound", "").await.unwrap(), 1);
}
