//! Two homes on one cluster: neither sees, sweeps or reaches the other's.

use std::sync::Arc;

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide_testkit::suite::{Context, Outcome, Trial, client_for, say};
use bastide_testkit::trials;

pub(crate) const TRIALS: &[Trial] = trials![leaves_what_another_home_has_alone];

async fn leaves_what_another_home_has_alone(context: Context) -> Outcome {
    let here = context.client();
    let options = CreateOptions::default().detached();
    let session = here.create(&Manifest::default(), options.clone()).await?;
    let home = tempfile::tempdir()?;
    let there = client_for(Arc::new(crate::backend(home.path())?));
    // It has had a session there, or it would not look at all.
    let other = there.create(&Manifest::default(), options).await?;
    assert_eq!(there.list().await?.len(), 1);
    assert!(there.attach(session.id()).await.is_err());
    let swept = there.sweep().await?;
    assert!(swept.removed.is_empty(), "{swept:?}");
    assert_eq!(say(&session, "echo here").await?, "here\n");
    // What has no folder any more is its own home's to sweep, and nobody else's.
    let id = other.id().clone();
    drop(other);
    std::fs::remove_dir_all(home.path().join("sessions").join(id.as_str()))?;
    let selector = format!("bastide.session={id}");
    here.sweep().await?;
    assert_eq!(crate::objects("jobs", &selector)?.len(), 1, "another home's was swept");
    there.sweep().await?;
    let most = std::time::Duration::from_secs(20);
    crate::until(most, "it is swept", || Ok(crate::objects("jobs", &selector)?.is_empty())).await?;
    Ok(session.delete().await?)
}
