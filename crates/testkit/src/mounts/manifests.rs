//! Mounts that a manifest names, from its first line to the end of its session.

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorClass, ResumeOptions};
use serde_json::json;

use super::fresh;
use super::servers::{Kind, shared};
use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    a_manifest_mounts_its_store_and_mounts_it_again_when_resumed,
    a_manifest_whose_store_is_not_there_makes_no_session,
];

fn manifest(port: u16, bucket: &str, prefix: &str) -> Result<Manifest, TrialError> {
    Ok(bastide::model::lax::read(&json!({"entries": {"data": {
        "type": "s3_mount", "bucket": bucket, "prefix": prefix, "read_only": false,
        "endpoint_url": format!("http://127.0.0.1:{port}"), "region": "us-east-1",
        "access_key_id": "AKIDMANIFEST", "secret_access_key": "hidden-key-of-the-manifest",
        "mount_strategy": {"type": "host"},
    }}}))?)
}

async fn a_manifest_mounts_its_store_and_mounts_it_again_when_resumed(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("manifest"));
    let manifest = manifest(server.port, "data", &prefix)?;
    let client = context.client();
    let session = match client.create(&manifest, CreateOptions::default().untied()).await {
        Err(error) if error.message().contains("/dev/fuse") => return Err(skip(error.message())),
        made => made?,
    };
    assert_eq!(say(&session, "echo one > data/a && cat data/a").await?, "one\n");
    session.start().await?;
    let mounts = session.mounts().await?;
    assert_eq!((mounts[0].state.as_str(), mounts[0].provider.as_str()), ("mounted", "s3"));
    assert!(mounts[0].writes.is_some_and(|writes| writes > 0), "{mounts:?}");
    let inside = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c '[h]idden-key'; true";
    assert_eq!(say(&session, inside).await?, "0\n");
    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    let mut options = ResumeOptions::default();
    options.manifest = Some(manifest);
    let session = client.resume_with(&id, options).await?;
    assert_eq!(say(&session, "cat data/a && echo two > data/b && ls data").await?, "one\na\nb\n");
    Ok(session.delete().await?)
}

async fn a_manifest_whose_store_is_not_there_makes_no_session(context: Context) -> Outcome {
    let server = shared(Kind::Moto)?;
    let client = context.client();
    for (port, bucket) in [(server.port, "no-such-bucket"), (9, "data")] {
        let manifest = manifest(port, bucket, "")?;
        let id = bastide::SessionId::random();
        let mut options = CreateOptions::default();
        options.id = Some(id.clone());
        let Err(error) = client.create(&manifest, options).await else {
            return Err(format!("{bucket} at {port} was mounted").into());
        };
        if error.message().contains("/dev/fuse") {
            return Err(skip(error.message()));
        }
        let classes = [Some(ErrorClass::MountCommandError), Some(ErrorClass::MountConfigError)];
        assert!(classes.contains(&error.class()), "{error:?}");
        assert!(error.message().contains("/data: "), "it says where and why: {error}");
        assert!(!format!("{error:?}").contains("hidden-key"), "{error:?}");
        assert!(!context.backend.home().join("sessions").join(id.as_str()).exists());
    }
    Ok(())
}
