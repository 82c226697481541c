//! The recorded cases of the reference, those that need a session on a local one.

use std::sync::Arc;

use bastide::Backend;
use bastide_local::LocalBackend;
use bastide_testkit::vectors::{self, Status};

/// What has to be answered through a session by now.
const IN_SESSIONS: [&str; 4] =
    ["unix_local_op", "unix_local_op_outcome", "extract_archive", "extract_archive_outcome"];

#[test]
fn sessions_answer_like_the_reference() {
    let home = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = Arc::new(LocalBackend::new(home.path()).unwrap());
    let report = vectors::run(&vectors::default_dir(), Some(&backend)).unwrap();
    let wrong: Vec<_> = report
        .outcomes()
        .iter()
        .filter(|outcome| IN_SESSIONS.contains(&outcome.function.as_str()))
        .filter(|outcome| !matches!(outcome.status, Status::Passed | Status::Known { .. }))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(report.known_is_within_bounds());
}
