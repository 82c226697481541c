//! Looking at many pods for the price of few requests: whoever asks after one session and then after another is likely to
//! ask after all, so the second question lists them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bastide::Result;
use tokio::time::Instant;

use crate::Owner;
use crate::cluster::{Call, Cluster};
use crate::objects::Pod;

/// How long what was listed is believed.
const FRESH: Duration = Duration::from_secs(1);

/// What was seen of the pods of this home lately.
#[derive(Debug, Default)]
pub(crate) struct PodCache {
    last: Mutex<HashMap<String, CachedPods>>,
}

#[derive(Debug)]
struct CachedPods {
    at: Instant,
    /// Pods by name, if they were listed. Each is told once: whoever asks again wants to know what has changed.
    pods: Option<HashMap<String, Option<Pod>>>,
}

impl PodCache {
    /// How a pod is; `None` if there is none of that name.
    pub(crate) async fn get(
        &self,
        cluster: &Cluster,
        owner: Owner,
        home: &str,
        name: &str,
    ) -> Result<Option<Pod>> {
        let label = owner.home_label();
        let namespace_key = format!("{}/{} {label}", cluster.server, cluster.namespace);
        let recalled = self.lookup(&namespace_key, name);
        let path = cluster.path("/api/v1", "pods");
        let one = || Call::get(format!("{path}/{name}"), format!("look at the pod {name}"));
        match recalled {
            CacheLookup::Pod(pod) => return Ok(Some(*pod)),
            CacheLookup::Unlisted => return cluster.find(one()).await,
            CacheLookup::Nothing => {
                let found = cluster.find(one()).await?;
                self.note(namespace_key, None);
                return Ok(found);
            }
            CacheLookup::OthersAsked => {}
        }
        let pods: Vec<Pod> =
            cluster.list(&path, &format!("{label}={home}"), "list the pods of this home").await?;
        let mut pods: HashMap<_, _> =
            pods.into_iter().map(|pod| (pod.metadata.name.clone(), Some(pod))).collect();
        let found = pods.insert(name.to_owned(), None).flatten();
        self.note(namespace_key, Some(pods));
        Ok(found)
    }

    fn lookup(&self, namespace_key: &str, name: &str) -> CacheLookup {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cached) = last.get_mut(namespace_key).filter(|cached| cached.at.elapsed() < FRESH)
        else {
            return CacheLookup::Nothing;
        };
        match &mut cached.pods {
            None => CacheLookup::OthersAsked,
            Some(pods) => match pods.get_mut(name) {
                None => CacheLookup::Unlisted,
                Some(pod) => {
                    pod.take().map_or(CacheLookup::Nothing, |pod| CacheLookup::Pod(Box::new(pod)))
                }
            },
        }
    }

    fn note(&self, namespace_key: String, pods: Option<HashMap<String, Option<Pod>>>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(namespace_key, CachedPods { at: Instant::now(), pods });
    }
}

enum CacheLookup {
    Pod(Box<Pod>),
    /// It is gone, or was made after the others were listed: only the server can tell.
    Unlisted,
    OthersAsked,
    Nothing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_was_listed_once_and_takes_nothing_else_for_gone() {
        let cache = PodCache::default();
        assert!(matches!(cache.lookup("place", "a"), CacheLookup::Nothing));
        cache.note("place".to_owned(), None);
        assert!(matches!(cache.lookup("place", "b"), CacheLookup::OthersAsked));
        let listed = [("a", Some(Pod::default())), ("b", None)];
        let listed = listed.map(|(name, pod)| (name.to_owned(), pod));
        cache.note("place".to_owned(), Some(listed.into()));
        assert!(matches!(cache.lookup("place", "a"), CacheLookup::Pod(_)));
        assert!(matches!(cache.lookup("place", "a"), CacheLookup::Nothing), "it was told");
        assert!(matches!(cache.lookup("place", "b"), CacheLookup::Nothing), "it was told");
        assert!(matches!(cache.lookup("place", "made since"), CacheLookup::Unlisted));
        assert!(matches!(cache.lookup("elsewhere", "a"), CacheLookup::Nothing));
    }
}
