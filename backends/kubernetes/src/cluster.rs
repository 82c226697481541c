//! Talking to an API server: every wait has a deadline, every answer a greatest length, and every failure says
//! what to do next.

use std::sync::Arc;
use std::time::Duration;

use bastide::{Error, Result};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::Client;
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::ClusterAccess;
use crate::access::server_of;
use crate::failure::{
    ApiStatus, innermost, malformed, not_signed_in, refused, silent, unreachable,
};
use crate::objects::NamedObject;
use crate::pod_feed::PodFeeds;
use crate::stream::STREAM_AGE;

/// How long the server may take for one thing, the times it asks to be left alone for included.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// The longest answer. Lists come in pages.
const MOST_BYTES: usize = 16 << 20;

/// How many objects a page has.
pub(crate) const PAGE: usize = 500;

/// The most that all pages of a list have together, and the most pages: a cluster of 50,000 sessions says less.
const MOST_LISTED: usize = 512 << 20;
const MOST_PAGES: usize = 1000;

/// How long a whole list may take.
const LIST: Duration = Duration::from_secs(120);

/// How long to leave a server alone that did not say how long.
const LEFT_ALONE: Duration = Duration::from_secs(1);

/// The longest time to leave a server alone for, whatever it says.
const LONGEST_LEFT_ALONE: Duration = Duration::from_secs(10);

/// All that is not a letter, a digit or one of the four signs that mean nothing in an address (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Only what is known about an object, without what is in it.
pub(crate) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A cluster as seen through one namespace.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    pub(crate) access: ClusterAccess,
    pub(crate) server: String,
    pub(crate) context: String,
    pub(crate) namespace: String,
    /// What happens to pods here, for whoever waits for it.
    pub(crate) feeds: Arc<PodFeeds>,
    /// How old a stream gets before another takes its place.
    pub(crate) stream_age: Duration,
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    body: Option<Bytes>,
    accept: &'static str,
    deadline: Duration,
    /// What is being done, for people.
    what: String,
}

impl Call {
    fn new(method: Method, path: impl Into<String>, what: impl Into<String>) -> Self {
        let (path, what) = (path.into(), what.into());
        Self { method, path, body: None, accept: "application/json", deadline: ANSWER, what }
    }

    pub(crate) fn get(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Method::GET, path, what)
    }

    pub(crate) fn post(
        path: impl Into<String>,
        body: &serde_json::Value,
        what: impl Into<String>,
    ) -> Self {
        Self { body: Some(body.to_string().into()), ..Self::new(Method::POST, path, what) }
    }

    /// Changes the fields that `body` has.
    pub(crate) fn patch(
        path: impl Into<String>,
        body: &serde_json::Value,
        what: impl Into<String>,
    ) -> Self {
        Self { body: Some(body.to_string().into()), ..Self::new(Method::PATCH, path, what) }
    }

    pub(crate) fn delete(
        path: impl Into<String>,
        body: &serde_json::Value,
        what: impl Into<String>,
    ) -> Self {
        Self { body: Some(body.to_string().into()), ..Self::new(Method::DELETE, path, what) }
    }

    /// Asks for what is known about the object alone.
    pub(crate) fn metadata(mut self) -> Self {
        self.accept = METADATA;
        self
    }

    fn request(&self) -> http::Result<Request<Body>> {
        let request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header(header::ACCEPT, self.accept)
            .header(header::USER_AGENT, concat!("bastide/", env!("CARGO_PKG_VERSION")));
        let form = match self.method == Method::PATCH {
            true => "application/merge-patch+json",
            false => "application/json",
        };
        match &self.body {
            Some(body) => request.header(header::CONTENT_TYPE, form).body(body.clone().into()),
            None => request.body(Body::empty()),
        }
    }
}

impl Cluster {
    /// A cluster that was not asked anything yet.
    pub(crate) async fn at(access: &ClusterAccess) -> Result<Self> {
        let loaded = access.load().await?;
        let client = loaded.client(access).await?;
        let server = server_of(&loaded.config);
        let (context, namespace) = (loaded.context, loaded.namespace);
        // Whoever looks for the session later finds the same, whatever is current then.
        let mut access = access.clone();
        access.namespace = Some(namespace.clone());
        if !access.kubeconfig.is_empty() {
            access.context = Some(context.clone());
        }
        let (feeds, stream_age) = (Arc::default(), STREAM_AGE);
        Ok(Self { client, access, server, context, namespace, feeds, stream_age })
    }

    /// The address of a kind of objects in this namespace.
    pub(crate) fn path(&self, api: &str, resource: &str) -> String {
        format!("{api}/namespaces/{}/{resource}", self.namespace)
    }

    /// Asks for something.
    pub(crate) async fn ask<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let bytes = self.bytes(&call).await?;
        self.read(&call.what, &bytes)
    }

    fn read<T: DeserializeOwned>(&self, what: &str, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes)
            .map_err(|error| malformed(&self.server, what, &error.to_string()))
    }

    /// Asks for something that may not be there.
    pub(crate) async fn find<T: DeserializeOwned>(&self, call: Call) -> Result<Option<T>> {
        match self.ask(call).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every object of a list, page by page.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        selector: &str,
        what: &str,
    ) -> Result<Vec<T>> {
        let listed = tokio::time::timeout(LIST, self.pages(path, selector, what)).await;
        listed.unwrap_or_else(|_| Err(silent(&self.server, what)))
    }

    async fn pages<T: DeserializeOwned>(
        &self,
        path: &str,
        selector: &str,
        what: &str,
    ) -> Result<Vec<T>> {
        let (mut all, mut length) = (Vec::new(), 0);
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let page = format!(
                "{path}?limit={PAGE}&labelSelector={}&continue={}",
                encoded(selector),
                encoded(&next)
            );
            let page = self.bytes(&Call::get(page, what)).await?;
            length += page.len();
            let mut page: crate::objects::Page<T> = self.read(what, &page)?;
            all.append(&mut page.items);
            let before = std::mem::replace(&mut next, page.metadata.next);
            if next.is_empty() {
                return Ok(all);
            }
            if next == before || length > MOST_LISTED {
                break;
            }
        }
        Err(malformed(&self.server, what, "the list has no end"))
    }

    /// Text that is not JSON, the end of it.
    pub(crate) async fn text(&self, call: Call) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.bytes(&call).await?).into_owned())
    }

    async fn bytes(&self, call: &Call) -> Result<Bytes> {
        let deadline = Instant::now() + call.deadline;
        loop {
            let answer = async {
                let response = self.send(&call.what, call.request()).await?;
                let wait = left_alone(&response);
                let status = response.status();
                let body = self.body(&call.what, response).await?;
                Ok((status, wait, body))
            };
            let (status, wait, body) = match tokio::time::timeout_at(deadline, answer).await {
                Ok(answer) => answer?,
                Err(_) => return Err(silent(&self.server, &call.what)),
            };
            if status.is_success() {
                return Ok(body);
            }
            let is_busy = status == StatusCode::TOO_MANY_REQUESTS
                || status == StatusCode::SERVICE_UNAVAILABLE
                || status == StatusCode::GATEWAY_TIMEOUT;
            if is_busy && Instant::now() + wait < deadline {
                tokio::time::sleep(wait).await;
                continue;
            }
            return Err(api_error(&call.what, status, &body));
        }
    }

    /// Sends a request; what comes back is not read yet.
    pub(crate) async fn send(
        &self,
        what: &str,
        request: http::Result<Request<Body>>,
    ) -> Result<Response<Body>> {
        let request = request.map_err(|error| malformed(&self.server, what, &error.to_string()))?;
        self.client.send(request).await.map_err(|error| self.failed(&error))
    }

    /// What the body of an answer says, if it is not longer than anything asked for here can be.
    pub(crate) async fn body(&self, what: &str, response: Response<Body>) -> Result<Bytes> {
        let limited = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        limited.map(http_body_util::Collected::to_bytes).map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => malformed(&self.server, what, "the answer has no end"),
                None => {
                    unreachable(&self.server, &self.access.described(), &innermost(error.as_ref()))
                }
            }
        })
    }

    /// What went wrong on the way.
    fn failed(&self, error: &kube::Error) -> Error {
        let by = self.access.described();
        if let kube::Error::Auth(auth) = error {
            return not_signed_in(&by, auth);
        }
        // Credentials that are fetched again are a layer of the client, whose failures come in a box.
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = source {
            if let Some(auth) = error.downcast_ref::<kube::client::AuthError>() {
                return not_signed_in(&by, auth);
            }
            source = error.source();
        }
        unreachable(&self.server, &by, &innermost(error))
    }

    /// Removes an object if it is still the one with this UID, with all that belongs to it. What is missing, or
    /// is another by now, is what is wanted.
    pub(crate) async fn delete(&self, path: &str, uid: &str, what: &str) -> Result<()> {
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": { "uid": uid },
        });
        let deleted = self.find::<serde_json::Value>(Call::delete(path, &body, what)).await;
        match deleted {
            Err(error) if error.status() == Some(409) => Ok(()),
            done => done.map(drop),
        }
    }

    /// The namespace's own UID, which no other cluster has; nothing where it may not be looked at.
    pub(crate) async fn namespace_uid(&self) -> Result<Option<String>> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let call = Call::get(path, format!("look at the namespace {}", self.namespace)).metadata();
        match self.ask::<NamedObject>(call).await {
            Ok(found) => Ok(Some(found.metadata.uid)),
            Err(error) if error.status() == Some(403) => Ok(None),
            Err(error) if error.status() == Some(404) => {
                Err(error.with_hint("make it, or choose another with `ClusterAccess::namespace`; `bastide kubernetes manifest -n NAME` prints one"))
            }
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &self.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A failure that a server describes.
pub(crate) fn api_error(what: &str, status: StatusCode, body: &[u8]) -> Error {
    let text = || String::from_utf8_lossy(body).into_owned();
    let status_body = serde_json::from_slice::<ApiStatus>(body);
    let status_body =
        status_body.unwrap_or_else(|_| ApiStatus { message: text(), ..ApiStatus::default() });
    refused(what, status.as_u16(), &status_body)
}

/// How long a server wants to be left alone.
fn left_alone(response: &Response<Body>) -> Duration {
    let value = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let seconds = value.and_then(|text| text.trim().parse().ok());
    seconds
        .map_or(LEFT_ALONE, Duration::from_secs)
        .clamp(Duration::from_millis(100), LONGEST_LEFT_ALONE)
}

/// A value as part of an address.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_values_into_addresses_without_meaning() {
        assert_eq!(encoded("a=b,c&d/e"), "a%3Db%2Cc%26d%2Fe");
        assert_eq!(encoded("/.bastide/run/guest"), "%2F.bastide%2Frun%2Fguest");
    }
}
