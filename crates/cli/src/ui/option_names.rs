//! Options by the names that the command line has for them. What a library says of its options names them by their
//! paths, in backticks: `KubernetesOptions::pool`.

use std::borrow::Cow;

use bastide::Error;
use serde_json::{Map, Value};

/// The path of each option that libraries name in what they say, and what stands there instead.
const FLAGS: [(&str, &str); 33] = [
    ("ClusterAccess::context", "--context"),
    ("ClusterAccess::namespace", "--namespace"),
    ("ClusterAccess::new", "--kubeconfig, or set KUBECONFIG"),
    ("CreateOptions::network", "--network"),
    ("KubernetesBackend::sweep_guests", "sweep --guests"),
    ("KubernetesOptions::boot_seconds", "--boot-timeout"),
    ("KubernetesOptions::claims", "--mount-claim"),
    ("KubernetesOptions::guest_image", "--guest-image"),
    ("KubernetesOptions::image", "--image"),
    ("KubernetesOptions::labels", "--label"),
    ("KubernetesOptions::lifetime_seconds", "--lifetime"),
    ("KubernetesOptions::many_users", "--many-users"),
    ("KubernetesOptions::node_selector", "--node-selector"),
    ("KubernetesOptions::own_users", "--own-users"),
    ("KubernetesOptions::owner", "--owner"),
    ("KubernetesOptions::pod_patch", "--pod-patch"),
    ("KubernetesOptions::pool", "--pool"),
    ("KubernetesOptions::priority_class", "--priority-class"),
    ("KubernetesOptions::pull", "--no-pull"),
    ("KubernetesOptions::pull_secrets", "--pull-secret"),
    ("KubernetesOptions::queue", "--queue"),
    ("KubernetesOptions::read_only_root", "--read-only"),
    ("KubernetesOptions::requests_percent", "--requests"),
    ("KubernetesOptions::runtime_class", "--runtime-class"),
    ("KubernetesOptions::tolerations", "--toleration"),
    ("KubernetesOptions::unproved_network", "`--network unproved`"),
    ("KubernetesOptions::user", "--only-user"),
    ("KubernetesOptions::volume", "--volume"),
    ("NetworkAccess::Bridge", "`--network egress`"),
    ("NetworkAccess::None", "`--network none`"),
    ("ResourceLimits::cpu_millis", "--cpus"),
    ("ResourceLimits::disk", "--disk"),
    ("ResourceLimits::memory", "--memory"),
];

/// A text of a library with our name of each option in it.
pub(crate) fn with_flags(text: &str) -> Cow<'_, str> {
    let mut parts = text.split('`');
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut is_changed = false;
    // What stands between two backticks, and what follows that.
    while let Some(quoted) = parts.next() {
        match (flag(quoted), parts.next()) {
            (Some(flag), Some(after)) => {
                is_changed = true;
                out.extend([flag, after]);
            }
            (_, Some(after)) => out.extend(["`", quoted, "`", after]),
            (_, None) => out.extend(["`", quoted]),
        }
    }
    if is_changed { Cow::Owned(out) } else { Cow::Borrowed(text) }
}

/// What an error says, with our names of options.
pub(crate) fn message(error: &Error) -> Cow<'_, str> {
    with_flags(error.message())
}

/// The context of an error, with our name of the option that it is about.
pub(super) fn context(error: &Error) -> Map<String, Value> {
    let mut context = error.context().clone();
    if let Some(option) = context.get_mut("option")
        && let Some(flag) = option.as_str().and_then(flag)
    {
        *option = flag.into();
    }
    context
}

fn flag(path: &str) -> Option<&'static str> {
    FLAGS.iter().find(|(known, _)| *known == path).map(|(_, flag)| *flag)
}

#[cfg(test)]
mod tests {
    use bastide::ErrorKind;

    use super::*;

    #[test]
    fn puts_flags_where_libraries_name_their_options() {
        let table = [
            ("`KubernetesOptions::pool`: no", "--pool: no"),
            (
                "`a` b `KubernetesOptions::owner` and `ResourceLimits::memory`",
                "`a` b --owner and --memory",
            ),
            (
                "as it is with `KubernetesOptions::unproved_network`",
                "as it is with `--network unproved`",
            ),
            ("KubernetesOptions::pool", "KubernetesOptions::pool"),
            ("`resume` `", "`resume` `"),
            ("a `KubernetesOptions::pool", "a `KubernetesOptions::pool"),
            ("", ""),
        ];
        for (library, ours) in table {
            assert_eq!(with_flags(library), ours);
        }
    }

    #[test]
    fn names_the_option_of_an_error_for_programs() {
        let of = |option: &str| {
            let error = Error::new(ErrorKind::InvalidInput, "x").with_context("option", option);
            context(&error)["option"].clone()
        };
        assert_eq!(of("KubernetesOptions::pool"), "--pool");
        assert_eq!(of("--tty"), "--tty");
    }
}
