//! Sessions that a queue admits. No cluster of the tests has Kueue: what it does to a job is done here by its administrator.

use std::sync::Arc;
use std::time::Duration;

use bastide::CreateOptions;
use bastide::model::Manifest;
use bastide_testkit::suite::{Context, Outcome, Trial, client_for, say};
use bastide_testkit::trials;

use crate::{NAMESPACE, administer, backend_with, objects, until};

pub(crate) const TRIALS: &[Trial] = trials![begins_when_its_queue_admits_it];

const SOON: Duration = Duration::from_secs(40);

async fn begins_when_its_queue_admits_it(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let backend = backend_with(home.path(), |options| options.queue = Some("later".to_owned()))?;
    let client = client_for(Arc::new(backend));
    let making = {
        let client = client.clone();
        tokio::spawn(async move {
            client.create(&Manifest::default(), CreateOptions::default().detached()).await
        })
    };
    let selector = format!(
        "kueue.x-k8s.io/queue-name=later,bastide.home={}",
        bastide::home_identity(home.path())?
    );
    let is_there = || Ok(!objects("jobs", &selector)?.is_empty());
    until(SOON, "the job is there", is_there).await?;
    assert!(objects("pods", &selector)?.is_empty(), "nothing runs that was not admitted");
    let name = objects("jobs", &selector)?.pop().ok_or("no job")?;
    let admitted = r#"{"spec": {"suspend": false}}"#;
    administer(&["-n", NAMESPACE, "patch", "job", &name, "--type", "merge", "-p", admitted])?;
    let session = making.await??;
    assert_eq!(say(&session, "echo there").await?, "there\n");
    Ok(session.delete().await?)
}
