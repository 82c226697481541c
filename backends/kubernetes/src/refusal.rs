//! What pods do not have.

use bastide::{Error, ErrorKind, Isolation, MachineSpec, NetworkAccess, Result, Rung};

use crate::failure::wrong_option;
use crate::{KubernetesOptions, patch, pool};

/// Refuses what pods do not have, before anything of one is made.
pub(crate) fn check(spec: &MachineSpec, options: &KubernetesOptions) -> Result<()> {
    if options.pool.is_some() {
        pool::check_spec(spec)?;
    }
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(ErrorKind::Unsupported, what.to_owned()).with_hint(hint))
    };
    match spec.isolation {
        Isolation::Exactly(rung) if rung != Rung::Container => {
            let what = format!("a pod is not confined by `{}`", rung.as_str());
            return refuse(&what, "leave the isolation to the backend");
        }
        _ => {}
    }
    if spec.nested_sandbox {
        return refuse("pods have no option for sandboxes inside them", "use the backend `local`");
    }
    match spec.network {
        NetworkAccess::None | NetworkAccess::Bridge => {}
        NetworkAccess::Policy => {
            return refuse(
                "pods have no network with a policy of Bastide",
                "use `none` or `egress`, or the backend `local`",
            );
        }
        other => {
            let what = format!("pods have no network `{}`", other.as_str());
            return refuse(&what, "use `none` or `egress`");
        }
    }
    if options.unproved_network && spec.network != NetworkAccess::None {
        return refuse(
            "only a network that is closed can be taken for closed",
            "leave out `unproved`",
        );
    }
    let root = spec.root.as_str();
    let hides = |path: &str| root == path || root.starts_with(&format!("{path}/"));
    let claims =
        options.claims.iter().map(|claim| ("KubernetesOptions::claims", claim.path.as_str()));
    let patched = options.pod_patch.iter().flat_map(patch::mount_paths);
    let mut mounts = claims.chain(patched.map(|path| (patch::OPTION, path)));
    if let Some((option, path)) = mounts.find(|(_, path)| hides(path)) {
        let why = format!("{path} would hide the workspace {root}");
        return Err(
            wrong_option(option, &why).with_hint("mount it beside the workspace, or inside")
        );
    }
    if spec.storage.is_some() {
        return refuse(
            "pods have no mounts: they take a capability that Pod Security forbids",
            "use another backend for these mounts",
        );
    }
    if spec.grants.iter().any(|grant| !grant.host.as_os_str().is_empty()) {
        return refuse(
            "files of this host cannot be granted to a pod on another",
            "copy them in with `bastide cp`, or put them into the manifest",
        );
    }
    Ok(())
}
