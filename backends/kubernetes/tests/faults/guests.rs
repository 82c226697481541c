//! How the guest gets into pods: from an image, and what becomes of ConfigMaps that no pod has.

use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind, SweepMode};
use bastide_kubernetes::{KubernetesOptions, guest_image};
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for, say};
use bastide_testkit::trials;

use crate::{NAMESPACE, administer, backend_with, cluster, objects};

pub(crate) const TRIALS: &[Trial] = trials![
    takes_the_guest_from_an_image,
    says_that_an_image_has_no_guest_of_this_version,
    sweeps_guests_that_no_pod_has,
];

/// What nodes are given instead of a registry.
const IMAGE: &str = "registry.example/bastide-test/guest:1";

fn from_image(image: &str) -> impl FnOnce(&mut KubernetesOptions) {
    let image = image.to_owned();
    move |options| options.guest_image = Some(image)
}

async fn takes_the_guest_from_an_image(_: Context) -> Outcome {
    let (home, archive) = (tempfile::tempdir()?, tempfile::NamedTempFile::new()?);
    std::fs::write(archive.path(), guest_image(Some(IMAGE))?)?;
    cluster()?.import(archive.path())?;
    for image in [images::BASE, images::EMPTY] {
        let backend = backend_with(home.path(), |options| {
            from_image(IMAGE)(options);
            options.image = image.to_owned();
        })?;
        let client = client_for(Arc::new(backend));
        let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
        let selector = format!("bastide.session={}", session.id());
        let path = "jsonpath={.items[0].spec.volumes[?(@.name==\"bin\")]}";
        let bin = administer(&["-n", NAMESPACE, "get", "pods", "-l", &selector, "-o", path])?;
        assert!(bin.contains("emptyDir") && !bin.contains("configMap"), "{bin}");
        if image == images::BASE {
            assert_eq!(
                say(&session, "id -u; ls /.bastide/bin/loader").await?,
                "1000\n/.bastide/bin/loader\n"
            );
            assert_ne!(say(&session, "touch /.bastide/bin/x 2>&1; true").await?, "");
        }
        session.delete().await?;
    }
    Ok(())
}

async fn says_that_an_image_has_no_guest_of_this_version(_: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let refused = async |image: &str| -> Result<bastide::Error, TrialError> {
        let client = client_for(Arc::new(backend_with(home.path(), from_image(image))?));
        let made = client.create(&Manifest::default(), CreateOptions::default()).await;
        Ok(made.err().ok_or("it was had")?)
    };
    let error = refused("bastide-test/nothing:1").await?;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("bastide-test/nothing:1"), "{error}");
    // There is no loader in it.
    let error = refused(images::BASE).await?;
    assert!(error.to_string().contains("loader") || error.hint().is_some(), "{error}");
    Ok(())
}

async fn sweeps_guests_that_no_pod_has(context: Context) -> Outcome {
    let home = tempfile::tempdir()?;
    let backend = Arc::new(crate::backend(home.path())?);
    let client = client_for(backend.clone());
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let old = "bastide-guest-0123456789abcdef-0";
    administer(&["-n", NAMESPACE, "create", "configmap", old, "--from-literal=part-0=x"])?;
    administer(&["-n", NAMESPACE, "label", "configmap", old, "bastide.guest=0123456789abcdef"])?;
    let before = objects("configmaps", "bastide.guest")?;
    let would = backend.sweep_guests(SweepMode::Report).await?;
    assert!(would.removed.len() == 1 && would.removed[0].contains(old), "{would:?}");
    assert_eq!(objects("configmaps", "bastide.guest")?, before);
    let swept = backend.sweep_guests(SweepMode::Remove).await?;
    assert_eq!(swept, would);
    let left = objects("configmaps", "bastide.guest")?;
    assert!(!left.is_empty() && !left.iter().any(|name| name == old), "{left:?}");
    session.delete().await?;
    // What this version needs stays, and works.
    assert_eq!(say(&context.session().await?, "echo there").await?, "there\n");
    Ok(())
}
