//! What is wrong between this host and a cluster that works: each is one failure that names the thing and what to do, and never
//! a credential.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{CreateOptions, Error, ErrorKind};
use bastide_kubernetes::{ClusterAccess, ClusterReport, KubernetesBackend, KubernetesOptions};
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, client_for};
use bastide_testkit::trials;
use serde_json::{Value, json};

use crate::{administer, cluster};

pub(crate) const TRIALS: &[Trial] = trials![
    names_an_authority_a_token_and_a_namespace_that_are_not_right,
    makes_nothing_in_a_namespace_that_is_on_its_way_out,
];

/// What must be in no message.
const SECRET: &str = "s3cr3t-t0ken";

/// The administrator's kubeconfig with something else in it.
fn changed(dir: &Path, change: impl FnOnce(&mut Value)) -> Result<ClusterAccess, TrialError> {
    let mut config = serde_json::from_slice(&std::fs::read(cluster()?.kubeconfig())?)?;
    change(&mut config);
    let path = dir.join("kubeconfig");
    std::fs::write(&path, config.to_string())?;
    Ok(ClusterAccess::new(vec![path]))
}

async fn refused(access: &ClusterAccess) -> Result<Error, TrialError> {
    let error = ClusterReport::of(access).await.err().ok_or("the cluster was reached")?;
    let all = format!("{error} {:?} {:?}", error.hint(), error.context());
    assert!(!all.contains(SECRET), "{all}");
    Ok(error)
}

/// The certificate of an authority that nobody has anything from.
fn another_authority(dir: &Path) -> Result<PathBuf, TrialError> {
    let (key, certificate) = (dir.join("key.pem"), dir.join("ca.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=another"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let made = openssl.output()?;
    match made.status.success() {
        true => Ok(certificate),
        false => Err(String::from_utf8_lossy(&made.stderr).into_owned().into()),
    }
}

async fn names_an_authority_a_token_and_a_namespace_that_are_not_right(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let dir = folder.path();
    let authority = another_authority(dir)?;
    let access = changed(dir, |config| {
        let server = config["clusters"][0]["cluster"]["server"].clone();
        config["clusters"][0]["cluster"] =
            json!({ "server": server, "certificate-authority": authority });
    })?;
    let error = refused(&access).await?;
    assert_eq!(error.kind(), ErrorKind::BackendLost, "{error}");
    assert!(error.hint().unwrap_or_default().contains("certificate authority"), "{error:?}");

    let access = changed(dir, |config| config["users"][0]["user"]["token"] = json!(SECRET))?;
    let error = refused(&access).await?;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.hint().unwrap_or_default().contains("sign in"), "{error:?}");

    let access = changed(dir, |_| {})?.namespace(Some("nothing".to_owned()));
    let error = refused(&access).await?;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("nothing"), "{error}");
    assert!(error.hint().unwrap_or_default().contains("ClusterAccess::namespace"), "{error:?}");
    Ok(())
}

async fn makes_nothing_in_a_namespace_that_is_on_its_way_out(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let name = "bastide-test-going";
    administer(&["create", "namespace", name])?;
    // It stays on its way out for as long as something in it is held.
    administer(&["-n", name, "create", "configmap", "held"])?;
    let hold = r#"{"metadata": {"finalizers": ["bastide.test/held"]}}"#;
    administer(&["-n", name, "patch", "configmap", "held", "--type", "merge", "-p", hold])?;
    administer(&["delete", "namespace", name, "--wait=false"])?;
    let outcome = makes_nothing(folder.path(), name).await;
    let leave = r#"{"metadata": {"finalizers": null}}"#;
    administer(&["-n", name, "patch", "configmap", "held", "--type", "merge", "-p", leave])?;
    outcome
}

async fn makes_nothing(dir: &Path, namespace: &str) -> Outcome {
    let access = changed(dir, |_| {})?.namespace(Some(namespace.to_owned()));
    let home = dir.join("home");
    let backend = KubernetesBackend::new(&home, access, KubernetesOptions::new(images::BASE))?;
    let client = client_for(Arc::new(backend));
    let made = client.create(&Manifest::default(), CreateOptions::default()).await;
    let error = made.err().ok_or("it was made")?;
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.hint().unwrap_or_default().contains("being removed"), "{error:?}");
    assert_eq!(std::fs::read_dir(home.join("sessions"))?.count(), 0);
    Ok(())
}
