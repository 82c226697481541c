//! What programs of a keeper that was killed could not store. They end by themselves, once they have tried.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::fs::UNSTORED;

/// How long such a program may go on: longer than it takes itself for its last stores.
const LAST_STORES: Duration = Duration::from_secs(35);

/// How often it is looked at.
const AGAIN: Duration = Duration::from_millis(50);

/// What folders are called whose content was told.
const REPORTED: &str = "told-";

/// A file in a folder whose content was told while it had its name still.
const MARK: &str = "told";

/// Notes that somebody was told what is in a folder, by its paths: it keeps its name, and is not told again.
pub(super) fn mark_told(staging: &Path) {
    // Where there is nothing, nothing was kept; and what cannot be noted is told once more.
    drop(File::create(staging.join(MARK)));
}

/// The folders of what was not stored, once each. What holds nothing is removed.
pub(super) async fn take(folder: &Path) -> Vec<String> {
    let own = format!("{}-", std::process::id());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(&own) || name.starts_with(REPORTED) {
            continue;
        }
        let staging = entry.path();
        if staging.join(MARK).exists() {
            continue;
        }
        wait_for_program(&staging).await;
        let has_any =
            |folder: &Path| fs::read_dir(folder).is_ok_and(|mut all| all.next().is_some());
        if !has_any(&staging.join(UNSTORED)) {
            // It may be in use again, or gone.
            drop(fs::remove_dir_all(&staging));
            continue;
        }
        let reported = staging.with_file_name(format!("{REPORTED}{name}"));
        let kept = if fs::rename(&staging, &reported).is_ok() { reported } else { staging };
        found.push(kept.join(UNSTORED).display().to_string());
    }
    found
}

/// Waits until no program stores anything from there any more, for so long.
async fn wait_for_program(staging: &Path) {
    let Ok(held) = File::open(staging) else { return };
    let deadline = Instant::now() + LAST_STORES;
    while held.try_lock().is_err() && Instant::now() < deadline {
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tells_once_what_was_not_stored_and_removes_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(format!("{}-0", std::process::id()));
        let [full, empty, told] = ["1-0", "1-1", "1-2"].map(|name| folder.path().join(name));
        for staging in [&own, &full, &empty, &told] {
            fs::create_dir_all(staging.join(UNSTORED)).unwrap();
        }
        for staging in [&full, &told] {
            fs::write(staging.join(UNSTORED).join("0-a"), "precious").unwrap();
        }
        mark_told(&told);
        let kept = take(folder.path()).await;
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(fs::read_to_string(Path::new(&kept[0]).join("0-a")).unwrap(), "precious");
        assert!(own.exists() && !empty.exists());
        assert!(
            told.join(UNSTORED).join("0-a").exists(),
            "its paths stay what they were told to be"
        );
        assert!(take(folder.path()).await.is_empty(), "it is told once");
    }
}
