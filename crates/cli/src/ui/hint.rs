//! What to do about a failure, in the words of the command line.

use std::borrow::Cow;

use bastide::{Condition, Error};

use super::with_flags;

/// What the reader of a failure can do about it. The library names what it offers itself; for a
/// condition that a command or an option helps against, that is said instead, and for an option it names,
/// the flag.
pub(crate) fn hint(error: &Error) -> Option<Cow<'_, str>> {
    let library = error.hint();
    match error.condition() {
        // A hint that is not the condition's own says more about this failure.
        Some(condition) if library == condition.hint() => {
            command_line_hint(condition).or(library.map(with_flags))
        }
        _ => library.map(with_flags),
    }
}

fn command_line_hint(condition: &Condition) -> Option<Cow<'static, str>> {
    Some(match condition {
        Condition::StoreDamaged => {
            "`bastide snapshot verify` says which snapshots and files are affected".into()
        }
        Condition::SnapshotMissing => "`bastide snapshot ls` lists them".into(),
        Condition::SnapshotUnreadable => {
            "nothing was removed; `bastide snapshot rm` gives up a snapshot that is lost".into()
        }
        Condition::HomeUnusable => "choose another folder with BASTIDE_HOME".into(),
        Condition::HomeNewer => {
            "use the version that wrote it, or another folder with BASTIDE_HOME; nothing was changed"
                .into()
        }
        Condition::NoRoom => {
            "wait with `--wait 1m`, end one with `bastide stop`, or change `config.toml` in the home".into()
        }
        Condition::RecordDamaged => {
            "`bastide rm` removes the session; what it left in its folder can be copied before"
                .into()
        }
        Condition::RecordMissing => {
            "`bastide rm` removes the session; what it left can be copied before".into()
        }
        Condition::SessionMissing => "`bastide ls` lists those there are".into(),
        Condition::SessionBeingRemoved(id) => {
            format!("if that was interrupted, `bastide rm {id}` or `bastide sweep` finishes it")
                .into()
        }
        Condition::SessionNeverMade(id) => format!("delete it: `bastide rm {id}`").into(),
        Condition::SessionBeingStopped(id) => {
            format!("resume it then: `bastide resume {id}`").into()
        }
        Condition::SessionStopped(id) => format!("resume it first: `bastide resume {id}`").into(),
        Condition::SessionExpired(id) => {
            format!("resume it first, which begins its lease anew: `bastide resume {id}`").into()
        }
        Condition::SessionOfEarlierVersion(id) => {
            format!("start it anew: `bastide stop {id}`, then `bastide resume {id}`").into()
        }
        Condition::SessionCopied(id) => {
            format!("go on with the copy: `bastide resume {id}`").into()
        }
        Condition::MountKeysMissing(id) => format!(
            "give the manifest it was made with: `bastide resume {id} --manifest FILE`, with the same \
             `--mount-key` and `--acknowledge-exposure`"
        )
        .into(),
        Condition::CredentialsMissing(names) => {
            let options: Vec<_> = names.iter().map(|name| format!("`--pass-env {name}`")).collect();
            let options = options.join(" or ");
            format!("{options} passes yours; whatever the agent runs can read it then").into()
        }
        Condition::CloneAdvised => "use `--mode clone`, which shares nothing with it".into(),
        Condition::ImageUnnamed => "name one with --image".into(),
        Condition::BridgeMissing => {
            "start the daemon without `--bridge=none`, or take `--network none` or `--network host`"
                .into()
        }
        Condition::RungUnknown => {
            "make a new session of what was saved, with `bastide create --snapshot`; what it left in its folder can be \
             copied before"
                .into()
        }
        Condition::GrantMoved => "grant it at its own path, or use `--isolation namespaces`".into(),
        Condition::GrantOverlaps => {
            "use `--isolation namespaces`, or move one out of the other".into()
        }
        Condition::FolderIsRoots => {
            "use `--isolation namespaces`, give the folder to another user with `chown`, or leave \
             it out"
                .into()
        }
        Condition::FoldersOfTwoUsers => {
            "use `--isolation namespaces`, or grant one of them read-only".into()
        }
        Condition::LoopbackMissing => {
            "use `--isolation namespaces`, which has a loopback of its own".into()
        }
        Condition::NoPoints => {
            "`bastide checkpoint ID` makes one; `--journal` makes one of every command".into()
        }
        Condition::NothingToUndo => {
            "`bastide checkpoint` makes a point; `--journal` makes one of every command".into()
        }
        Condition::PointMissing => "`bastide log ID` lists them".into(),
        Condition::PointThinned => {
            "`--journal-keep` keeps more, `bastide snapshot save ID@POINT` one for ever".into()
        }
        Condition::TerminalOpen(id, process) => format!(
            "processes end before files are replaced: leave the terminal, or `bastide kill {id} {process}`"
        )
        .into(),
        Condition::PointRangeMalformed => {
            "write A..B with points of `bastide log`, `0` for the beginning".into()
        }
        Condition::PointDamaged => "`bastide snapshot verify` says what else is missing".into(),
        Condition::EditsUnattributed => {
            "nothing was changed: only a session with `--journal` tells your edits from \
             those of its commands; `bastide restore` brings single files back"
            .into()
        }
        Condition::EditsInTheWay => {
            "nothing was changed; `bastide checkpoint` keeps what is there now, and can \
             be followed by this"
            .into()
        }
        Condition::CommandEndUnseen => {
            "in a folder of yours, what it changed cannot be told from what you changed; \
             `bastide restore` brings single files back"
            .into()
        }
        Condition::ChangedSinceUndo => {
            "`bastide checkpoint` keeps what is there now, and gives up what was undone".into()
        }
        Condition::NothingInCommon => {
            "a session can take over what was changed in its forks: `bastide fork`".into()
        }
        Condition::PolicyUnnamed => "give it one: `--policy FILE`, or `--allow HOST`".into(),
        Condition::PolicyMissing => "create one with `--policy FILE` or `--allow HOST`".into(),
        Condition::PathNotInPoint(point) => {
            format!("`bastide diff ID {point}..` says what is different since").into()
        }
        Condition::ApprovalMissing(id) => format!("`bastide net show {id}` says what does").into(),
        Condition::SessionNotRunning(id) => {
            format!("`bastide resume {id}` has it run again").into()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use bastide::ErrorKind;

    use super::*;

    #[test]
    fn names_commands_and_options_where_the_library_names_its_own() {
        let hint = |error: Error| hint(&error).map(Cow::into_owned);
        let failed = || Error::new(ErrorKind::Conflict, "it failed");
        let stopped = || failed().with_condition(Condition::SessionStopped("s1".to_owned()));
        assert_eq!(hint(failed()), None);
        assert_eq!(hint(stopped()).as_deref(), Some("resume it first: `bastide resume s1`"));
        assert_eq!(hint(stopped().with_hint("wait")).as_deref(), Some("wait"));
        assert_eq!(hint(failed().with_condition(Condition::EngineElsewhere)), None);
    }
}
