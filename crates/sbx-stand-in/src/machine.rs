//! Verbs about the machine: version, diagnosis, signing in.

use std::fs;

use serde_json::json;

use crate::arguments::Arguments;
use crate::state::{Database, say};
use crate::{Outcome, fail};

pub(crate) fn version(world: &Database) -> Outcome {
    say(format!("sbx-stand-in v{} (a stand-in for tests, not Docker's sbx)", world.version))
}

pub(crate) fn login(world: &Database) -> Outcome {
    fs::write(world.path("signed-in"), "")?;
    say("Login succeeded")
}

pub(crate) fn logout(world: &Database) -> Outcome {
    drop(fs::remove_file(world.path("signed-in")));
    say("Logged out")
}

pub(crate) fn diagnose(world: &Database, rest: &[String]) -> Outcome {
    let old = !world.profile.renamed_options();
    let known: &[(&[&str], bool)] = match old {
        true => &[(&["-o", "--output"], true)],
        false => &[(&["--json"], false), (&["--format"], true), (&["--upload"], false)],
    };
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let signed_in = world.is_signed_in();
    let check = |name: &str, status: &str, message: &str, hint: &str| json!({"name": name, "status": status, "message": message, "detail": "", "hint": hint});
    let authentication = match signed_in {
        true => check("Authentication", "pass", "signed in", ""),
        false => check("Authentication", "fail", "not signed in", "Run: sbx login"),
    };
    let checks = [
        check("CLI binary", "pass", "found", ""),
        check("Daemon", "pass", "running", ""),
        check("Socket", "skip", "not checked", ""),
        authentication,
    ];
    let as_json = given.has("--json")
        || given.value("--format") == Some("json")
        || given.value("-o") == Some("json");
    match as_json {
        true => say(json!({"version": "1.0", "checks": checks}).to_string())?,
        false => say("diagnosis done")?,
    };
    Ok(u8::from(!signed_in))
}

/// Verbs that tests only need to be there.
pub(crate) fn settings(verb: &str, rest: &[String]) -> Outcome {
    match (verb, rest.first().map(String::as_str)) {
        ("daemon", Some("status")) => say(json!({"status": "running"}).to_string()),
        ("settings", Some("get" | "list" | "set")) => say("{}"),
        _ => fail(format!("unknown command for \"sbx {verb}\"")),
    }
}
