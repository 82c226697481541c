//! A network that is said to be closed is tried from inside: a cluster that keeps no policy is found out.

use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind};
use bastide_testkit::suite::{Context, Outcome, Trial, client_for, say};
use bastide_testkit::trials;

pub(crate) const TRIALS: &[Trial] = trials![refuses_a_network_that_nobody_keeps_closed];

async fn refuses_a_network_that_nobody_keeps_closed(context: Context) -> Outcome {
    let session = context.session().await?;
    let walls = session.receipt().walls.clone();
    assert!(walls.iter().any(|wall| wall.contains("proved from inside")), "{walls:?}");
    session.delete().await?;
    let cluster = crate::cluster()?;
    cluster.enforce(false)?;
    let outcome = without_enforcer(&context).await;
    cluster.enforce(true)?;
    outcome
}

async fn without_enforcer(context: &Context) -> Outcome {
    let refused =
        context.session().await.err().ok_or("a network that is open was taken for closed")?;
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(
        refused.hint().is_some_and(|hint| hint.contains("KubernetesOptions::unproved_network")),
        "{refused:?}"
    );
    let identity = bastide::home_identity(context.backend.home())?;
    let left = crate::objects("jobs", &format!("bastide.home={identity}"))?;
    assert!(left.is_empty(), "{left:?}");
    let home = tempfile::tempdir()?;
    let backend = crate::backend_with(home.path(), |options| options.unproved_network = true)?;
    let client = client_for(Arc::new(backend));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let open = session.receipt().not_enforced.clone();
    assert!(open.iter().any(|line| line.contains("not proved")), "{open:?}");
    assert_eq!(say(&session, "echo there").await?, "there\n");
    Ok(session.delete().await?)
}
