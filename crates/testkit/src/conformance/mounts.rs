//! Cloud storage in a manifest: what is refused before anything happens, on every backend.

mod recording;

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorClass, ResumeOptions};
use serde_json::{Value, json};

use crate::suite::{Context, Outcome, Trial, TrialError, say};
use recording::{BROKEN, RecordedCall, Recording};

pub(super) const TRIALS: &[Trial] = crate::trials![
    refuses_mounts_that_are_in_the_way_before_anything_is_made,
    refuses_to_mount_inside_where_nobody_may,
    never_tells_the_key_of_a_mount_it_refuses,
    has_the_host_mount_what_the_manifest_names,
    undoes_host_mounts_when_one_of_them_fails,
];

fn mount(change: &Value) -> Value {
    let mut mount = json!({"type": "s3_mount", "bucket": "b", "mount_strategy":
        {"type": "in_container", "pattern": {"type": "rclone"}}});
    for (key, value) in change.as_object().into_iter().flatten() {
        mount[key] = value.clone();
    }
    mount
}

/// Makes a session that must not come to be; says why it did not.
async fn refused(context: &Context, entries: Value) -> Result<bastide::Error, TrialError> {
    let manifest: Manifest = bastide::model::lax::read(&json!({"entries": entries}))?;
    let client = context.client();
    let id = bastide::SessionId::random();
    let mut options = CreateOptions::default();
    options.id = Some(id.clone());
    match client.create(&manifest, options).await {
        Ok(session) => {
            session.delete().await?;
            Err("it was made".into())
        }
        Err(error) => {
            let left = context.backend.home().join("sessions").join(id.as_str());
            assert!(!left.exists(), "something was made: {error}");
            Ok(error)
        }
    }
}

async fn refuses_mounts_that_are_in_the_way_before_anything_is_made(context: Context) -> Outcome {
    let cases = [
        (json!({"a": mount(&json!({})), "b": mount(&json!({"mount_path": "a"}))}), "two mounts"),
        (
            json!({"a": mount(&json!({})), "b": mount(&json!({"mount_path": "a/in"}))}),
            "lies in the mount",
        ),
        (json!({"a": mount(&json!({"mount_path": "/elsewhere"}))}), "relative"),
        (json!({"a": mount(&json!({"mount_path": "../up"}))}), "escape"),
        (json!({"a": mount(&json!({"mount_path": "."}))}), "the workspace is there"),
        (
            json!({"a": mount(&json!({})), "a/f": {"type": "file", "content": "x"}}),
            "would be written into the store",
        ),
    ];
    for (entries, why) in cases {
        let error = refused(&context, entries).await?;
        assert!(error.message().contains(why), "{why}: {error}");
    }
    Ok(())
}

async fn refuses_to_mount_inside_where_nobody_may(context: Context) -> Outcome {
    if context.backend.mounts_inside() {
        return Ok(());
    }
    for pattern in ["rclone", "mountpoint"] {
        let strategy = json!({"type": "in_container", "pattern": {"type": pattern}});
        let entries = json!({"data": mount(&json!({"mount_strategy": strategy}))});
        let error = refused(&context, entries).await?;
        assert_eq!(error.class(), Some(ErrorClass::MountConfigError));
        let said = error.message();
        assert!(said.contains("`s3_mount` at /workspace/data"), "{said}");
        let way_out = match context.backend.host_mounts().is_some() {
            true => "{type: host}",
            false => "the backend `local`",
        };
        assert!(said.contains(way_out), "the way out is named: {said}");
    }
    Ok(())
}

async fn never_tells_the_key_of_a_mount_it_refuses(context: Context) -> Outcome {
    let keys = json!({"access_key_id": "AKIDHIDDEN", "secret_access_key": "hidden-key"});
    let error = refused(&context, json!({"data": mount(&keys)})).await?;
    let said = format!("{error} {error:?}");
    assert!(!said.contains("hidden-key") && !said.contains("AKIDHIDDEN"), "{said}");
    assert!(error.message().contains("mount-scoped credentials"), "{said}");
    Ok(())
}

/// A manifest with a mount by the host for each of these buckets.
fn by_the_host(buckets: &[(&str, &str)]) -> Result<Manifest, TrialError> {
    let mut entries = json!({});
    for (path, bucket) in buckets {
        let strategy = json!({"type": "host", "cache_size": 4096});
        entries[path] = mount(&json!({"bucket": bucket, "access_key_id": "AKIDHIDDEN",
            "secret_access_key": "hidden-key", "mount_strategy": strategy}));
    }
    Ok(bastide::model::lax::read(&json!({"entries": entries}))?)
}

async fn has_the_host_mount_what_the_manifest_names(context: Context) -> Outcome {
    let backend = Recording::new(&context.backend);
    let client = Client::new(backend.clone());
    let manifest = by_the_host(&[("data", "b")])?;
    // No key enters the sandbox, so nobody has to accept that.
    let session = client.create(&manifest, CreateOptions::default().detached()).await?;
    let place = format!("{}/data", session.root().as_str());
    let recorded_calls = backend.recorded_calls();
    let [RecordedCall::Mount(mount)] = recorded_calls.as_slice() else {
        return Err(format!("{recorded_calls:?}").into());
    };
    assert_eq!((&mount.path, mount.provider.as_str(), mount.read_only), (&place, "s3", true));
    assert_eq!(mount.cache_size, 4096);
    assert_eq!(mount.store["source"]["keys"]["secret_access_key"], "hidden-key");
    assert!(!session.state_json()?.to_string().contains("hidden-key"));
    let inside = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c '[h]idden-key'; true";
    assert_eq!(say(&session, inside).await?, "0\n");
    let mounts = session.mounts().await?;
    assert_eq!((mounts[0].path.as_str(), mounts[0].strategy.as_str()), (place.as_str(), "host"));
    assert!(mounts[0].exposed.is_empty(), "{mounts:?}");
    if place == "/workspace/data" {
        assert_eq!((mounts[0].state.as_str(), mounts[0].reads), ("mounted", Some(5)));
    }

    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    assert_eq!(
        backend.recorded_calls(),
        [RecordedCall::Unmount(place.clone())],
        "what was written is stored first"
    );
    let refused = client.resume(&id).await.map(drop).map_err(|error| error.to_string());
    let why = refused.err().ok_or("it was resumed without its keys")?;
    assert!(why.contains("keys of the mounts"), "{why}");
    let mut options = ResumeOptions::default();
    options.manifest = Some(manifest);
    let session = client.resume_with(&id, options).await?;
    assert!(
        matches!(backend.recorded_calls().as_slice(), [RecordedCall::Mount(_)]),
        "it is mounted again"
    );
    session.delete().await?;
    assert_eq!(backend.recorded_calls(), [RecordedCall::Unmount(place)]);
    Ok(())
}

async fn undoes_host_mounts_when_one_of_them_fails(context: Context) -> Outcome {
    let backend = Recording::new(&context.backend);
    let client = Client::new(backend.clone());
    let manifest = by_the_host(&[("one", "b"), ("two", BROKEN)])?;
    let id = bastide::SessionId::random();
    let mut options = CreateOptions::default();
    options.id = Some(id.clone());
    let Err(error) = client.create(&manifest, options).await else {
        return Err("it was mounted".into());
    };
    assert!(error.message().contains("/two: the store does not know the key REDACTED"), "{error}");
    assert!(!format!("{error:?}").contains("hidden-key"), "{error:?}");
    let recorded_calls = backend.recorded_calls();
    let undone = |recorded_calls: &RecordedCall| matches!(recorded_calls, RecordedCall::Unmount(path) if path.ends_with("/one"));
    assert!(recorded_calls.last().is_some_and(undone), "{recorded_calls:?}");
    assert!(!context.backend.home().join("sessions").join(id.as_str()).exists());
    Ok(())
}
