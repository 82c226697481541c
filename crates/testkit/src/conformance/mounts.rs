//! Cloud storage in a manifest: what is refused before anything happens, on every backend.

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorClass};
use serde_json::{Value, json};

use crate::suite::{Context, Outcome, Trial, TrialError};

pub(super) const TRIALS: &[Trial] = crate::trials![
    refuses_mounts_that_are_in_the_way_before_anything_is_made,
    refuses_to_mount_inside_where_nobody_may,
    never_tells_the_key_of_a_mount_it_refuses,
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
        assert!(said.contains("{type: host}"), "the way out is named: {said}");
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
