//! What is not mounted, and why.

use bastide::ErrorKind;
use bastide::backend::HostMount;
use serde_json::json;

use super::servers::{Kind, free_port, shared};
use super::{Mounting, fresh};
use crate::suite::{Context, Outcome, Trial, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    a_store_that_cannot_be_used_is_refused_with_the_reason,
    a_place_that_is_not_free_is_refused_and_left_as_it_is,
];

/// For rungs without mounts of their own.
pub(super) const WITHOUT: &[Trial] = trials![a_rung_without_mounts_of_its_own_is_refused_by_name];

/// What must be as before: nothing is mounted, and nothing was made.
async fn assert_untouched(mounting: &Mounting<'_>, before: &str) -> Outcome {
    assert!(mounting.mounts.status(&mounting.folder).await?.is_empty());
    let line = "find . | sort; grep fuse /proc/self/mountinfo || true";
    assert_eq!(say(mounting.session, line).await?, before);
    Ok(())
}

async fn a_store_that_cannot_be_used_is_refused_with_the_reason(context: Context) -> Outcome {
    let server = shared(Kind::Moto)?;
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let good = server.store("", "h1dden-key");
    let (mut missing, mut refused, mut odd, mut unknown) =
        (good.clone(), good.clone(), good.clone(), good.clone());
    missing["source"]["bucket"] = "no-such-bucket".into();
    refused["source"]["endpoint"] = format!("http://127.0.0.1:{}", free_port()?).into();
    odd["prefix"] = "../other".into();
    unknown["source"]["h1dden-key"] = 1.into();
    let cases = [
        (missing, ErrorKind::Io, "there is no such bucket"),
        (refused, ErrorKind::Io, "the connection was refused"),
        (odd, ErrorKind::Io, "is not a folder's path"),
        (unknown, ErrorKind::InvalidInput, "is not described as it must be"),
        (json!({}), ErrorKind::InvalidInput, "is not described as it must be"),
    ];
    for (store, kind, reason) in cases {
        let mount = HostMount::new(mounting.at("data"), "s3", store);
        let error = mounting.mounts.mount(&mounting.folder, mount).await;
        let error = error.err().ok_or("it was mounted")?;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(reason), "{error}");
        assert!(!format!("{error} {error:?}").contains("h1dden-key"), "{error:?}");
        assert_untouched(&mounting, ".\n").await?;
    }
    Ok(session.delete().await?)
}

async fn a_place_that_is_not_free_is_refused_and_left_as_it_is(context: Context) -> Outcome {
    let (server, prefix) = (shared(Kind::Moto)?, fresh("place"));
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    say(&session, "mkdir full away && echo x > full/x && echo x > file && ln -s /tmp link").await?;
    say(&session, "ln -s away near && ln -s /nowhere dangling && mkdir /tmp/target").await?;
    let before = say(&session, "find . | sort").await?;
    let store = server.store(&prefix, "s3cr3t");
    let cases = [
        (mounting.at("full"), ErrorKind::Conflict),
        (mounting.at("file"), ErrorKind::Conflict),
        (mounting.at("file/data"), ErrorKind::Conflict),
        (mounting.at("link"), ErrorKind::Conflict),
        (mounting.at("link/target"), ErrorKind::Conflict),
        (mounting.at("near"), ErrorKind::Conflict),
        (mounting.at("dangling"), ErrorKind::Conflict),
        (mounting.at("new/../full"), ErrorKind::InvalidInput),
        (mounting.at("../data"), ErrorKind::InvalidInput),
        (session.root().to_string(), ErrorKind::InvalidInput),
        ("/tmp/target".to_owned(), ErrorKind::InvalidInput),
        ("relative".to_owned(), ErrorKind::InvalidInput),
    ];
    for (path, kind) in cases {
        let mount = HostMount::new(path.clone(), "s3", store.clone());
        match mounting.mount_as(mount).await {
            Ok(()) => return Err(format!("something is mounted on {path}").into()),
            Err(error) => match error.downcast::<bastide::Error>() {
                Ok(error) => assert_eq!(error.kind(), kind, "{path}: {error}"),
                Err(skipped) => return Err(skipped),
            },
        }
        assert_untouched(&mounting, &before).await?;
    }
    // Over and beneath another mount, and another store on the same path.
    mounting.mount("data", "s3", store.clone()).await?;
    say(&session, "mkdir data/d").await?;
    for path in ["data", "data/d", "data/new"] {
        let mount =
            HostMount::new(mounting.at(path), "s3", server.store(&fresh("other"), "s3cr3t"));
        let error = mounting.mounts.mount(&mounting.folder, mount).await;
        let error = error.err().ok_or_else(|| format!("something is mounted on {path}"))?;
        assert_eq!(error.kind(), ErrorKind::Conflict, "{path}: {error}");
    }
    assert_eq!(say(&session, "ls data").await?, "d\n", "and nothing was made in it");
    Ok(session.delete().await?)
}

async fn a_rung_without_mounts_of_its_own_is_refused_by_name(context: Context) -> Outcome {
    let session = context.session().await?;
    let mounting = Mounting::new(&context, &session)?;
    let mount = HostMount::new(mounting.at("data"), "s3", json!({}));
    let error = mounting.mounts.mount(&mounting.folder, mount).await;
    let error = error.err().ok_or("it was mounted")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("`landlock`"), "{error}");
    assert!(mounting.mounts.status(&mounting.folder).await?.is_empty());
    Ok(session.delete().await?)
}
