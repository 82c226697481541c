//! How many namespaces the kernel lets somebody make.

use std::fs;

/// The kinds a sandbox is made of, as the kernel's settings name them.
const KINDS: [&str; 7] = ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"];

/// A setting of the kernel, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    pub(crate) name: String,
    pub(crate) value: u64,
}

/// The setting that lets nobody make a namespace, if there is one.
pub(crate) fn forbids() -> Option<Sysctl> {
    all().into_iter().find(|setting| setting.value == 0)
}

/// What each of them says, as far as it can be read.
pub(crate) fn all() -> Vec<Sysctl> {
    let read = |kind: &&str| {
        let text = fs::read_to_string(format!("/proc/sys/user/max_{kind}_namespaces")).ok()?;
        setting_of(kind, &text)
    };
    KINDS.iter().filter_map(read).collect()
}

pub(crate) fn setting_of(kind: &str, text: &str) -> Option<Sysctl> {
    let value = text.trim().parse().ok()?;
    Some(Sysctl { name: format!("user.max_{kind}_namespaces"), value })
}
