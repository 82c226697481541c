//! Who has no such network, and what is made of it then.

#![expect(clippy::unwrap_used, reason = "a trial fails by its message")]

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind, NetworkAccess};

use super::{Greeter, policy, policy_for};
use crate::suite::{Context, Outcome, Trial};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    makes_nothing_of_it_for_sessions_without_a_policy,
    refuses_what_makes_no_sense_before_anything_is_made,
];

/// Those of a rung that has no network of its own.
pub(super) const WITHOUT: &[Trial] = trials![refuses_a_policy_where_no_rung_holds_it];

async fn makes_nothing_of_it_for_sessions_without_a_policy(context: Context) -> Outcome {
    let session = context.session().await?;
    let error = context.client().egress_status(session.id()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    // No proxy names the session on its command line.
    let id = session.id().as_str().as_bytes();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_its = line.starts_with(b"bastide-egress") && line.windows(id.len()).any(|w| w == id);
        assert!(!is_its, "{}", String::from_utf8_lossy(&line));
    }
    Ok(session.delete().await?)
}

async fn refuses_what_makes_no_sense_before_anything_is_made(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let missing = "rules:\n- allow: api.test\nsecrets:\n  KEY: {from: 'env:BASTIDE_NOBODY_SET_THIS', env: KEY, hosts: \
                   [api.test]}\n";
    let unknown = "rules:\n- allow: '@nowhere'\n";
    let mut neither = CreateOptions::default();
    neither.policy = Some(policy_for(&allowed)?);
    for (options, said) in [
        (CreateOptions::default().network(NetworkAccess::Policy), "needs a policy"),
        (neither, "not for `none`"),
        (CreateOptions::default().policy(policy(missing)?), "the secret KEY"),
        (CreateOptions::default().policy(policy(unknown)?), "@nowhere"),
    ] {
        let before = context.client().list().await?.len();
        let error = context.client().create(&Manifest::default(), options).await.unwrap_err();
        assert!(error.message().contains(said), "{error}");
        assert!(context.client().list().await?.len() <= before);
    }
    Ok(())
}

/// T16.
async fn refuses_a_policy_where_no_rung_holds_it(context: Context) -> Outcome {
    let allowed = Greeter::start()?;
    let options = CreateOptions::default().policy(policy_for(&allowed)?);
    let error = context.client().create(&Manifest::default(), options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let (local, container) = ("needs the rung `namespaces`", "cannot be had in this container");
    assert!([local, container].iter().any(|why| error.message().contains(why)), "{error}");
    assert!(error.hint().is_some());
    Ok(())
}
