//! What is wrong on the way to a cluster: each is one typed failure in bounded time that names the thing, and never a
//! credential. None of these needs a cluster.
#![expect(clippy::unwrap_used, reason = "a test that cannot prepare its files fails")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bastide::ErrorKind;
use bastide_kubernetes::{ClusterAccess, ClusterReport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// What must be in no message.
const SECRET: &str = "s3cr3t-t0ken";

/// Far more than anything here takes, and less than for ever.
const PATIENCE: Duration = Duration::from_secs(100);

fn kubeconfig(dir: &Path, server: &str, user: &str) -> PathBuf {
    let path = dir.join("config");
    let text = format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]
users: [{{name: u, user: {user}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: n}}}}, {{name: lost, context: {{cluster: gone, user: u}}}}]
current-context: c
"
    );
    std::fs::write(&path, text).unwrap();
    path
}

async fn refused(access: ClusterAccess) -> bastide::Error {
    let begun = Instant::now();
    let asked = tokio::time::timeout(PATIENCE, ClusterReport::of(&access)).await;
    let error = asked.unwrap_or_else(|_| unreachable_in_time(begun)).unwrap_err();
    let all = format!("{error} {:?} {:?}", error.hint(), error.context());
    assert!(!all.contains(SECRET), "{all}");
    error
}

#[expect(clippy::panic, reason = "a wait without end is the failure that is looked for")]
fn unreachable_in_time(begun: Instant) -> ! {
    panic!("no answer after {:?}", begun.elapsed())
}

fn token() -> String {
    format!("{{token: {SECRET}}}")
}

/// A server that does the same to whoever connects, and the kubeconfig that leads to it.
async fn server(dir: &Path, answer: &'static [u8], repeated: usize) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                drop(stream.read(&mut request).await);
                for _ in 0..repeated {
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    kubeconfig(dir, &format!("http://{address}"), &token())
}

#[tokio::test]
async fn names_the_file_the_context_and_the_cluster_that_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let missing = ClusterAccess::new(vec![dir.path().join("nothing")]);
    let error = refused(missing).await;
    assert_eq!(error.kind(), ErrorKind::BackendLost);
    assert!(error.to_string().contains("nothing"), "{error}");

    let file = kubeconfig(dir.path(), "https://127.0.0.1:1", &token());
    let error =
        refused(ClusterAccess::new(vec![file.clone()]).context(Some("other".to_owned()))).await;
    assert!(error.to_string().contains("\"other\""), "{error}");
    assert!(error.hint().unwrap().contains("c, lost"), "{error:?}");

    let error =
        refused(ClusterAccess::new(vec![file.clone()]).context(Some("lost".to_owned()))).await;
    assert!(error.to_string().contains("\"gone\""), "{error}");

    let error = refused(ClusterAccess::new(vec![file]).namespace(Some("a/b".to_owned()))).await;
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    let damaged = dir.path().join("damaged");
    std::fs::write(&damaged, format!("clusters: [token: {SECRET}\n  - {{")).unwrap();
    let error = refused(ClusterAccess::new(vec![damaged])).await;
    assert!(error.to_string().contains("is no kubeconfig"), "{error}");
}

#[tokio::test]
async fn says_that_nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let file = kubeconfig(dir.path(), &format!("https://{closed}"), &token());
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::BackendLost);
    assert!(error.to_string().contains(&closed.to_string()), "{error}");
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn takes_no_garbage_for_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let garbage: [(&[u8], usize); 4] = [
        (b"\0\x01\x02 hello", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", 1),
        (b"", 1),
    ];
    for (answer, repeated) in garbage {
        let file = server(dir.path(), answer, repeated).await;
        let error = refused(ClusterAccess::new(vec![file])).await;
        assert_eq!(error.kind(), ErrorKind::BackendLost, "{answer:?}: {error}");
    }
}

#[tokio::test]
async fn reads_no_answer_without_end() {
    let dir = tempfile::tempdir().unwrap();
    // A head, and then more of the same: a body of a hundred MiB.
    static ENDLESS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    let file = server(dir.path(), ENDLESS, 1_100_000).await;
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::BackendLost);
    assert!(error.to_string().contains("has no end"), "{error}");
}

#[tokio::test]
async fn passes_on_what_a_server_refuses() {
    let dir = tempfile::tempdir().unwrap();
    static EXPIRED: &[u8] = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 76\r\n\r\n{\"kind\":\"Status\",\"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}";
    let file = server(dir.path(), EXPIRED, 1).await;
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.hint().unwrap().contains("sign in"), "{error:?}");
}

#[tokio::test]
async fn says_why_a_credential_plug_in_failed() {
    let dir = tempfile::tempdir().unwrap();
    let plug_in = |script: &str| {
        let script = script.replace('"', "\\\"");
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [\"-c\", \"{script}\", \"{SECRET}\"], interactiveMode: Never}}}}"
        )
    };
    let failing = plug_in(&format!("echo {SECRET}; echo not signed in >&2; exit 3"));
    let file = kubeconfig(dir.path(), "https://127.0.0.1:1", &failing);
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("not signed in"), "{error}");

    let file = kubeconfig(dir.path(), "https://127.0.0.1:1", &plug_in(&format!("echo {SECRET}")));
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}
