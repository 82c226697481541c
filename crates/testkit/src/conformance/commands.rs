//! Commands: what they get, what they say, how they end.

use bastide::{Command, ExitReason, Output, Rung};

use super::files::class;
use crate::suite::{Context, Outcome, Trial, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    reports_exit_codes,
    reports_signals,
    reports_programs_that_cannot_be_executed,
    names_what_keeps_a_command_from_running_as_the_reference_does,
    runs_lines_in_a_login_shell_where_the_system_is_its_own,
    keeps_output_apart,
    starts_in_the_workspace_with_home_set,
    passes_arguments_and_environment_unchanged,
    t11_hands_input_over_exactly,
];

async fn reports_exit_codes(context: Context) -> Outcome {
    let session = context.session().await?;
    for code in [0, 1, 7, 255] {
        let exit = session.exec(sh(&format!("exit {code}"))).await?.exit;
        assert_eq!((exit.reason, exit.code), (ExitReason::Exited, code));
    }
    Ok(session.delete().await?)
}

async fn reports_signals(context: Context) -> Outcome {
    let session = context.session().await?;
    let exit = session.exec(sh("kill -9 $$")).await?.exit;
    assert_eq!((exit.reason, exit.code), (ExitReason::Signalled, 137));
    Ok(session.delete().await?)
}

async fn names_what_keeps_a_command_from_running_as_the_reference_does(
    context: Context,
) -> Outcome {
    let session = context.session().await?;
    for argv in [&[][..], &[""], &["no-such-program"], &["a\0b"]] {
        let ran = session.compat().exec_result(Command::new(argv.iter().copied())).await;
        assert_eq!(class(ran)?, "ExecTransportError", "{argv:?}");
    }
    session.shutdown().await?;
    assert_eq!(class(session.compat().exec_result(sh("true")).await)?, "ExecTransportError");
    Ok(session.delete().await?)
}

async fn reports_programs_that_cannot_be_executed(context: Context) -> Outcome {
    let session = context.session().await?;
    let missing = session.exec(Command::new(["no-such-program"])).await?.exit;
    assert_eq!((missing.reason, missing.code), (ExitReason::NotStarted, 127));
    say(&session, "echo 'not a program' > plain; chmod 644 plain").await?;
    let plain = session.exec(Command::new(["./plain"])).await?.exit;
    assert_eq!((plain.reason, plain.code), (ExitReason::NotStarted, 126));
    Ok(session.delete().await?)
}

async fn runs_lines_in_a_login_shell_where_the_system_is_its_own(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo GREETED=yes > $HOME/.profile").await?;
    // What other backends run in is not this machine.
    let is_host =
        matches!(session.receipt().rung, Rung::Namespaces | Rung::Landlock | Rung::Unconfined);
    let expected = if is_host { "no\n" } else { "yes\n" };
    assert_eq!(say(&session, "echo ${GREETED:-no}").await?, expected);
    Ok(session.delete().await?)
}

async fn keeps_output_apart(context: Context) -> Outcome {
    let session = context.session().await?;
    let Output { stdout, stderr, .. } = session.exec(sh("echo out; echo err >&2")).await?;
    assert_eq!((&stdout[..], &stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    Ok(session.delete().await?)
}

async fn starts_in_the_workspace_with_home_set(context: Context) -> Outcome {
    let session = context.session().await?;
    let root = session.root().as_str().to_owned();
    // In a system of its own a user has a home of its own.
    let home = match context.backend.has_own_system() {
        true => {
            say(&session, "grep -m1 \"^[^:]*:[^:]*:$(id -u):\" /etc/passwd | cut -d: -f6").await?
        }
        false => format!("{root}\n"),
    };
    assert_eq!(say(&session, "pwd; echo $HOME").await?, format!("{root}\n{home}"));
    Ok(session.delete().await?)
}

async fn passes_arguments_and_environment_unchanged(context: Context) -> Outcome {
    let session = context.session().await?;
    let odd = "a b\n'\"$HOME\\ \u{fc}";
    let show = Command::new(["sh", "-c", "printf %s \"$1\"; printf %s \"$ODD\" >&2", "sh", odd]);
    let Output { stdout, stderr, .. } = session.exec(show.env("ODD", odd)).await?;
    assert_eq!((String::from_utf8(stdout)?, String::from_utf8(stderr)?), (odd.into(), odd.into()));
    Ok(session.delete().await?)
}

/// Nothing, more than a pipe holds, and more than every buffer on the way: at once and in pieces.
async fn t11_hands_input_over_exactly(context: Context) -> Outcome {
    let session = context.session().await?;
    let all: Vec<u8> = (0..=u8::MAX).cycle().take(50_000_000).collect();
    for size in [0, 200_000, 50_000_000] {
        let input = &all[..size];
        let command = sh("cat").output_limit(size);
        let output = session.exec(command.clone().input(input.to_vec())).await?;
        assert_eq!(output.exit.code, 0);
        assert!(output.stdout == input, "{size} bytes came back changed");

        let input = &input[..size.min(context.count(50_000_000))];
        let process = session.spawn(command.stream_input()).await?;
        let writer = process.writer();
        let write = async {
            for part in input.chunks(777_777) {
                writer.write(part.to_vec()).await?;
            }
            writer.close().await
        };
        let (written, output) = tokio::join!(write, process.output(size));
        written?;
        assert!(output?.stdout == input, "{size} bytes in pieces came back changed");
    }
    Ok(session.delete().await?)
}
