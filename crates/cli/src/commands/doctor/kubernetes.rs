//! What `bastide doctor` says about a Kubernetes cluster.

use bastide::Result;
use bastide_kubernetes::{ClusterAccess, ClusterReport};
use serde_json::{Value, json};

use super::fix_of;
use crate::ui::{hint, message, with_flags};

/// The cluster that would be used, and what came of asking it.
pub(super) struct ClusterFinding {
    outcome: Result<ClusterReport>,
}

impl ClusterFinding {
    pub(super) async fn look(access: Result<ClusterAccess>) -> Self {
        let outcome = match access {
            Ok(access) => ClusterReport::of(&access).await,
            Err(error) => Err(error),
        };
        Self { outcome }
    }

    pub(super) fn object(&self) -> Value {
        match &self.outcome {
            Ok(report) => {
                let missing: Vec<_> = report
                    .missing
                    .iter()
                    .map(|right| json!({ "what": right.what, "for": with_flags(&right.purpose), "needed": right.needed }))
                    .collect();
                json!({
                    "works": report.is_usable(),
                    "server": report.server,
                    "context": report.context,
                    "namespace": report.namespace,
                    "version": report.version,
                    "missing": missing,
                    "fix": (!report.missing.is_empty()).then(|| apply(&report.namespace)),
                })
            }
            Err(error) => json!({
                "works": false,
                "missing": [{ "what": message(error), "fix": fix_of(error) }],
            }),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let report = match &self.outcome {
            Ok(report) => report,
            Err(error) => {
                let mut lines = vec![format!("kubernetes  does not work: {}", message(error))];
                lines.extend(hint(error).map(|hint| format!("  fix       {hint}")));
                return lines;
            }
        };
        let works = if report.is_usable() { "works" } else { "does not work" };
        let mut lines =
            vec![format!("kubernetes  {works}: {} at {}", report.version, report.server)];
        lines.push(format!(
            "  place     namespace {} of context {}",
            report.namespace, report.context
        ));
        for right in &report.missing {
            let need = if right.needed { "" } else { " (sessions work without)" };
            lines.push(format!("  missing   {}: {}{need}", right.what, with_flags(&right.purpose)));
        }
        if !report.missing.is_empty() {
            lines.push(format!("  fix       {}", apply(&report.namespace)));
        }
        lines
    }
}

fn apply(namespace: &str) -> String {
    format!("bastide kubernetes manifest -n {namespace} | kubectl apply -f -")
}
