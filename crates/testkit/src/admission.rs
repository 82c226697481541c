//! Homes with room for so many sessions, and many who want one.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bastide::model::Manifest;
use bastide::{Client, Condition, CreateOptions};

use crate::suite::Outcome;

/// Many sessions at once, with room for few: shown on a home of its own.
///
/// # Errors
///
/// Fails if there were ever more than there is room for, or if one was not served.
pub async fn storm(client: &Client, many: usize, room: usize) -> Outcome {
    let live = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let mut all = Vec::new();
    for _ in 0..many {
        let (client, live, most) = (client.clone(), Arc::clone(&live), Arc::clone(&most));
        all.push(tokio::spawn(async move {
            let options = CreateOptions::default().detached().wait(Duration::from_secs(600));
            let session = client.create(&Manifest::default(), options).await?;
            let now = live.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            let id = session.id().clone();
            // It counts until nothing of it runs.
            live.fetch_sub(1, Ordering::SeqCst);
            session.delete().await?;
            Ok::<_, bastide::Error>(id)
        }));
    }
    let mut served = HashSet::new();
    for one in all {
        served.insert(one.await??);
    }
    assert_eq!(served.len(), many, "each was served, with a session of its own");
    let most = most.load(Ordering::SeqCst);
    assert!(most <= room, "{most} ran at once, with room for {room}");
    // Who does not wait is told how long the queue is.
    let mut held = Vec::new();
    for _ in 0..room {
        held.push(client.create(&Manifest::default(), CreateOptions::default()).await?);
    }
    let error = client.create(&Manifest::default(), CreateOptions::default()).await.err();
    let error = error.ok_or("there is room for one more")?;
    assert_eq!(error.condition(), Some(&Condition::NoRoom), "{error}");
    assert_eq!(error.context()["running"], room);
    for session in held {
        session.delete().await?;
    }
    Ok(())
}
