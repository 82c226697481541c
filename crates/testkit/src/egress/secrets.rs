//! Secrets of a policy: outside, and nowhere else.

#![expect(clippy::unwrap_used, reason = "a trial fails by its message")]

use bastide::ErrorKind;
use bastide::model::Manifest;

use super::{SECRET, SECRET_VARIABLE, client, policy, session};
use crate::suite::{Context, Outcome, Trial, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] =
    trials![keeps_values_outside, hides_the_warden, reads_secrets_again_when_a_session_goes_on];

fn with_secret() -> String {
    format!(
        "rules:\n- allow: api.test\nsecrets:\n  KEY: {{from: 'env:{SECRET_VARIABLE}', env: API_KEY, hosts: [api.test]}}\n"
    )
}

/// T21, but for snapshots and core dumps.
async fn keeps_values_outside(context: Context) -> Outcome {
    let session = session(&context, policy(&with_secret())?).await?;
    let inside = say(&session, "echo \"$API_KEY\"").await?;
    assert!(inside.starts_with("bst-secret-") && !inside.contains(SECRET), "{inside}");
    let everywhere = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /run/accounts/* 2>/dev/null | tr '\\0' '\\n'";
    assert!(!say(&session, &format!("{everywhere}; true")).await?.contains(SECRET));
    // Programs trust the session's authority, whose certificate is there to be read.
    let bundle = say(&session, "cat \"$SSL_CERT_FILE\" | tail -n 1").await?;
    assert!(bundle.contains("END CERTIFICATE"), "{bundle}");
    let folder = context.backend.home().join("sessions").join(session.id().as_str());
    let record = std::fs::read_to_string(folder.join("machine.json"))?;
    assert!(record.contains(SECRET_VARIABLE) && !record.contains(SECRET), "{record}");
    let state = std::fs::read_to_string(folder.join("state.json")).unwrap_or_default();
    assert!(!state.contains(SECRET));
    Ok(session.delete().await?)
}

/// Neither the proxy nor the warden, which hands the secrets on, can be looked into by others of the same user.
async fn hides_the_warden(context: Context) -> Outcome {
    use std::os::unix::fs::MetadataExt;
    if rustix::process::geteuid().is_root() {
        return Err(skip("root looks into everything"));
    }
    let session = session(&context, policy(&with_secret())?).await?;
    let proxy = context.client().egress_status(session.id()).await?.pid;
    let stat = std::fs::read_to_string(format!("/proc/{proxy}/stat"))?;
    let (_, after) = stat.rsplit_once(')').ok_or("no status")?;
    let warden: u32 = after.split_whitespace().nth(1).ok_or("no parent")?.parse()?;
    for process in [proxy, warden] {
        let owner = std::fs::metadata(format!("/proc/{process}/maps"))?.uid();
        assert_eq!(owner, 0, "process {process} is its user's to look into");
        assert!(std::fs::read_dir(format!("/proc/{process}/fd")).is_err());
    }
    // It goes on all the same.
    assert_eq!(say(&session, "echo here").await?, "here\n");
    Ok(session.delete().await?)
}

/// T23: a session that goes on has its policy and what stands for its secrets; the secrets are read again, or it does not.
async fn reads_secrets_again_when_a_session_goes_on(context: Context) -> Outcome {
    let options = bastide::CreateOptions::default().policy(policy(&with_secret())?).detached();
    let session = client(&context).create(&Manifest::default(), options).await?;
    let (id, inside) = (session.id().clone(), say(&session, "echo \"$API_KEY\"").await?);
    drop(session);
    client(&context).stop(&id).await?;
    let error = context.client().resume(&id).await.unwrap_err();
    assert!(error.message().contains("the secret KEY"), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let session = client(&context).resume(&id).await?;
    assert_eq!(say(&session, "echo \"$API_KEY\"").await?, inside);
    assert_eq!(client(&context).egress_policy(&id).await?.rules.len(), 1);
    Ok(session.delete().await?)
}
