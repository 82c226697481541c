//! Output of any size.

use std::time::Duration;

use bastide::{ErrorKind, ExitReason, OutputEvent};

use crate::suite::{Context, Outcome, Trial, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    t5_bounds_two_gigabytes_of_output,
    takes_input_and_output_at_once,
    a_result_is_whole,
    hears_children_that_go_on_talking_where_there_is_time,
];

/// Head and tail are kept, what is missing is said, and the whole can still be read.
async fn t5_bounds_two_gigabytes_of_output(context: Context) -> Outcome {
    let session = context.session().await?;
    let total = context.count(2 << 30) as u64;
    let limit = 1 << 20;
    let line = format!("echo first; yes | head -c {}; echo; echo last", total - 12);
    let output = session.exec(sh(&line).output_limit(limit)).await?;
    assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Exited, 0));
    assert!(output.is_truncated() && output.lost == 0);
    assert_eq!(output.stdout.len() as u64 + output.stdout_omitted, total);
    assert!(output.stdout.len() <= limit);
    assert!(output.stdout.starts_with(b"first\ny\n") && output.stdout.ends_with(b"\nlast\n"));

    let mut log = session.log(output.process, 0).await?;
    let (mut read, mut tail) = (0, Vec::new());
    let exit = loop {
        match log.next().await? {
            OutputEvent::Stdout(data) | OutputEvent::Stderr(data) => {
                read += data.len() as u64;
                tail = data.to_vec();
            }
            OutputEvent::Lost(lost) => return Err(format!("{lost} bytes were lost").into()),
            OutputEvent::Exit(exit) => break exit,
        }
    };
    assert_eq!((read, exit.reason), (total, ExitReason::Exited));
    assert!(tail.ends_with(b"last\n"));
    Ok(session.delete().await?)
}

/// More than every buffer on the way holds goes in while as much comes out.
async fn takes_input_and_output_at_once(context: Context) -> Outcome {
    let session = context.session().await?;
    let input = vec![b'x'; 30_000_000];
    let output = session.exec(sh("cat; cat >/dev/null").input(input.clone())).await?;
    assert!(output.stdout == input);
    Ok(session.delete().await?)
}

/// A result cannot say that something is missing from it, so it is none then.
async fn a_result_is_whole(context: Context) -> Outcome {
    let session = context.session().await?;
    let whole = session.compat().exec_result(sh("seq 100").output_limit(292)).await?;
    assert_eq!((whole.stdout.len(), whole.exit_code), (292, 0));
    match session.compat().exec_result(sh("seq 100; exit 3").output_limit(100)).await {
        Ok(_) => return Err("output is missing without a word".into()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::LimitExceeded);
            assert_eq!(error.context()["exit_code"], 3);
        }
    }
    Ok(session.delete().await?)
}

/// A child in the background that never falls silent for long is heard to its end, where the caller said how much time there is.
async fn hears_children_that_go_on_talking_where_there_is_time(context: Context) -> Outcome {
    let session = context.session().await?;
    let child = "i=0; while [ $i -lt 500000 ]; do i=$((i + 1)); \
                 case $i in *000) echo $i;; esac; done";
    let line = format!("({child}) & echo over; exit 3");
    let output = session.exec(sh(&line).timeout(Duration::from_secs(120))).await?;
    assert_eq!((output.exit.reason, output.exit.code), (ExitReason::Exited, 3));
    assert!(output.stdout.ends_with(b"\n500000\n"), "the child was not heard to its end");
    // One that says nothing is not waited for, and lives on.
    let line = "sleep 600 & echo $!";
    let output = session.exec(sh(line).timeout(Duration::from_secs(600))).await?;
    let child = String::from_utf8(output.stdout)?;
    session.exec(sh(&format!("kill {child}"))).await?;
    Ok(session.delete().await?)
}
