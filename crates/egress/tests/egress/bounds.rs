//! How much of the outside a session has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::support::{OutsideAuthority, ProxyFixture, serve, soon};

/// How many requests are sent at once.
const REQUESTS: usize = 12;

/// Counts who is connected, now and at most.
#[derive(Default)]
struct Count {
    now: AtomicUsize,
    most: AtomicUsize,
    more: Notify,
}

impl Count {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.more.notify_waiters();
    }
}

/// A server of HTTP/1 that answers late enough for others to come.
fn slow(outside: &OutsideAuthority, count: &Arc<Count>) -> u16 {
    let (config, count) = (outside.server("a.org", false, &[b"http/1.1"]), Arc::clone(count));
    serve(move |stream| {
        let (config, count) = (Arc::clone(&config), Arc::clone(&count));
        async move {
            let Ok(mut stream) = TlsAcceptor::from(config).accept(stream).await else { return };
            count.enter();
            let mut head = Vec::new();
            while let Ok(byte) = stream.read_u8().await {
                head.push(byte);
                if head.ends_with(b"\r\n\r\n") {
                    drop(
                        tokio::time::timeout(Duration::from_millis(100), count.more.notified())
                            .await,
                    );
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if stream.write_all(answer).await.is_err() {
                        break;
                    }
                    head.clear();
                }
            }
            count.now.fetch_sub(1, Ordering::SeqCst);
        }
    })
}

#[tokio::test]
async fn requests_of_one_connection_do_not_make_more_outside_than_may_be() {
    let outside = OutsideAuthority::new();
    let count = Arc::new(Count::default());
    let port = slow(&outside, &count);
    let policy = format!(
        "rules:\n- allow: a.org\n  ports: [{port}]\n  protocol: tls\n  http: [{{methods: [GET]}}]\nhosts: {{a.org: 127.0.0.2}}\nlimits: {{connections: 2}}\n"
    );
    let world = ProxyFixture::with(&policy, &[port], &[], Some(outside.roots())).await;
    let stream = world.dial_tls("a.org", port, world.session_roots(), &[b"h2"]).await.unwrap();
    let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let answers: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let uri = format!("https://a.org/{number}");
                let request = http::Request::get(uri).body(Empty::<Bytes>::new()).unwrap();
                let response = sender.send_request(request).await.unwrap();
                let code = response.status().as_u16();
                (code, response.into_body().collect().await.unwrap().to_bytes())
            })
        })
        .collect();
    for answer in answers {
        let (code, body) = soon(answer).await.unwrap();
        assert_eq!((code, &*body), (200, &b"ok"[..]));
    }
    let most = count.most.load(Ordering::SeqCst);
    assert!((1..=2).contains(&most), "{most} at a time");
}
