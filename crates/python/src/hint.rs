//! What to do about a failure, in the names that the Python package has for it.

use bastide::{Condition, Error};

/// The hint of an error: where a condition is met by something that Python can call, that is named.
pub(crate) fn hint(error: &Error) -> Option<&str> {
    let library = error.hint();
    match error.condition() {
        // A hint that is not the condition's own says more about this failure.
        Some(condition) if library == condition.hint() => python_hint(condition).or(library),
        _ => library,
    }
}

fn python_hint(condition: &Condition) -> Option<&'static str> {
    Some(match condition {
        Condition::HomeUnusable => "choose another folder with `home`",
        Condition::HomeNewer => {
            "use the version that wrote it, or another folder with `home`; nothing was changed"
        }
        Condition::NoRoom => "end a sandbox, or change `config.toml` in the home",
        Condition::RecordDamaged => {
            "`Sandbox.delete` removes it; what it left in its folder can be copied before"
        }
        Condition::SessionMissing => "`list_sessions` says which there are",
        Condition::SessionBeingRemoved(_) | Condition::SessionNeverMade(_) => {
            "if that was interrupted, `sweep` finishes it"
        }
        Condition::ImageUnnamed => "name one with `image`",
        Condition::BridgeMissing => {
            "start the daemon without `--bridge=none`, or take `network=\"none\"` or `network=\"host\"`"
        }
        Condition::GrantMoved => "grant it at its own path, or use `isolation=\"namespaces\"`",
        Condition::GrantOverlaps => "use `isolation=\"namespaces\"`, or move one out of the other",
        Condition::FolderIsRoots => {
            "use `isolation=\"namespaces\"`, give the folder to another user with `chown`, or leave it out"
        }
        Condition::FoldersOfTwoUsers => {
            "use `isolation=\"namespaces\"`, or grant one of them read-only"
        }
        Condition::LoopbackMissing => {
            "use `isolation=\"namespaces\"`, which has a loopback of its own"
        }
        Condition::NoPoints => {
            "`Sandbox.checkpoint` makes one; `journal=True` makes one of every command"
        }
        Condition::NothingToUndo => {
            "`Sandbox.checkpoint` makes a point; `journal=True` makes one of every command"
        }
        Condition::PointMissing => "`Sandbox.log` lists them",
        Condition::PointRangeMalformed => {
            "write A..B with points of `Sandbox.log`, `0` for the beginning"
        }
        Condition::PathNotInPoint(_) => "`Sandbox.diff` says what is different since",
        Condition::EditsUnattributed => {
            "nothing was changed: only a sandbox with `journal=True` tells your edits from those of its commands; \
             `Sandbox.restore_path` brings single files back"
        }
        Condition::EditsInTheWay => {
            "nothing was changed; `Sandbox.checkpoint` keeps what is there now, and can be followed by this"
        }
        Condition::CommandEndUnseen => {
            "in a folder of yours, what it changed cannot be told from what you changed; \
             `Sandbox.restore_path` brings single files back"
        }
        Condition::ChangedSinceUndo => {
            "`Sandbox.checkpoint` keeps what is there now, and gives up what was undone"
        }
        Condition::NothingInCommon => {
            "a sandbox can take over what was changed in its forks: `Sandbox.fork`"
        }
        Condition::PolicyUnnamed => "give it one with `policy` or `allow`",
        Condition::PolicyMissing => "create one with `policy` or `allow`",
        _ => return None,
    })
}
