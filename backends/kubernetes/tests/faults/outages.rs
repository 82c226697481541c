//! Parts of a cluster that are killed while a command speaks: it does not notice.

use std::time::{Duration, Instant};

use bastide::{Command, Session, SessionStatus};
use bastide_testkit::suite::{Context, Outcome, Trial, say, sh};
use bastide_testkit::trials;

use crate::{administer, cluster};

/// How many lines a command says, a hundred a tenth of a second.
const LINES: usize = 15_000;

pub(crate) const TRIALS: &[Trial] = trials![
    output_goes_on_when_the_api_server_is_killed,
    output_goes_on_when_the_store_is_stopped,
    output_goes_on_when_a_kubelet_restarts,
    output_goes_on_when_an_engine_restarts,
    waits_for_a_server_that_has_too_much_to_do,
    says_which_node_does_not_answer,
];

fn numbered() -> Command {
    sh(&format!(
        "i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; [ $((i % 100)) -ne 0 ] || sleep 0.1; done; exit 7"
    ))
}

/// Runs the command while something of the cluster is away for a time.
async fn disturb(context: &Context, name: &'static str, pause: Duration) -> Outcome {
    let cluster = cluster()?;
    let session: Session = context.session().await?;
    let away = tokio::task::spawn_blocking(move || cluster.restart(name, pause));
    let output = session.exec(numbered().timeout(Duration::from_secs(200))).await?;
    away.await??;
    let expected: String = (1..=LINES).map(|number| format!("line {number}\n")).collect();
    assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.exit.code, 7);
    assert_eq!(say(&session, "echo still there").await?, "still there\n");
    Ok(session.delete().await?)
}

async fn output_goes_on_when_the_api_server_is_killed(context: Context) -> Outcome {
    disturb(&context, "apiserver", Duration::from_secs(10)).await
}

async fn output_goes_on_when_the_store_is_stopped(context: Context) -> Outcome {
    disturb(&context, "etcd", Duration::from_secs(5)).await
}

async fn output_goes_on_when_a_kubelet_restarts(context: Context) -> Outcome {
    disturb(&context, "kubelet", Duration::ZERO).await?;
    disturb(&context, "kubelet2", Duration::ZERO).await
}

async fn output_goes_on_when_an_engine_restarts(context: Context) -> Outcome {
    disturb(&context, "containerd", Duration::ZERO).await?;
    disturb(&context, "containerd2", Duration::ZERO).await
}

/// The server's own limits are set so low for ten seconds that it takes nothing from whom these tests are.
async fn waits_for_a_server_that_has_too_much_to_do(context: Context) -> Outcome {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), FULL)?;
    let path = file.path().to_string_lossy().into_owned();
    administer(&["apply", "-f", &path])?;
    // A server that has taken its new limits does not keep them yet.
    let dump = "/debug/api_priority_and_fairness/dump_priority_levels";
    let is_kept = || Ok(administer(&["get", "--raw", dump])?.contains("bastide-test-full"));
    crate::until(Duration::from_secs(30), "the server keeps its limits", is_kept).await?;
    let removed = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        administer(&["delete", "-f", &path]).map_err(|error| error.to_string())
    });
    let begun = Instant::now();
    let made = context.session().await;
    let took = begun.elapsed();
    removed.await??;
    let session = made?;
    assert!(took >= Duration::from_secs(5), "nobody had to wait: {took:?}");
    assert_eq!(say(&session, "echo there").await?, "there\n");
    Ok(session.delete().await?)
}

const FULL: &str = r#"
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: bastide-test-full}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: bastide-test-full}
spec:
  priorityLevelConfiguration: {name: bastide-test-full}
  matchingPrecedence: 2
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: bastide-host, namespace: bastide-test}}]
    resourceRules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"], namespaces: ["*"], clusterScope: true}]
"#;

/// A node that is gone for good: it is named, calls end in time, and the session can be removed.
async fn says_which_node_does_not_answer(context: Context) -> Outcome {
    let session = context.session().await?;
    let selector = format!("bastide.session={}", session.id());
    let path = "jsonpath={.items[0].spec.nodeName}";
    let node = administer(&["-n", crate::NAMESPACE, "get", "pods", "-l", &selector, "-o", path])?;
    let number = node.rsplit('.').next().and_then(|last| last.parse::<u8>().ok());
    let number = number.and_then(|last| last.checked_sub(1)).ok_or("no number of a node")?;
    let (cluster, client) = (cluster()?, context.client());
    let kubelet = format!("kubelet{number}");
    cluster.kill(&kubelet)?;
    let outcome: Outcome = async {
        let begun = Instant::now();
        let said = loop {
            let info = client.inspect(session.id()).await?;
            match info.trouble {
                Some(trouble) if trouble.contains(&node) => break info.status,
                _ if begun.elapsed() > Duration::from_secs(30) => {
                    return Err("nobody said so".into());
                }
                _ => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        };
        assert_eq!(said, SessionStatus::Unknown);
        let removal = Instant::now();
        assert!(client.delete(session.id()).await?);
        assert!(removal.elapsed() < Duration::from_secs(60), "{:?}", removal.elapsed());
        Ok(())
    }
    .await;
    cluster.restart(&kubelet, Duration::ZERO)?;
    outcome
}
