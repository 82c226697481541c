//! What is true of containers alone.

#[path = "containers/daemons.rs"]
mod daemons;
#[path = "containers/egress.rs"]
mod egress;
#[path = "containers/engine_failures.rs"]
mod engine_failures;
#[path = "containers/images.rs"]
mod images;
#[path = "containers/lifetime.rs"]
mod lifetime;
#[path = "containers/mounts.rs"]
mod mounts;
#[path = "containers/providers.rs"]
mod providers;
#[path = "containers/reference.rs"]
mod reference;
#[path = "containers/setting.rs"]
mod setting;
#[path = "containers/silence.rs"]
mod silence;
#[path = "containers/storage.rs"]
mod storage;
#[path = "containers/walls.rs"]
mod walls;

use std::process::ExitCode;

use bastide_testkit::engine;
use bastide_testkit::escape::probe;
use bastide_testkit::suite;

use setting::Setting;

fn main() -> ExitCode {
    if let Some(code) = probe::run_if_asked() {
        return code;
    }
    let all = [
        walls::TRIALS,
        images::TRIALS,
        egress::TRIALS,
        lifetime::TRIALS,
        daemons::TRIALS,
        storage::TRIALS,
        mounts::TRIALS,
        providers::TRIALS,
        engine_failures::TRIALS,
        reference::TRIALS,
        silence::TRIALS,
    ];
    let trials = all.concat();
    match engine::for_tests().map(|host| Setting::new(&host)) {
        Ok(Ok(setting)) => suite::run(&[("containers", &setting.context(), trials)]),
        Ok(Err(error)) => suite::skip_all("containers", &trials, &error.to_string()),
        Err(why) => suite::skip_all("containers", &trials, &why),
    }
}
