//! The workspace is what the manifest says.

use bastide::model::{Entry, Manifest};

use crate::suite::{Context, Outcome, Trial, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    lays_out_the_manifest,
    sets_the_environment_of_the_manifest,
    gives_every_session_its_own_workspace,
];

async fn lays_out_the_manifest(context: Context) -> Outcome {
    let mut manifest = Manifest::default();
    let nested =
        Entry::dir([("main.rs", Entry::file("fn main() {}\n")), ("empty", Entry::dir::<&str>([]))]);
    manifest.entries.insert("src".to_owned(), nested);
    manifest.entries.insert("deep/er/run.sh".to_owned(), Entry::file("#!/bin/sh\necho ran\n"));
    let session = context.session_with(&manifest).await?;
    assert_eq!(
        say(&session, "find . | sort").await?,
        ".\n./deep\n./deep/er\n./deep/er/run.sh\n./src\n./src/empty\n./src/main.rs\n"
    );
    assert_eq!(say(&session, "cat src/main.rs; ./deep/er/run.sh").await?, "fn main() {}\nran\n");
    Ok(session.delete().await?)
}

async fn sets_the_environment_of_the_manifest(context: Context) -> Outcome {
    let manifest: Manifest = bastide::model::lax::read(&serde_json::json!({
        "environment": {"value": {"GREETING": "hello there"}},
    }))?;
    let session = context.session_with(&manifest).await?;
    assert_eq!(say(&session, "echo \"$GREETING\"").await?, "hello there\n");
    Ok(session.delete().await?)
}

async fn gives_every_session_its_own_workspace(context: Context) -> Outcome {
    let (one, other) = tokio::try_join!(context.session(), context.session())?;
    say(&one, "echo mine > file; echo mine > ${TMPDIR:-/tmp}/file").await?;
    assert_eq!(say(&other, "ls -A .; ls -A ${TMPDIR:-/tmp}").await?, "");
    assert_eq!(say(&one, "cat file").await?, "mine\n", "and keeps it");
    one.delete().await?;
    Ok(other.delete().await?)
}
