//! Looking at many pods for the price of few requests: whoever asks after one session and then after another is likely to
//! ask after all, so the second question lists them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bastide::Result;
use tokio::time::Instant;

use crate::cluster::{Call, Cluster};
use crate::objects::Pod;
use crate::pod::HOME_LABEL;

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
        home: &str,
        name: &str,
    ) -> Result<Option<Pod>> {
        let namespace_key = format!("{}/{}", cluster.server, cluster.namespace);
        let lists = match self.lookup(&namespace_key, name) {
            CacheLookup::Pod(pod) => return Ok(pod.map(|pod| *pod)),
            CacheLookup::OthersAsked => true,
            CacheLookup::Nothing => false,
        };
        let path = cluster.path("/api/v1", "pods");
        if !lists {
            let call = Call::get(format!("{path}/{name}"), format!("look at the pod {name}"));
            let found = cluster.find(call).await?;
            self.note(namespace_key, None);
            return Ok(found);
        }
        let pods: Vec<Pod> = cluster
            .list(&path, &format!("{HOME_LABEL}={home}"), "list the pods of this home")
            .await?;
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
                // One that was not listed was not there; that is told once as well.
                None => {
                    pods.insert(name.to_owned(), None);
                    CacheLookup::Pod(None)
                }
                Some(pod @ Some(_)) => CacheLookup::Pod(pod.take().map(Box::new)),
                Some(None) => CacheLookup::Nothing,
            },
        }
    }

    fn note(&self, namespace_key: String, pods: Option<HashMap<String, Option<Pod>>>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(namespace_key, CachedPods { at: Instant::now(), pods });
    }
}

enum CacheLookup {
    Pod(Option<Box<Pod>>),
    OthersAsked,
    Nothing,
}
