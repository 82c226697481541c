//! What is said of a store that cannot be used, before anything is mounted.

use std::os::unix::process::CommandExt;

use bastide_mount::{Channel, Command, MountSpec, ProbeError, Report, Source};

use crate::hostile;
use crate::servers::{Kind, Server, free_port};

/// As a warden asks: by the program.
fn probe(spec: MountSpec) -> Option<ProbeError> {
    let (channel, theirs) = Channel::pair().unwrap();
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_bastide-sidecar"))
        .arg0("bastide-mount")
        .stdin(std::process::Stdio::from(theirs))
        .env_clear()
        .spawn()
        .unwrap();
    channel.send(&Command::Probe { mount: Box::new(spec) }).unwrap();
    let report = channel.receive::<Report>().unwrap();
    program.wait().unwrap();
    match report {
        Some((Report::Probed { error }, _)) => error,
        other => panic!("{other:?}"),
    }
}

fn reason(spec: MountSpec) -> String {
    let error = probe(spec).expect("an error");
    let text = error.to_string();
    assert!(text.contains(';'), "{text} says no next step");
    serde_json::to_value(&error).unwrap()["reason"].as_str().unwrap().to_owned()
}

fn at(endpoint: &str) -> MountSpec {
    let source = Source::S3 {
        bucket: "data".into(),
        region: None,
        endpoint: Some(endpoint.into()),
        keys: None,
        path_style: None,
    };
    MountSpec { timeout_ms: 3000, ..MountSpec::new("m", source) }
}

#[test]
fn each_fault_has_its_name() {
    assert_eq!(reason(at(&format!("http://127.0.0.1:{}", free_port()))), "refused");
    assert_eq!(reason(at("http://nobody.invalid:9")), "unknown_host");
    assert_eq!(reason(at("not a url")), "settings");
    let table = [
        ("403 Forbidden", "InvalidAccessKeyId", "bad_key"),
        ("403 Forbidden", "SignatureDoesNotMatch", "bad_key"),
        ("400 Bad Request", "ExpiredToken", "expired_token"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock_skew"),
        ("403 Forbidden\nDate: Thu, 01 Jan 2015 00:00:00 GMT", "AccessDenied", "clock_skew"),
        ("403 Forbidden", "AccessDenied", "denied"),
        ("404 Not Found", "NoSuchBucket", "missing_bucket"),
        ("307 Temporary Redirect\nLocation: http://127.0.0.1:1/", "", "wrong_endpoint"),
    ];
    for (status, code, expected) in table {
        let body = format!("<Error><Code>{code}</Code></Error>");
        let store = hostile::store(move |_| (status.to_owned(), body.clone()));
        assert_eq!(reason(at(&store.endpoint())), expected, "{status} {code}");
    }
    let page = hostile::store(|_| ("200 OK".into(), "<html><body>welcome</body></html>".into()));
    assert_eq!(reason(at(&page.endpoint())), "wrong_endpoint");
}

#[test]
fn real_servers_are_understood() {
    for kind in Kind::ALL {
        let Some(server) = Server::start(kind) else { continue };
        assert_eq!(probe(server.spec()), None, "{kind:?}");
        let mut missing = server.spec();
        match &mut missing.source {
            Source::S3 { bucket, .. } | Source::Gcs { bucket, .. } => *bucket = "nothere".into(),
            Source::AzureBlob { container, .. } => *container = "nothere".into(),
            Source::R2 { .. } => {}
        }
        assert_eq!(reason(missing), "missing_bucket", "{kind:?}");
        if crate::harness::may_mount() {
            let mount = crate::harness::Mounted::new(server.spec());
            std::fs::write(mount.at("file"), "x").unwrap();
            let prefix = MountSpec { prefix: "file".into(), ..server.spec() };
            assert_eq!(reason(prefix), "prefix_is_file", "{kind:?}");
            let prefix = MountSpec { prefix: "new/folder".into(), ..server.spec() };
            assert_eq!(probe(prefix), None, "{kind:?}");
        }
    }
}
