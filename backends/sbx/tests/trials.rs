//! The suites of the test kit, in sandboxes of the stand-in for `sbx`.
#![expect(clippy::expect_used, reason = "a run that has no place to work in cannot go on")]

use std::process::ExitCode;
use std::sync::Arc;

use bastide_sbx::{Sbx, SbxBackend, SbxOptions};
use bastide_sbx_stand_in::StandIn;
use bastide_testkit::suite::{self, Context};
use bastide_testkit::{conformance, escape};

fn main() -> ExitCode {
    if let Some(code) = escape::probe::run_if_asked() {
        return code;
    }
    let folder = tempfile::tempdir().expect("a folder for the sessions of this run");
    let stand_in = StandIn::install(folder.path(), "0.45.1").expect("the stand-in for sbx");
    let sbx = Sbx::new(stand_in.program());
    let home = folder.path().join("home");
    let backend = SbxBackend::new(home, sbx, SbxOptions::new()).expect("a home");
    let full = std::env::var_os("BASTIDE_TEST_FULL").is_some();
    let context = Context { backend: Arc::new(backend), full };
    let trials = conformance::trials();
    suite::run(&[("sbx", &context, trials)])
}
