//! Which rung a session gets where the machine does not give the best.

use std::process::{Command, Stdio};

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind, Isolation, Rung};

use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

/// Those for a container that was given no privileges.
pub(super) const IN_CONTAINER: &[Trial] =
    trials![t15_stands_on_the_best_rung_of_a_container_without_privileges];

/// `auto` finds the highest rung there is, says which, and never stands on none; the one above it, asked for
/// by name, is refused.
async fn t15_stands_on_the_best_rung_of_a_container_without_privileges(
    context: Context,
) -> Outcome {
    let session = context.session().await?;
    let receipt = session.receipt().clone();
    let want = if can_make_namespaces()? { Rung::Namespaces } else { Rung::Landlock };
    assert_eq!(receipt.rung, want, "{receipt:?}");
    let status = say(&session, "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status").await?;
    assert_eq!(status, "CapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
    if receipt.rung == Rung::Landlock {
        for gap in ["file names", "process list"] {
            assert!(receipt.not_enforced.iter().any(|open| open.starts_with(gap)), "{receipt:?}");
        }
        let named = CreateOptions::default().isolation(Isolation::Exactly(Rung::Namespaces));
        let refused = context.client().create(&Manifest::default(), named).await;
        let kind = refused.map(drop).map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Unsupported));
    }
    Ok(session.delete().await?)
}

/// Whether this machine lets anybody make what the highest rung is made of. A `/proc` that is covered in part,
/// as containers have it, cannot be mounted anew.
fn can_make_namespaces() -> Result<bool, TrialError> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]);
    let tried = unshare.arg("true").stdin(Stdio::null()).output()?;
    Ok(tried.status.success())
}
