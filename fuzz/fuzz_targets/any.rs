//! Runs the target that `FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use bastide_testkit::fuzz::{self, Target, Verdict};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    fuzz::target(&name).expect("FUZZ_TARGET names a target that exists")
});

fuzz_target!(|input: &[u8]| {
    // Unlike `try_once`, this lets panics through: the fuzzer knows best what to do with them.
    if let Verdict::Broken(what) = (TARGET.check)(input) {
        panic!("{what}");
    }
});
