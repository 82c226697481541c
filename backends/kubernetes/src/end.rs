//! How a pod ended, and why one does not begin.

use bastide::{Error, ErrorKind, MachineExit};
use bastide_proto::pod::EXPIRED_CODE;

use crate::KubernetesOptions;
use crate::failure::shortened;
use crate::objects::{Pod, Terminated, Waiting};
use crate::pod::GUEST_CONTAINER;

/// What a pod is like.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    /// It is on its way, or runs.
    Alive,
    /// Its node does not answer.
    Lost(String),
    /// It ended.
    Ended(MachineExit),
}

/// What is to be said of a pod.
pub(crate) fn state(pod: &Pod) -> PodState {
    let terminated = pod.container().and_then(|container| container.state.terminated.as_ref());
    let terminated = terminated.or_else(|| pod.failed_guest_container());
    let is_over = matches!(pod.status.phase.as_str(), "Failed" | "Succeeded");
    if is_over || terminated.is_some() {
        return PodState::Ended(ended(pod, terminated));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return PodState::Ended(going(pod));
    }
    // Nothing of ours says that it is not ready: the cluster does so where the node is silent.
    let ready = pod.condition("Ready");
    if pod.is_running()
        && ready
            .is_some_and(|ready| ready.status == "False" && ready.reason != "ContainersNotReady")
    {
        let since =
            ready.and_then(|ready| ready.last_transition_time.as_deref()).unwrap_or("a while");
        return PodState::Lost(format!(
            "its node {} has not answered since {since}",
            pod.spec.node_name
        ));
    }
    PodState::Alive
}

fn ended(pod: &Pod, terminated: Option<&Terminated>) -> MachineExit {
    let status = &pod.status;
    let disrupted =
        pod.condition("DisruptionTarget").filter(|condition| condition.status == "True");
    let code = terminated.map_or(0, |end| end.exit_code);
    let reason = match (status.reason.as_str(), terminated.map(|end| end.reason.as_str())) {
        ("Evicted" | "Preempting" | "Terminated" | "NodeShutdown", _) => "evicted",
        ("DeadlineExceeded", _) => "expired",
        (_, Some("OOMKilled")) => "oom",
        _ if disrupted.is_some() => "evicted",
        (_, Some(_)) if code == i64::from(EXPIRED_CODE) => "expired",
        // A guest ends well only when nobody was heard of for too long.
        _ if terminated.is_some_and(|end| end.exit_code == 0)
            && pod.metadata.deletion_timestamp.is_none() =>
        {
            "abandoned"
        }
        _ => "backend_lost",
    };
    let details = [
        status.message.as_str(),
        disrupted.map_or("", |condition| condition.message.as_str()),
        terminated.map_or("", |end| end.message.as_str()),
    ];
    let details = details.into_iter().find(|text| !text.is_empty()).map(shortened);
    let detail = match (reason, details) {
        ("oom", _) => "its container ran out of memory".to_owned(),
        ("expired", _) if code == i64::from(EXPIRED_CODE) => "its lease ran out".to_owned(),
        ("expired", _) => "its lifetime is over, which the cluster kept".to_owned(),
        ("evicted", Some(details)) => format!("its pod was evicted: {details}"),
        ("evicted", None) => "its pod was evicted".to_owned(),
        ("abandoned", _) => "nobody was heard of for longer than its guest waits".to_owned(),
        ("backend_lost", _) if pod.metadata.deletion_timestamp.is_some() => {
            "its pod was deleted".to_owned()
        }
        (_, Some(details)) => format!("its container ended with {code}: {details}"),
        (_, None) => format!("its container ended with {code}"),
    };
    end(reason, detail)
}

/// A pod that somebody deleted, and that is not gone yet.
fn going(pod: &Pod) -> MachineExit {
    match pod.condition("DisruptionTarget").filter(|condition| condition.status == "True") {
        Some(condition) => {
            end("evicted", format!("its pod was evicted: {}", shortened(&condition.message)))
        }
        None => end("backend_lost", "its pod was deleted".to_owned()),
    }
}

pub(crate) fn end(reason: &str, detail: String) -> MachineExit {
    let mut end = MachineExit::unrecorded(detail);
    reason.clone_into(&mut end.reason);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    end.at_ms = now.ok().and_then(|now| u64::try_from(now.as_millis()).ok());
    end
}

/// Why a pod will not begin, if that can be told already.
pub(crate) fn cannot_begin(pod: &Pod, options: &KubernetesOptions) -> Option<Error> {
    let containers =
        pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    let waiting = containers.filter_map(|container| {
        let mut asked = pod.spec.containers.iter();
        let image = match (&options.guest_image, asked.find(|asked| asked.name == container.name)) {
            (Some(image), _) if container.name == GUEST_CONTAINER => image,
            (_, Some(asked)) => &asked.image,
            (_, None) => &options.image,
        };
        container.state.waiting.as_ref().map(|waiting| (waiting, image))
    });
    waiting.filter_map(|(waiting, image)| refusal(waiting, image)).next()
}

fn refusal(waiting: &Waiting, image: &str) -> Option<Error> {
    let details = shortened(&waiting.message);
    let says =
        |phrases: &[&str]| phrases.iter().any(|phrase| details.to_lowercase().contains(phrase));
    let (kind, message, hint) = match waiting.reason.as_str() {
        "InvalidImageName" => (
            ErrorKind::InvalidInput,
            format!("{image:?} is no name of an image: {details}"),
            "write registry, name and tag",
        ),
        "ErrImageNeverPull" => (
            ErrorKind::NotFound,
            format!("the node does not have the image {image}: {details}"),
            "put it on the nodes, or let them pull it",
        ),
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" | "ImageInspectError" => {
            let denied =
                ["unauthorized", "denied", "forbidden", "authentication required", "401", "403"];
            match says(&denied) {
                true => (
                    ErrorKind::PermissionDenied,
                    format!("the node may not pull the image {image}: {details}"),
                    "name a secret of the namespace with `KubernetesOptions::pull_secrets`",
                ),
                false => (
                    ErrorKind::NotFound,
                    format!("the node cannot pull the image {image}: {details}"),
                    "is its name right, with registry and tag, and can nodes reach the registry?",
                ),
            }
        }
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "CreateSandboxError" => (
            ErrorKind::Unsupported,
            format!("the node cannot start the container: {}: {details}", waiting.reason),
            "the message is the node's own",
        ),
        _ => return None,
    };
    let error = Error::new(kind, message).with_hint(hint).with_context("image", image);
    Some(error.with_context("reason", waiting.reason.clone()))
}

/// What a pod waited for until nobody did any more.
pub(crate) fn timed_out(
    pod: Option<&Pod>,
    queue: Option<&str>,
    most: std::time::Duration,
) -> Error {
    let seconds = most.as_secs();
    if let (None, Some(queue)) = (pod, queue) {
        let message = format!("the queue {queue} did not admit the session within {seconds} s");
        return Error::new(ErrorKind::Timeout, message)
            .with_hint("is there a queue of that name in the namespace, and room in it? Wait longer with `KubernetesOptions::boot_seconds`");
    }
    let Some(pod) = pod else {
        let message = format!("the cluster made no pod within {seconds} s");
        return Error::new(ErrorKind::Timeout, message)
            .with_hint("does its Job controller run, and does the quota of the namespace have room? `kubectl describe job` says more");
    };
    let scheduled = pod.condition("PodScheduled").filter(|condition| condition.status == "False");
    if let Some(scheduled) = scheduled {
        let message = format!(
            "no node takes the pod ({}): {}",
            scheduled.reason,
            shortened(&scheduled.message)
        );
        return Error::new(ErrorKind::LimitExceeded, message)
            .with_hint("look at `ResourceLimits::memory`, `ResourceLimits::cpu_millis`, `KubernetesOptions::node_selector` and `KubernetesOptions::tolerations`, and at what the nodes have");
    }
    let waiting = pod.container().and_then(|container| container.state.waiting.as_ref());
    let (reason, details) =
        waiting.map_or(("", ""), |waiting| (waiting.reason.as_str(), waiting.message.as_str()));
    let message = format!(
        "the pod {} on node {} was not there within {seconds} s: {} {reason} {}",
        pod.metadata.name,
        pod.spec.node_name,
        pod.status.phase,
        shortened(details),
    );
    Error::new(ErrorKind::Timeout, message.trim_end()).with_hint(
        "give it longer with `KubernetesOptions::boot_seconds`; `kubectl describe pod` says what it waits for",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: &str) -> Pod {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn says_why_a_pod_ended() {
        let table = [
            (
                r#"{"status":{"phase":"Failed","reason":"Evicted","message":"Pod ephemeral local storage usage exceeds"}}"#,
                "evicted",
                "exceeds",
            ),
            (
                r#"{"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"reason":"OOMKilled","exitCode":137}}}]}}"#,
                "oom",
                "memory",
            ),
            (r#"{"status":{"phase":"Failed","reason":"DeadlineExceeded"}}"#, "expired", "lifetime"),
            (
                r#"{"status":{"phase":"Failed","conditions":[{"type":"DisruptionTarget","status":"True","message":"preempting"}]}}"#,
                "evicted",
                "preempting",
            ),
            (
                r#"{"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"reason":"Error","exitCode":3}}}]}}"#,
                "backend_lost",
                "ended with 3",
            ),
            (
                r#"{"status":{"phase":"Succeeded","containerStatuses":[{"state":{"terminated":{"exitCode":0}}}]}}"#,
                "abandoned",
                "nobody",
            ),
            (
                r#"{"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"reason":"Error","exitCode":124}}}]}}"#,
                "expired",
                "lease",
            ),
            (
                r#"{"metadata":{"deletionTimestamp":"x"},"status":{"phase":"Running"}}"#,
                "backend_lost",
                "deleted",
            ),
            (
                r#"{"metadata":{"deletionTimestamp":"x"},"status":{"phase":"Failed","containerStatuses":[{"state":{"terminated":{"exitCode":137}}}]}}"#,
                "backend_lost",
                "deleted",
            ),
        ];
        for (text, reason, phrase) in table {
            let PodState::Ended(end) = state(&pod(text)) else { panic!("{text}") };
            assert_eq!(end.reason, reason, "{text}");
            assert!(end.detail.contains(phrase), "{}", end.detail);
        }
        assert_eq!(state(&pod(r#"{"status":{"phase":"Running"}}"#)), PodState::Alive);
    }

    #[test]
    fn names_the_node_that_does_not_answer() {
        let text = r#"{"spec":{"nodeName":"n3"},"status":{"phase":"Running","containerStatuses":[{"state":{"running":{}}}],
            "conditions":[{"type":"Ready","status":"False","lastTransitionTime":"T"}]}}"#;
        assert_eq!(
            state(&pod(text)),
            PodState::Lost("its node n3 has not answered since T".to_owned())
        );
    }

    #[test]
    fn says_at_once_what_will_never_begin() {
        let table = [
            ("InvalidImageName", "", ErrorKind::InvalidInput),
            ("ErrImageNeverPull", "", ErrorKind::NotFound),
            ("ErrImagePull", "pull access denied", ErrorKind::PermissionDenied),
            ("ImagePullBackOff", "no such host", ErrorKind::NotFound),
            ("CreateContainerConfigError", "secret not found", ErrorKind::Unsupported),
        ];
        for (reason, message, kind) in table {
            let waiting = Waiting { reason: reason.to_owned(), message: message.to_owned() };
            assert_eq!(refusal(&waiting, "x").unwrap().kind(), kind, "{reason}");
        }
        for patient in ["ContainerCreating", "PodInitializing", "Pulling"] {
            let waiting = Waiting { reason: patient.to_owned(), message: String::new() };
            assert!(refusal(&waiting, "x").is_none(), "{patient}");
        }
    }
}
