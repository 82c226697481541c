//! One watch over the pods of a home in a namespace, for everybody in this process who waits for something there. Pods that came from
//! pools have labels of their own, and a watch of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bastide::{Result, SessionId};
use futures::{Stream, StreamExt};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::Instant;

use crate::Owner;
use crate::cluster::Cluster;
use crate::objects::Pod;
use crate::pod::SESSION_LABEL;
use crate::pool;
use crate::watch::PodEvent;

/// How long a watch stays that nobody waits at: the next may come soon.
const LINGER: Duration = Duration::from_secs(10);

/// How long a watch may say nothing: one whose server is gone without a word is taken for quiet otherwise, by all who come to
/// wait at it. Whoever still waits then opens another.
const QUIET: Duration = Duration::from_secs(60);

/// The watches of a namespace, while there are such, by the label of the home.
#[derive(Debug, Default)]
pub(crate) struct PodFeeds {
    /// Held while a watch is opened, so that all who wait for it have the same.
    current: tokio::sync::Mutex<HashMap<&'static str, Arc<Feed>>>,
}

/// A watch, as long as it is open.
#[derive(Debug, Default)]
struct Feed(Mutex<FeedState>);

#[derive(Debug, Default)]
struct FeedState {
    is_over: bool,
    /// Every pod, as it was last.
    pods: HashMap<String, Pod>,
    waiting: HashMap<String, Vec<UnboundedSender<PodEvent>>>,
    /// Since when nobody waits.
    idle: Option<Instant>,
}

/// What happens to the pods of one session. First comes how each of them is.
#[derive(Debug)]
pub(crate) struct PodFeed(UnboundedReceiver<PodEvent>);

impl PodFeed {
    /// What happens next; `None` when the watch is over: another says first how things are.
    pub(crate) async fn next(&mut self) -> Option<PodEvent> {
        self.0.recv().await
    }
}

impl Feed {
    fn with<T>(&self, act: impl FnOnce(&mut FeedState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Somebody waits for a session; `None` if the watch is over.
    fn join(&self, id: &SessionId) -> Option<PodFeed> {
        self.with(|state| {
            if state.is_over {
                return None;
            }
            let (sender, receiver) = mpsc::unbounded_channel();
            let own = state.pods.values().filter(|pod| session_of(pod) == id.as_str());
            for pod in own {
                // Its other end is right here.
                drop(sender.send(PodEvent::Changed(Box::new(pod.clone()))));
            }
            state.waiting.entry(id.as_str().to_owned()).or_default().push(sender);
            state.idle = None;
            Some(PodFeed(receiver))
        })
    }

    fn hear(&self, event: PodEvent) {
        self.with(|state| {
            let (PodEvent::Changed(pod) | PodEvent::Gone(pod)) = &event;
            let (name, session) = (pod.metadata.name.clone(), session_of(pod).to_owned());
            match &event {
                PodEvent::Changed(pod) => drop(state.pods.insert(name, Pod::clone(pod))),
                PodEvent::Gone(_) => drop(state.pods.remove(&name)),
            }
            if let Some(waiting) = state.waiting.get_mut(&session) {
                waiting.retain(|one| one.send(event.clone()).is_ok());
            }
        });
    }

    /// Whether nobody has waited for long enough.
    fn is_unused(&self) -> bool {
        self.with(|state| {
            state.waiting.retain(|_, waiting| {
                waiting.retain(|one| !one.is_closed());
                !waiting.is_empty()
            });
            if !state.waiting.is_empty() {
                return false;
            }
            let since = *state.idle.get_or_insert_with(Instant::now);
            // Nobody joins one that is over.
            state.is_over = since.elapsed() >= LINGER;
            state.is_over
        })
    }

    /// Everybody who waits hears that it is over.
    fn end(&self) {
        self.with(|state| {
            *state = FeedState { is_over: true, ..FeedState::default() };
        });
    }
}

fn session_of(pod: &Pod) -> &str {
    let labels = &pod.metadata.labels;
    let label = labels.get(SESSION_LABEL).or_else(|| labels.get(pool::SESSION_LABEL));
    label.map_or("", String::as_str)
}

async fn run(feed: Arc<Feed>, events: impl Stream<Item = PodEvent> + Send) {
    tokio::pin!(events);
    let mut look = tokio::time::interval(LINGER / 2);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => {
                    heard = Instant::now();
                    feed.hear(event);
                }
                // Whoever still waits opens another.
                None => break,
            },
            _ = look.tick() => if heard.elapsed() >= QUIET || feed.is_unused() { break },
        }
    }
    feed.end();
}

impl Cluster {
    /// What happens to the pods of a session of the home this is used by, from now on.
    pub(crate) async fn pod_feed(
        &self,
        owner: Owner,
        home: &str,
        id: &SessionId,
    ) -> Result<PodFeed> {
        let label = owner.home_label();
        let mut current = self.feeds.current.lock().await;
        if let Some(feed) = current.get(label).and_then(|feed| feed.join(id)) {
            return Ok(feed);
        }
        let watch = self.watch_pods(&format!("{label}={home}")).await?;
        let feed = Arc::<Feed>::default();
        let joined = feed.join(id);
        tokio::spawn(run(Arc::clone(&feed), watch.events()));
        current.insert(label, feed);
        // One that nobody has ended yet takes everybody.
        Ok(joined.unwrap_or_else(|| PodFeed(mpsc::unbounded_channel().1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, session: &SessionId) -> Box<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = name.to_owned();
        pod.metadata.labels.insert(SESSION_LABEL.to_owned(), session.as_str().to_owned());
        Box::new(pod)
    }

    fn name(event: Option<PodEvent>) -> String {
        match event {
            Some(PodEvent::Changed(pod)) => format!("+{}", pod.metadata.name),
            Some(PodEvent::Gone(pod)) => format!("-{}", pod.metadata.name),
            None => "over".to_owned(),
        }
    }

    #[tokio::test]
    async fn tells_everybody_how_things_are_and_what_is_theirs() {
        let (one, other) = (SessionId::random(), SessionId::random());
        let feed = Feed::default();
        feed.hear(PodEvent::Changed(pod("a", &one)));
        feed.hear(PodEvent::Changed(pod("b", &other)));
        let mut late = feed.join(&one).unwrap();
        feed.hear(PodEvent::Changed(pod("c", &other)));
        feed.hear(PodEvent::Gone(pod("a", &one)));
        assert_eq!(name(late.next().await), "+a");
        assert_eq!(name(late.next().await), "-a");
        let mut others = feed.join(&other).unwrap();
        feed.end();
        assert_eq!(name(late.next().await), "over");
        let mut seen = [name(others.next().await), name(others.next().await)];
        seen.sort();
        assert_eq!(seen, ["+b", "+c"]);
        assert_eq!(name(others.next().await), "over");
        assert!(feed.join(&one).is_none(), "another is opened");
    }

    #[tokio::test(start_paused = true)]
    async fn stays_a_while_when_nobody_waits() {
        let feed = Feed::default();
        let waiting = feed.join(&SessionId::random()).unwrap();
        assert!(!feed.is_unused());
        drop(waiting);
        assert!(!feed.is_unused(), "not at once");
        tokio::time::advance(LINGER).await;
        assert!(feed.is_unused());
        assert!(feed.join(&SessionId::random()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn ends_a_watch_that_says_nothing_though_somebody_waits() {
        let feed = Arc::<Feed>::default();
        let mut waiting = feed.join(&SessionId::random()).unwrap();
        run(Arc::clone(&feed), futures::stream::pending()).await;
        assert_eq!(name(waiting.next().await), "over");
        assert!(feed.join(&SessionId::random()).is_none(), "another is opened");
    }
}
