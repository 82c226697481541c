//! Which rung a session stands on where namespaces run out: in a user namespace of its own, whose limits are
//! nobody else's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind, Rung};
use bastide_local::LocalBackend;

/// Says that this process is in a namespace of its own.
const INSIDE: &str = "BASTIDE_TEST_LIMITED";

/// Runs a test of this program once more where as many user namespaces can be made. False if this machine
/// cannot do that.
fn again(test: &str, namespaces: u32) -> bool {
    let line = "echo \"$1\" > /proc/sys/user/max_user_namespaces && exec \"$2\" --exact --nocapture \"$3\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user"]);
    let tried = unshare.arg("true").stdin(Stdio::null()).status();
    if !tried.is_ok_and(|status| status.success()) {
        eprintln!("skipped {test}: no user namespace can be made here");
        return false;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", line, "sh"]);
    command.arg(namespaces.to_string()).arg(std::env::current_exe().unwrap()).arg(test);
    let output = command.env(INSIDE, "1").stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    true
}

fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

fn client(home: &tempfile::TempDir) -> Client {
    Client::new(Arc::new(LocalBackend::new(home.path()).unwrap().without_spare()))
}

#[tokio::test]
async fn is_no_less_confined_when_namespaces_run_out() {
    if !is_inside() {
        again("is_no_less_confined_when_namespaces_run_out", 1);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let client = client(&home);
    let manifest = Manifest::default();
    let make = || client.create(&manifest, CreateOptions::default());
    let first = match make().await {
        Ok(first) if first.receipt().rung == Rung::Namespaces => first,
        // Some of `/proc` is hidden here, so that no session has a whole one.
        Ok(first) => return first.delete().await.unwrap(),
        Err(error) => panic!("{error}"),
    };
    let error = make().await.map(|session| session.receipt().rung).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(error.message().contains("user.max_user_namespaces=1"), "{error}");
    assert!(!error.message().contains("forbids"), "{error}");
    first.delete().await.unwrap();
    // There is room again, once the kernel has cleared away what there was.
    let deadline = Instant::now() + Duration::from_secs(30);
    let again = loop {
        match make().await {
            Err(error) if error.kind() == ErrorKind::LimitExceeded && Instant::now() < deadline => {
            }
            made => break made.unwrap(),
        }
    };
    assert_eq!(again.receipt().rung, Rung::Namespaces);
    again.delete().await.unwrap();
}

#[tokio::test]
async fn stands_lower_where_no_namespace_is_allowed_at_all() {
    if !is_inside() {
        again("stands_lower_where_no_namespace_is_allowed_at_all", 0);
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let client = client(&home);
    match client.create(&Manifest::default(), CreateOptions::default()).await {
        Ok(session) => {
            assert_eq!(session.receipt().rung, Rung::Landlock);
            session.delete().await.unwrap();
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains("max_user_namespaces is 0"), "{error}");
        }
    }
}
