//! The suites of the test kit, on this machine.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide::{Isolation, Rung};
use bastide_local::{LocalBackend, Resolver};
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{chaos, conformance, egress, escape, mounts, tools};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    // Each run has a home of its own: what it leaves behind is its own fault, and goes with it.
    let home = tempfile::tempdir().expect("a folder for the sessions of this run");
    let backend = LocalBackend::new(home.path()).expect("a home for local sessions");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let context = Context { backend: Arc::new(backend), full };
    // In a container that was given no privileges, the best rung is another one.
    if std::env::var_os("BASTIDE_TEST_INSIDE").is_some() {
        let all = [escape::trials_in_container(), chaos::trials()].concat();
        return suite::run(&[("container", &context, all)]);
    }
    let mut trials =
        [conformance::trials(), chaos::trials(), escape::trials(), tools::trials()].concat();
    if rustix::process::geteuid().is_root() {
        trials.extend(chaos::bounded_trials());
    }
    let mounting = with_device(LocalBackend::new(home.path()).expect("a home for local sessions"));
    let mounting = Context { backend: Arc::new(mounting), full };
    // Once more where the kernel cannot follow paths in one call.
    let walking = LocalBackend::new(home.path()).expect("a home for local sessions");
    let walking = walking.with_resolver(Resolver::Walk);
    let walking = Context { backend: Arc::new(walking), full };
    let of_paths = [conformance::path_trials(), escape::path_trials()].concat();
    // Once more with the host's own paths, on the rung below.
    let lower = LocalBackend::new(home.path()).expect("a home for local sessions");
    let lower = lower.with_isolation(Isolation::Exactly(Rung::Landlock));
    let lower = Context { backend: Arc::new(lower), full };
    let on_host =
        [conformance::trials_on_host(), chaos::trials(), escape::trials_on_host()].concat();
    // Once more on copies of what sessions have in common.
    let copied = LocalBackend::new(home.path()).expect("a home for local sessions").for_many();
    let copied = with_device(copied);
    let copied = Context { backend: Arc::new(copied), full };
    suite::run(&[
        ("local", &context, trials),
        ("mounts", &mounting, mounts::trials()),
        ("landlock-mounts", &lower, mounts::trials_without()),
        ("egress", &context, egress::trials()),
        ("copy-egress", &copied, egress::trials_of_copies()),
        ("landlock-egress", &lower, egress::trials_without()),
        ("walk", &walking, of_paths),
        ("landlock", &lower, on_host),
        ("copy", &copied, escape::trials()),
        ("copy-mounts", &copied, mounts::trials_of_copies()),
        ("user", &context, escape::trials_as("4242")),
        ("root", &copied, escape::trials_as("0")),
    ])
}

/// An ordinary user may have a FUSE device of its own.
fn with_device(backend: LocalBackend) -> LocalBackend {
    match std::env::var_os("BASTIDE_TEST_FUSE") {
        Some(device) => backend.with_fuse_device(device),
        None => backend,
    }
}
