//! Sessions from a pool of agent-sandbox, which has pods ready: each waits for its session with the guest in it, and a claim makes it
//! the session's. What is in a pool is what its template says; a session only looks whether that is what it asked for.

use bastide::{Error, ErrorKind, MachineSpec, NetworkAccess, Result, SessionId};
use bastide_guest_bin::HASH;
use bastide_proto::pod::POOL;
use serde_json::{Map, Value, json};

use crate::failure::{ApiStatus, refused, shortened, wrong_option};
use crate::guest_parts::GuestParts;
use crate::objects::{Condition, ContainerSpec, OwnerObject, Pod};
use crate::options::is_object_name;
use crate::owner::{API_VERSION, POOLS};
use crate::patch;
use crate::pod::{
    CAPABILITIES, CONTAINER, HOME_LABEL as OWN_HOME, NETWORK_LABEL, Plan,
    SESSION_LABEL as OWN_SESSION, guest_command,
};
use crate::{KubernetesOptions, Owner};

/// The label of a pool's pods that says whose session one has become. A claim can only give labels of this domain, unless the
/// controller is told otherwise.
pub(crate) const SESSION_LABEL: &str = "sandbox.users.io/bastide-session";

/// The label that says where that session is remembered.
pub(crate) const HOME_LABEL: &str = "sandbox.users.io/bastide-home";

/// The label that claim and pod have in common: a pod that a former claim of the session had is not this one's.
const CLAIM_LABEL: &str = "sandbox.users.io/bastide-claim";

/// What to do about a pool that is not as sessions need it.
const PRINT_HINT: &str = "`bastide kubernetes pool` prints one for this version";

/// What of a claim is the session's own: the rest is the pool's.
pub(crate) fn claim_request(pool: &str, id: &SessionId, home: &str) -> Value {
    let labels = json!({ SESSION_LABEL: id, HOME_LABEL: home, CLAIM_LABEL: SessionId::random() });
    json!({ "pool": pool, "labels": labels })
}

/// A claim of one that a pool has ready, with what was asked.
pub(crate) fn claim(metadata: &Value, request: &Value, shutdown: &str) -> Value {
    let mut metadata = metadata.clone();
    metadata["labels"][CLAIM_LABEL] = request["labels"][CLAIM_LABEL].clone();
    json!({
        "apiVersion": format!("{POOLS}/{API_VERSION}"),
        "kind": "SandboxClaim",
        "metadata": metadata,
        // Variables and volumes would have the controller make a pod instead of taking one.
        "spec": {
            "warmPoolRef": { "name": request["pool"] },
            "additionalPodMetadata": { "labels": request["labels"] },
            "lifecycle": {
                "shutdownTime": shutdown,
                "shutdownPolicy": "Delete",
                "ttlSecondsAfterFinished": crate::job_keep_alive::TIED_SECONDS,
            },
        },
    })
}

/// Whether a pod is the one that this claim got.
pub(crate) fn is_of(pod: &Pod, claim: &OwnerObject) -> bool {
    let label = claim.metadata.labels.get(CLAIM_LABEL);
    let is_sandbox = pod.metadata.owner_references.iter().any(|of| of.kind == "Sandbox");
    is_sandbox && label.is_some() && pod.metadata.labels.get(CLAIM_LABEL) == label
}

/// Refuses what only a pod that is yet to be made can be asked for.
pub(crate) fn check_options(options: &KubernetesOptions) -> Result<()> {
    let all = [
        ("KubernetesOptions::image", !options.image.is_empty()),
        ("KubernetesOptions::owner", options.owner == Owner::Sandbox),
        ("KubernetesOptions::pull", options.pull != Default::default()),
        ("KubernetesOptions::pull_secrets", !options.pull_secrets.is_empty()),
        ("KubernetesOptions::labels", !options.labels.is_empty()),
        ("KubernetesOptions::runtime_class", options.runtime_class.is_some()),
        ("KubernetesOptions::node_selector", !options.node_selector.is_empty()),
        ("KubernetesOptions::tolerations", !options.tolerations.is_empty()),
        ("KubernetesOptions::priority_class", options.priority_class.is_some()),
        ("KubernetesOptions::user", options.user.is_some()),
        ("KubernetesOptions::many_users", options.many_users),
        ("KubernetesOptions::own_users", options.own_users),
        ("KubernetesOptions::read_only_root", options.read_only_root),
        ("KubernetesOptions::volume", options.volume.is_some()),
        ("KubernetesOptions::claims", !options.claims.is_empty()),
        ("KubernetesOptions::pod_patch", options.pod_patch.is_some()),
        ("KubernetesOptions::requests_percent", options.requests_percent.is_some()),
        ("KubernetesOptions::queue", options.queue.is_some()),
        ("KubernetesOptions::guest_image", options.guest_image.is_some()),
    ];
    match all.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(made_already(option)),
        None => Ok(()),
    }
}

/// The same for what a session of any backend can be asked for.
pub(crate) fn check_spec(spec: &MachineSpec) -> Result<()> {
    let limits = &spec.limits;
    let all = [
        ("ResourceLimits::memory", limits.memory.is_some()),
        ("ResourceLimits::cpu_millis", limits.cpu_millis.is_some()),
        ("ResourceLimits::disk", limits.disk.is_some()),
    ];
    match all.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(made_already(option)),
        None => Ok(()),
    }
}

fn made_already(option: &str) -> Error {
    wrong_option(option, "the pods of a pool are made already")
        .with_hint("give it to `bastide kubernetes pool`, or leave `KubernetesOptions::pool` out")
}

/// A failure that is the pool's.
fn pool_error(kind: ErrorKind, why: &str) -> Error {
    let option = "KubernetesOptions::pool";
    Error::new(kind, format!("`{option}`: {why}")).with_context("option", option)
}

/// Refuses a pod that is not what a session is to be, or less closed: its template is somebody else's.
pub(crate) fn check_pod(pool: &str, pod: &Pod, spec: &MachineSpec) -> Result<()> {
    let wrong = |kind: ErrorKind, why: String, hint: &str| {
        Err(pool_error(kind, &format!("the pods of {pool} {why}")).with_hint(hint))
    };
    let found = pod.spec.containers.iter().find(|container| container.name == CONTAINER);
    let loader = guest_command(&["container", POOL]);
    let Some(container) = found.filter(|found| found.command.first() == loader.first()) else {
        let why = "have no guest that waits for a session".to_owned();
        return wrong(ErrorKind::Unsupported, why, PRINT_HINT);
    };
    if container.command != loader {
        let why = match container.command.get(1).map(String::as_str) == Some(HASH) {
            true => "have a guest that does not wait for a session".to_owned(),
            false => "have the guest of another version".to_owned(),
        };
        return wrong(ErrorKind::Unsupported, why, PRINT_HINT);
    }
    if let Some(open) = weakened_wall(pod, container) {
        let why = format!("are less closed than sessions are: {open}");
        return wrong(ErrorKind::Unsupported, why, PRINT_HINT);
    }
    let network = network_label(spec.network);
    let label = pod.metadata.labels.get(NETWORK_LABEL).map_or("another", String::as_str);
    if label != network {
        let why = format!("have the network `{label}`, and the session is to have `{network}`");
        return wrong(
            ErrorKind::InvalidInput,
            why,
            "choose with `CreateOptions::network` what the pool has",
        );
    }
    let root = spec.root.as_str();
    if !container.volume_mounts.iter().any(|mount| mount.mount_path == root) {
        let why = format!("have no workspace {root}");
        return wrong(ErrorKind::InvalidInput, why, "leave the folder of the workspace as it is");
    }
    Ok(())
}

/// What of a pod lowers a wall that every receipt of a pod names.
fn weakened_wall(pod: &Pod, container: &ContainerSpec) -> Option<&'static str> {
    let own = &container.security_context;
    let profile =
        own.seccomp_profile.as_ref().or(pod.spec.security_context.seccomp_profile.as_ref());
    let is_kind = |key: &String| key == "name" || patch::VOLUMES.contains(&key.as_str());
    let is_known = |name: &String| CAPABILITIES.contains(&name.as_str());
    let all = [
        ("hostNetwork", pod.spec.host_network),
        ("hostPID", pod.spec.host_pid),
        ("hostIPC", pod.spec.host_ipc),
        ("shareProcessNamespace", pod.spec.share_process_namespace),
        ("volumes", !pod.spec.volumes.iter().flat_map(|volume| volume.keys()).all(is_kind)),
        ("privileged", own.privileged),
        ("allowPrivilegeEscalation", own.allow_privilege_escalation != Some(false)),
        ("capabilities", !own.capabilities.drop.iter().any(|name| name == "ALL")),
        ("capabilities", !own.capabilities.add.iter().all(is_known)),
        ("seccompProfile", profile.is_none_or(|profile| profile.kind != "RuntimeDefault")),
        // A container that starts again still has the files of the session before.
        ("restartPolicy", pod.spec.restart_policy != "Never"),
    ];
    all.into_iter().find(|(_, is_open)| *is_open).map(|(name, _)| name)
}

/// Why a claim gets nothing, if waiting does not help.
pub(crate) fn refusal(pool: &str, claim: &OwnerObject) -> Option<Error> {
    let ready = ready(claim)?;
    let said = shortened(&ready.message);
    let error = match ready.reason.as_str() {
        "WarmPoolNotFound" => {
            let why = format!("there is no pool {pool} in the namespace");
            pool_error(ErrorKind::NotFound, &why).with_hint(PRINT_HINT)
        }
        "TemplateNotFound" => {
            let why = format!("the pool {pool} has no template: {said}");
            pool_error(ErrorKind::NotFound, &why).with_hint(PRINT_HINT)
        }
        "InvalidMetadata" => {
            let why = format!("agent-sandbox takes no labels of Bastide: {said}");
            let hint =
                "let its controller have the label domain sandbox.users.io, as it has unless told";
            pool_error(ErrorKind::Unsupported, &why).with_hint(hint)
        }
        "ReconcilerError" if said.contains("forbidden") => {
            let api_status = ApiStatus { message: said, ..ApiStatus::default() };
            return Some(refused("make the pod", 403, &api_status));
        }
        _ => return None,
    };
    Some(error)
}

/// What a claim waited for until nobody did any more.
pub(crate) fn timed_out(
    pool: &str,
    claim: Option<&OwnerObject>,
    most: std::time::Duration,
) -> Error {
    let said = claim.and_then(ready).map(|ready| shortened(&ready.message));
    let said =
        said.filter(|said| !said.is_empty()).unwrap_or_else(|| "nothing was said".to_owned());
    let message = format!("the pool {pool} gave no pod within {} s: {said}", most.as_secs());
    Error::new(ErrorKind::Timeout, message)
        .with_context("option", "KubernetesOptions::pool")
        .with_hint("does agent-sandbox's controller run, and does the pool have replicas? `kubectl describe sandboxclaim` says more")
}

fn ready(claim: &OwnerObject) -> Option<&Condition> {
    let mut all = claim.status.conditions.iter();
    all.find(|one| one.kind == "Ready" && one.status != "True")
}

fn network_label(network: NetworkAccess) -> &'static str {
    if network == NetworkAccess::None { "none" } else { "egress" }
}

/// A pool as a file for `kubectl apply --server-side`: its template, how many pods it has ready, and the guest, unless that comes from
/// an image.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`] for what no pod of a pool can have; the message names the option.
pub fn pool_manifest(
    namespace: &str,
    name: &str,
    replicas: u32,
    spec: &MachineSpec,
    options: &KubernetesOptions,
) -> Result<String> {
    if !is_object_name(name) {
        let message = format!("{name:?} is no name of a pool");
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    options.check()?;
    let of_session = [
        ("KubernetesOptions::pool", options.pool.is_some()),
        ("KubernetesOptions::owner", options.owner != Owner::Job),
        ("KubernetesOptions::queue", options.queue.is_some()),
        ("KubernetesOptions::volume", options.volume.is_some()),
        ("KubernetesOptions::boot_seconds", options.boot_seconds.is_some()),
        ("KubernetesOptions::lifetime_seconds", options.lifetime_seconds.is_some()),
    ];
    if let Some((option, _)) = of_session.into_iter().find(|(_, given)| *given) {
        return Err(wrong_option(option, "that is a session's own, and not a pool's"));
    }
    let lowered = options.pod_patch.as_ref().map(patch::lowered_walls).unwrap_or_default();
    if let Some(open) = lowered.first() {
        let why = format!("{open} lowers a wall, which pods of a pool cannot");
        return Err(wrong_option(patch::OPTION, &why));
    }
    crate::refusal::check(spec, options)?;
    let guest = GuestParts::embedded()?;
    let mut objects = match options.guest_image {
        Some(_) => Vec::new(),
        None => guest.objects(),
    };
    // Nobody's yet.
    let (id, parts) = (SessionId::random(), guest.names());
    let plan = Plan { id: &id, home: "", spec, options, parts: &parts, image_volumes: false };
    let mut labels: Map<String, Value> = plan.labels();
    labels.retain(|label, _| label != OWN_HOME && label != OWN_SESSION);
    let of_all = labels.clone();
    let mut template = plan.template(labels)?;
    if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) {
        pod.remove("hostname");
    }
    if let Some(command) = template.pointer_mut("/spec/containers/0/command") {
        *command = json!(guest_command(&["container", POOL]));
    }
    objects.push(json!({
        "apiVersion": format!("{POOLS}/{API_VERSION}"),
        "kind": "SandboxTemplate",
        "metadata": { "name": name, "labels": of_all.clone() },
        // The policies of the namespace hold by label; one more of the controller's would open what they close.
        "spec": { "podTemplate": template, "networkPolicyManagement": "Unmanaged" },
    }));
    objects.push(json!({
        "apiVersion": format!("{POOLS}/{API_VERSION}"),
        "kind": "SandboxWarmPool",
        "metadata": { "name": name, "labels": of_all },
        "spec": { "replicas": replicas, "sandboxTemplateRef": { "name": name }, "updateStrategy": { "type": "Recreate" } },
    }));
    let mut out = String::from(
        "# A pool for `KubernetesOptions::pool`. `kubectl apply --server-side -f -` makes it.\n",
    );
    for mut object in objects {
        object["metadata"]["namespace"] = namespace.into();
        let text = serde_json::to_string_pretty(&object);
        let text = text.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        out.push_str("---\n");
        out.push_str(&text);
        out.push('\n');
    }
    Ok(out)
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
