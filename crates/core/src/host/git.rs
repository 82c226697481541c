//! Git on the host, with nothing of the machine's configuration and environment.

use std::process::Command;

/// Where git is looked for.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Git that reads no configuration but these settings (`name=value`), asks nobody anything, and inherits no variable.
#[must_use]
pub fn isolated_git(settings: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .env_clear()
        .env("PATH", PATH)
        .env("LC_ALL", "C")
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_NO_LAZY_FETCH", "1");
    for setting in settings {
        command.args(["-c", setting]);
    }
    command
}
