//! How the guest gets into pods without a registry: its parts lie in ConfigMaps, one set for a namespace and version.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bastide::{Error, ErrorKind, Result};
use bastide_guest_bin::{PodFile, pod_files};
use serde_json::{Value, json};

use crate::cluster::{Call, Cluster};
use crate::objects::NamedObject;
use crate::pod::MANAGED;

/// The most bytes of one ConfigMap: a server takes a MiB, names and all.
const MOST_BYTES: usize = 1_000_000;

/// The annotation that says what is in one.
const DIGEST: &str = "bastide.digest";

/// The label of all of them.
pub(crate) const GUEST_LABEL: &str = "bastide.guest";

/// How the guest gets into pods.
#[derive(Debug, Clone)]
pub(crate) struct GuestParts {
    /// The name of all of them together, by their content.
    version: String,
    parts: Vec<GuestPart>,
}

#[derive(Debug, Clone)]
struct GuestPart {
    files: Vec<PodFile>,
    digest: String,
}

impl GuestParts {
    /// The parts of the guest that is embedded in this program.
    pub(crate) fn embedded() -> Result<Self> {
        let damaged = |error: io::Error| {
            Error::new(ErrorKind::Internal, format!("cannot take the guest apart: {error}"))
        };
        let groups = pod_files(MOST_BYTES).map_err(damaged)?;
        let mut whole = blake3::Hasher::new();
        let mut parts = Vec::new();
        for files in groups {
            let mut hasher = blake3::Hasher::new();
            for file in &files {
                hasher.update(file.name.as_bytes()).update(&[0]).update(file.content);
            }
            let digest = hasher.finalize().to_hex().to_string();
            whole.update(digest.as_bytes());
            parts.push(GuestPart { files, digest });
        }
        let version = whole.finalize().to_hex().as_str().get(..16).unwrap_or_default().to_owned();
        Ok(Self { version, parts })
    }

    /// The names of the ConfigMaps.
    pub(crate) fn names(&self) -> Vec<String> {
        (0..self.parts.len()).map(|number| self.name(number)).collect()
    }

    /// The ConfigMaps themselves.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let numbered = self.parts.iter().enumerate();
        numbered.map(|(number, part)| part.object(&self.name(number), &self.version)).collect()
    }

    fn name(&self, number: usize) -> String {
        format!("bastide-guest-{}-{number}", self.version)
    }

    /// Makes what is missing, and refuses what has our name and is something else. The first part is made last, so where it
    /// is, all are.
    pub(crate) async fn ensure(&self, cluster: &Cluster) -> Result<()> {
        if let Some(first) = self.parts.first()
            && first.is_there(cluster, &self.name(0)).await?
        {
            return Ok(());
        }
        for (number, part) in self.parts.iter().enumerate().rev() {
            part.make(cluster, &self.name(number), &self.version).await?;
        }
        Ok(())
    }
}

impl GuestPart {
    async fn is_there(&self, cluster: &Cluster, name: &str) -> Result<bool> {
        let path = cluster.path("/api/v1", "configmaps");
        let what = format!("look at the ConfigMap {name}");
        let call = Call::get(format!("{path}/{name}"), what).metadata();
        let Some(found) = cluster.find::<NamedObject>(call).await? else { return Ok(false) };
        if found.metadata.annotations.get(DIGEST) == Some(&self.digest) {
            return Ok(true);
        }
        let message = format!("the ConfigMap {name} is not the one this version makes");
        Err(Error::new(ErrorKind::Conflict, message)
            .with_hint("somebody in the namespace made it; look at it and remove it"))
    }

    async fn make(&self, cluster: &Cluster, name: &str, version: &str) -> Result<()> {
        let path = cluster.path("/api/v1", "configmaps");
        let what = format!("make the ConfigMap {name}");
        let call = Call::post(path, &self.object(name, version), what);
        match cluster.ask::<NamedObject>(call).await {
            // Somebody else made the same, if it is the same.
            Err(error) if error.status() == Some(409) => {
                self.is_there(cluster, name).await.map(drop)
            }
            Err(error) if error.kind() == ErrorKind::LimitExceeded => Err(error.with_hint(
                "the guest of a version takes two ConfigMaps a namespace; raise count/configmaps",
            )),
            done => done.map(drop),
        }
    }

    fn object(&self, name: &str, version: &str) -> Value {
        let data: serde_json::Map<String, Value> = self
            .files
            .iter()
            .map(|file| (file.name.clone(), STANDARD.encode(file.content).into()))
            .collect();
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": { MANAGED.0: MANAGED.1, GUEST_LABEL: version },
                "annotations": { DIGEST: self.digest },
            },
            "immutable": true,
            "binaryData": data,
        })
    }
}
