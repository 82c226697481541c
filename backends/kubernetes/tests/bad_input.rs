//! What is wrong on the way to a cluster: each is one typed failure in bounded time that names the thing, and never a
//! credential. None of these needs a cluster.
#![expect(clippy::unwrap_used, reason = "a test that cannot prepare its files fails")]

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Backend, CreateOptions, ErrorKind, SweepMode};
use bastide_kubernetes::{
    ClusterAccess, ClusterReport, KubernetesBackend, KubernetesOptions, Owner,
};
use bastide_testkit::suite::client_for;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// What must be in no message.
const SECRET: &str = "s3cr3t-t0ken";

/// Far more than anything here takes, and less than for ever.
const TIMEOUT: Duration = Duration::from_secs(100);

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
    let asked = tokio::time::timeout(TIMEOUT, ClusterReport::of(&access)).await;
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

#[tokio::test(start_paused = true)]
async fn waits_for_no_credential_plug_in_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    // It ends with this test, and not before.
    let (reader, writer) = std::io::pipe().unwrap();
    let held = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    let user = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: [\"{held}\"], env: [{{name: TOKEN, value: {SECRET}}}], interactiveMode: Never}}}}"
    );
    let file = kubeconfig(dir.path(), "https://127.0.0.1:1", &user);
    let error = refused(ClusterAccess::new(vec![file])).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("does not end"), "{error}");
    drop((reader, writer));
}

#[tokio::test(start_paused = true)]
async fn waits_for_no_server_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let held = tokio::spawn(async move {
        let mut all = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            all.push(stream);
        }
    });
    let file = kubeconfig(dir.path(), &format!("http://{address}"), &token());
    let error = refused(ClusterAccess::new(vec![file])).await;
    held.abort();
    assert_eq!(error.kind(), ErrorKind::BackendLost, "{error}");
    assert!(error.message().contains(&address.to_string()), "{error}");
}

/// Verb and address of a request, and what is answered: a status and a body.
type Answer = Arc<dyn Fn(&str, &str) -> (u16, String) + Send + Sync>;

/// A server that speaks HTTP, and says what this test has it say.
async fn speaking(dir: &Path, answer: Answer) -> PathBuf {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut piece = vec![0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut piece).await {
                    request.extend_from_slice(&piece[..read]);
                    let Some(length) = whole(&request) else { continue };
                    let head = String::from_utf8_lossy(&request[..length]).into_owned();
                    request.clear();
                    let mut words = head.split_whitespace();
                    let (verb, path) = (words.next().unwrap(), words.next().unwrap());
                    let (status, body) = answer(verb, path);
                    let text = format!(
                        "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    kubeconfig(dir, &format!("http://{address}"), &token())
}

/// How long a request is that is there as a whole.
fn whole(request: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let (head, _) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = head.len() + 4 + length.map_or(0, |length| length.trim().parse().unwrap());
    (request.len() >= length).then_some(length)
}

/// What a cluster answers that lets everything be done, until somebody makes the object of a session.
fn willing(verb: &str, path: &str) -> (u16, String) {
    let all = r#"{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}"#;
    match (verb, path) {
        (_, "/version") => (200, r#"{"gitVersion":"v1.34.11"}"#.to_owned()),
        (_, path) if path.ends_with("/selfsubjectrulesreviews") => {
            (201, format!(r#"{{"status":{{"resourceRules":[{all}]}}}}"#))
        }
        ("GET", path) if path.contains("/configmaps/") => (404, status("not found", 404)),
        _ => (200, r#"{"metadata":{"uid":"u"}}"#.to_owned()),
    }
}

fn status(message: &str, code: u16) -> String {
    format!(r#"{{"kind":"Status","message":"{message}","code":{code}}}"#)
}

/// What comes of making a session there. Nothing of it is left.
async fn not_made(dir: &Path, file: PathBuf, options: KubernetesOptions) -> bastide::Error {
    let home = dir.join("home");
    let backend = KubernetesBackend::new(&home, ClusterAccess::new(vec![file]), options).unwrap();
    let client = client_for(Arc::new(backend));
    let begun = Instant::now();
    let manifest = Manifest::default();
    let made = client.create(&manifest, CreateOptions::default());
    let made = tokio::time::timeout(TIMEOUT, made).await;
    let error = made.unwrap_or_else(|_| unreachable_in_time(begun)).err().unwrap();
    let all = format!("{error} {:?} {:?}", error.hint(), error.context());
    assert!(!all.contains(SECRET), "{all}");
    assert_eq!(std::fs::read_dir(home.join("sessions")).unwrap().count(), 0, "{error}");
    error
}

/// A cluster that has an older agent-sandbox, or none: nothing is made there.
#[tokio::test]
async fn names_the_version_of_agent_sandbox_that_is_missing() {
    let sandbox = || {
        let mut options = KubernetesOptions::new("debian:12");
        options.owner = Owner::Sandbox;
        options
    };
    for (versions, word) in
        [(r#"{"versions":[{"version":"v1alpha1"}]}"#, "v1alpha1"), ("{}", "not installed")]
    {
        let asked: [(&str, KubernetesOptions); 2] = [
            ("`KubernetesOptions::owner` sandbox", sandbox()),
            ("`KubernetesOptions::pool`", KubernetesOptions::from_pool("warm")),
        ];
        for (option, options) in asked {
            let dir = tempfile::tempdir().unwrap();
            let answer: Answer = Arc::new(move |verb, path| match (verb, path) {
                (_, "/apis/agents.x-k8s.io" | "/apis/extensions.agents.x-k8s.io") => {
                    (200, versions.to_owned())
                }
                (_, path) if path.contains("agents.x-k8s.io/v1beta1") => {
                    (404, "404 page not found".to_owned())
                }
                (verb, path) => willing(verb, path),
            });
            let file = speaking(dir.path(), answer).await;
            let error = not_made(dir.path(), file, options).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().starts_with(option), "{error}");
            assert!(error.message().contains(word), "{error}");
        }
    }
}

/// What a server says when the object of a session is made.
#[tokio::test]
async fn says_what_forbids_the_session() {
    let table: [(u16, &str, ErrorKind, &str); 6] = [
        (
            403,
            "jobs is forbidden: exceeded quota: q, used: 2, limited: 2",
            ErrorKind::LimitExceeded,
            "ResourceLimits::memory",
        ),
        (
            403,
            "unable to create new content in namespace n because it is being terminated",
            ErrorKind::Conflict,
            "ClusterAccess::namespace",
        ),
        (
            403,
            "jobs is forbidden: User u cannot create resource jobs",
            ErrorKind::PermissionDenied,
            "manifest",
        ),
        (401, "Unauthorized", ErrorKind::PermissionDenied, "sign in"),
        (422, "Job.batch is invalid: spec: Invalid value: 1", ErrorKind::InvalidInput, ""),
        (500, "etcdserver: no leader", ErrorKind::Io, ""),
    ];
    for (code, message, kind, hint) in table {
        let dir = tempfile::tempdir().unwrap();
        let answer: Answer = Arc::new(move |verb, path| match (verb, path) {
            ("POST", path) if path.ends_with("/jobs") => (code, status(message, code)),
            (verb, path) => willing(verb, path),
        });
        let file = speaking(dir.path(), answer).await;
        let error = not_made(dir.path(), file, KubernetesOptions::new("debian:12")).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(message), "{error}");
        assert!(error.hint().unwrap_or_default().contains(hint), "{error:?}");
    }
}

/// A job of that name that another has made is left alone; one that this made by a request whose answer was lost is not in the
/// way.
#[tokio::test]
async fn leaves_a_job_of_another_alone() {
    let dir = tempfile::tempdir().unwrap();
    let removed = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&removed);
    let answer: Answer = Arc::new(move |verb, path| match (verb, path) {
        ("POST", path) if path.ends_with("/jobs") => (409, status("already exists", 409)),
        ("DELETE", _) => {
            counted.fetch_add(1, Ordering::Relaxed);
            (200, "{}".to_owned())
        }
        (verb, path) => willing(verb, path),
    });
    let file = speaking(dir.path(), answer).await;
    let error = not_made(dir.path(), file, KubernetesOptions::new("debian:12")).await;
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(removed.load(Ordering::Relaxed), 0, "it has no label of this home");
}

#[tokio::test]
async fn reads_no_list_without_end() {
    // The same page again and again, and always another one.
    for step in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let answer: Answer = Arc::new(move |_, _| {
            let number = 1 + step * counted.fetch_add(1, Ordering::Relaxed);
            (200, format!(r#"{{"metadata":{{"continue":"{number}"}},"items":[]}}"#))
        });
        let file = speaking(dir.path(), answer).await;
        let options = KubernetesOptions::new("debian:12");
        let access = ClusterAccess::new(vec![file]);
        let backend = KubernetesBackend::new(dir.path().join("home"), access, options).unwrap();
        let swept = backend.sweep(SweepMode::Remove);
        let swept = tokio::time::timeout(TIMEOUT, swept).await.unwrap().unwrap();
        assert!(swept.unclear[0].1.contains("has no end"), "{swept:?}");
        assert!(asked.load(Ordering::Relaxed) <= 1000);
    }
}
