//! Changes as they happen.

use std::time::Duration;

use bastide::{FileChange, Watch};

use super::class;
use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    reports_changes_as_they_happen,
    watches_folders_that_are_made_later,
    says_when_more_changed_than_it_kept,
];

/// Changes up to the first that is about `last`.
async fn until(watch: &mut Watch, last: &str) -> Result<Vec<FileChange>, TrialError> {
    let mut changes = Vec::new();
    let about = |change: &FileChange| match change {
        FileChange::Created { path, .. } | FileChange::Removed { path, .. } => path == last,
        _ => false,
    };
    loop {
        let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        let next = next.map_err(|_| format!("{last} was not seen, but {changes:?}"))??;
        let Some(change) = next else { return Ok(changes) };
        if about(&change) {
            return Ok(changes);
        }
        changes.push(change);
    }
}

async fn reports_changes_as_they_happen(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkdir dir; echo x > dir/old").await?;
    let mut watch = session.files().watch("dir").await?;
    let path = |name: &str| name.to_owned();
    say(&session, "echo y > dir/new; chmod 600 dir/old; mv dir/new dir/newer; : > dir/mark")
        .await?;
    let mut changes = until(&mut watch, "mark").await?;
    // How many writes a write is, is the kernel's business.
    changes.dedup();
    let created = FileChange::Created { path: path("new"), is_dir: false };
    let modified = FileChange::Modified { path: path("new"), is_dir: false };
    let attributes = FileChange::Attributes { path: path("old"), is_dir: false };
    let renamed = FileChange::Renamed { from: path("new"), path: path("newer"), is_dir: false };
    assert_eq!(changes, [created, modified, attributes, renamed]);
    // A file that the host writes appears whole, and nothing else does.
    session.files().write("dir/written", "content").await?;
    session.files().rm("dir/old").await?;
    let changes = until(&mut watch, "old").await?;
    let written = FileChange::Created { path: path("written"), is_dir: false };
    let changes: Vec<_> = changes
        .into_iter()
        .filter(|change| !matches!(change, FileChange::Modified { path, .. } if path == "mark"))
        .collect();
    assert_eq!(changes, [written]);
    session.files().rm_all("dir").await?;
    let rest = until(&mut watch, "never").await?;
    assert_eq!(rest.last(), Some(&FileChange::Gone));
    assert_eq!(class(session.files().watch("gone").await)?, "WorkspaceReadNotFoundError");
    Ok(session.delete().await?)
}

async fn watches_folders_that_are_made_later(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkdir -p a/b; ln -s /etc link").await?;
    let mut watch = session.files().watch_all(".").await?;
    say(&session, "mkdir -p new/deep; echo x > new/deep/file; echo y > a/b/file; : > mark").await?;
    let changes = until(&mut watch, "mark").await?;
    for (path, is_dir) in
        [("new", true), ("new/deep", true), ("new/deep/file", false), ("a/b/file", false)]
    {
        let created = FileChange::Created { path: path.to_owned(), is_dir };
        assert!(changes.contains(&created), "{path} is missing in {changes:?}");
    }
    // Under its new name it is still watched.
    say(&session, "mv new renamed; echo z > renamed/deep/later; : > mark2").await?;
    let changes = until(&mut watch, "mark2").await?;
    let later = FileChange::Created { path: "renamed/deep/later".to_owned(), is_dir: false };
    assert!(changes.contains(&later), "{changes:?}");
    Ok(session.delete().await?)
}

async fn says_when_more_changed_than_it_kept(context: Context) -> Outcome {
    let session = context.session().await?;
    let mut watch = session.files().watch(".").await?;
    // More than the kernel and every buffer on the way keep, to nobody.
    say(&session, "i=0; while [ $i -lt 60000 ]; do : > a; : > b; i=$((i+1)); done").await?;
    let mut overflowed = false;
    let mut count = 0_u64;
    loop {
        match tokio::time::timeout(Duration::from_secs(2), watch.next()).await {
            Ok(Ok(Some(FileChange::Overflow))) => overflowed = true,
            Ok(Ok(Some(_))) => count += 1,
            Ok(other) => return Err(format!("the watch ended: {other:?}").into()),
            // All that was kept has come.
            Err(_) => break,
        }
        if overflowed {
            break;
        }
    }
    assert!(overflowed, "{count} changes came and nobody said that some are missing");
    Ok(session.delete().await?)
}
