//! Commands and files as other users than the session's own.

use std::time::Duration;

use bastide::{Command, ErrorKind, ExitReason, OutputEvent, Session};

use super::files::class;
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    runs_commands_as_users_by_name_and_number,
    gives_root_inside_what_package_managers_need_and_others_nothing,
    does_with_files_what_the_user_may,
    lays_trees_out_as_a_user,
    gives_a_user_its_terminal_and_streams,
    ends_everything_of_a_user_at_the_timeout,
    serves_more_users_than_it_keeps_launchers_for,
    refuses_users_there_are_not,
    removes_what_users_made,
];

/// A number nobody has a name for.
const NUMBER: &str = "4242";

/// The group of that number: with engines it is root's, as whoever comes from one expects.
fn group(context: &Context) -> u32 {
    if context.backend.has_own_system() { 0 } else { 4242 }
}

/// A session that has users; where a machine gives none, that has to be said with a way out.
async fn session(context: &Context) -> Result<Session, TrialError> {
    let session = context.session().await?;
    match session.exec(sh("true").user(NUMBER)).await {
        Ok(_) => Ok(session),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let message = error.message().to_owned();
            let ways_out = ["`sudo ", "is of no use", "`KubernetesOptions::many_users`"];
            if !ways_out.iter().any(|way| message.contains(way)) {
                return Err(format!("no way out is named: {message}").into());
            }
            Err(skip(message))
        }
        Err(error) => Err(error.into()),
    }
}

/// What a shell command says as a user.
async fn say_as(session: &Session, user: &str, line: &str) -> Result<String, TrialError> {
    let output = session.exec(sh(line).user(user)).await?;
    if output.exit.code != 0 {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` as {user}: {} {stderr}", output.exit.code).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

async fn runs_commands_as_users_by_name_and_number(context: Context) -> Outcome {
    let session = session(&context).await?;
    let own = say(&session, "id -u").await?;
    let line = "id -u; id -g; id -G";
    let group = group(&context);
    for (user, want) in [
        (NUMBER, format!("4242\n{group}\n{group}\n").as_str()),
        ("4242:77", "4242\n77\n77\n"),
        ("nobody:root", "65534\n0\n0\n"),
        (":77", "0\n77\n77\n"),
        ("nobody", "65534\n65534\n65534\n"),
        ("0", "0\n0\n0\n"),
        ("root", "0\n0\n0\n"),
    ] {
        assert_eq!(say_as(&session, user, line).await?, want, "{user}");
    }
    // The session's own user stays who it is, also by number.
    assert_eq!(say(&session, "id -u").await?, own);
    assert_eq!(say_as(&session, own.trim(), "id -u").await?, own);
    Ok(session.delete().await?)
}

async fn gives_root_inside_what_package_managers_need_and_others_nothing(
    context: Context,
) -> Outcome {
    let session = session(&context).await?;
    let line = "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t ' ' '";
    let held = |capabilities: &str| {
        format!(
            "CapInh: 0000000000000000 CapPrm: {capabilities} CapEff: {capabilities} \
             CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"
        )
    };
    let words = |said: String| said.split_whitespace().collect::<Vec<_>>().join(" ");
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE at the most.
    let root = words(say_as(&session, "root", line).await?);
    let effective = root.split_once("CapEff: ").and_then(|(_, rest)| rest.get(..16));
    let effective = u64::from_str_radix(effective.unwrap_or("x"), 16)?;
    assert_eq!(effective & !0x4fb, 0, "{root}");
    assert_eq!(effective & 0xcb, 0xcb, "CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID: {root}");
    assert_eq!(root, held(&format!("{effective:016x}")));
    assert_eq!(words(say_as(&session, NUMBER, line).await?), held("0000000000000000"));
    // And it is of use: files change hands, and programs become others.
    let line = "touch given && chown 4242:4242 given && stat -c %u:%g given";
    assert_eq!(say_as(&session, "root", &format!("cd /tmp && {line}")).await?, "4242:4242\n");
    let failed = session.exec(sh("chown 4242 /tmp").user("nobody")).await?;
    assert_ne!(failed.exit.code, 0);
    Ok(session.delete().await?)
}

async fn does_with_files_what_the_user_may(context: Context) -> Outcome {
    let session = session(&context).await?;
    say_as(&session, "root", "mkdir mine shared closed && chown 4242:4242 mine && chmod 700 mine closed && chmod 1777 shared && echo secret > closed/file && echo plain > plain && chmod 600 plain && ln -s ../closed/file shared/link").await?;
    let (his, own) = (session.files_as(NUMBER), session.files_as("root"));
    his.write("mine/new", "his").await?;
    his.mkdir_all("mine/deep/er").await?;
    his.mv("mine/new", "mine/deep/er/new").await?;
    let stat = his.stat("mine/deep/er/new").await?;
    assert_eq!((stat.uid, stat.gid), (4242, group(&context)));
    assert_eq!(&his.read("mine/deep/er/new").await?[..], b"his");
    his.chmod("mine/deep/er/new", 0o640).await?;
    his.write("shared/his", "x").await?;
    // In the group that was named, if one was.
    session.files_as("4242:77").write("shared/grouped", "x").await?;
    assert_eq!(session.files().stat("shared/grouped").await?.gid, 77);
    // What his commands could not do, his files cannot either.
    let denied = [
        ("read closed/file", his.read("closed/file").await.err()),
        ("read shared/link", his.read("shared/link").await.err()),
        ("read plain", his.read("plain").await.err()),
        ("write plain", his.write("plain", "x").await.err()),
        ("write new", his.write("new", "x").await.err()),
        ("mkdir", his.mkdir("folder").await.err()),
        ("ls closed", his.ls("closed").await.err()),
        ("rm plain", his.rm("plain").await.err()),
        ("mv plain", his.mv("plain", "mine/plain").await.err()),
        ("chmod plain", his.chmod("plain", 0o777).await.err()),
        ("chown", his.chown("mine/deep/er/new", Some("0"), None).await.err()),
        ("rm shared/link", his.rm("shared/link").await.err()),
        ("watch closed", his.watch_all("closed").await.err()),
    ];
    for (what, error) in denied {
        assert!(error.is_some(), "{what} was allowed");
    }
    assert_eq!(&own.read("closed/file").await?[..], b"secret\n");
    // The guest is itself again afterwards.
    own.chown("mine/deep/er/new", Some("0"), Some("0")).await?;
    assert_eq!(own.stat("mine/deep/er/new").await?.uid, 0);
    his.rm_all("mine").await.err().ok_or("a folder of root's went with its parent's owner")?;
    let before = session.files().stat("plain").await?;
    assert_eq!(before.mode & 0o777, 0o600);
    Ok(session.delete().await?)
}

async fn lays_trees_out_as_a_user(context: Context) -> Outcome {
    let session = session(&context).await?;
    say_as(&session, "root", "mkdir mine && chown 4242:4242 mine").await?;
    let mut archive = Vec::new();
    let member = |name: &str, content: &str| {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, b"0000644\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    };
    archive.extend(member("a/file", "one"));
    archive.extend([0; 1024]);
    let his = session.files_as(NUMBER);
    his.extract("mine/tree.tar", archive.clone(), Default::default()).await?;
    assert_eq!(say(&session, "stat -c %u mine/a mine/a/file").await?, "4242\n4242\n");
    let refused = his.extract("tree.tar", archive, Default::default()).await;
    assert!(refused.is_err(), "a tree came into a folder of somebody else");
    Ok(session.delete().await?)
}

async fn gives_a_user_its_terminal_and_streams(context: Context) -> Outcome {
    let session = session(&context).await?;
    // Programs open their streams again by name.
    let line = "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin";
    let output = session.exec(sh(line).user(NUMBER).input("in\n")).await?;
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\nin\n"[..], &b"err\n"[..]));
    let command = Command::shell("echo hello > $(tty) && stat -c %u $(tty)").user(NUMBER);
    let command = command.terminal(24, 80).timeout(Duration::from_secs(60));
    let mut process = session.spawn(command).await?;
    let mut seen = String::new();
    let exit = loop {
        match process.next().await? {
            OutputEvent::Stdout(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            OutputEvent::Exit(exit) => break exit,
            OutputEvent::Stderr(_) | OutputEvent::Lost(_) => {}
        }
    };
    assert_eq!((exit.code, seen.as_str()), (0, "hello\r\n4242\r\n"));
    Ok(session.delete().await?)
}

async fn ends_everything_of_a_user_at_the_timeout(context: Context) -> Outcome {
    let session = session(&context).await?;
    let line = "trap '' TERM; setsid sleep 7801 & sleep 7801";
    let command = Command::shell(line).user(NUMBER).timeout(Duration::from_millis(300));
    let exit = session.exec(command).await?.exit;
    assert_eq!(exit.reason, ExitReason::Timeout);
    let alive =
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep 780[1]'; true";
    assert_eq!(say_as(&session, "root", alive).await?, "0\n");
    // And a signal finds it, and somebody else's does not.
    let process = session.launch(Command::shell("exec sleep 7802").user(NUMBER)).await?;
    let find = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -q '^sleep 780[2]' && echo ${p#/proc/}; done; true";
    let mut pid = String::new();
    while pid.is_empty() {
        pid = say_as(&session, NUMBER, find).await?.trim().to_owned();
    }
    let other = session.exec(sh(&format!("kill {pid}")).user("nobody")).await?;
    assert_ne!(other.exit.code, 0, "nobody ended a process of somebody");
    session.signal(process, 15).await?;
    let exit = session.attach(process, 0).await?.output(1024).await?.exit;
    assert_eq!(exit.reason, ExitReason::Signalled);
    Ok(session.delete().await?)
}

async fn serves_more_users_than_it_keeps_launchers_for(context: Context) -> Outcome {
    let session = session(&context).await?;
    let long = session.launch(Command::shell("exec cat").stream_input().user("5000")).await?;
    for number in 5000..5040 {
        let user = number.to_string();
        assert_eq!(say_as(&session, &user, "id -u").await?, format!("{user}\n"));
    }
    // What the first one runs has not ended with its launcher.
    let alive = session.processes().await?;
    assert!(alive.iter().any(|process| process.id == long && process.exit.is_none()));
    session.signal(long, 9).await?;
    Ok(session.delete().await?)
}

async fn refuses_users_there_are_not(context: Context) -> Outcome {
    let session = context.session().await?;
    for user in
        ["no-such-user", ":", "0:no-such", "0:0:0", "-1", "4294967295", "99999999999", "a\0b"]
    {
        let error = session.exec(sh("true").user(user)).await.err();
        let error = error.ok_or_else(|| format!("{user:?} ran something"))?;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{user:?}: {error}");
        let error = session.files_as(user).stat(".").await.err();
        error.ok_or_else(|| format!("{user:?} looked at something"))?;
    }
    // As the reference calls it.
    let ran = session.compat().exec_result(sh("true").user("no-such-user")).await;
    assert_eq!(class(ran)?, "ExecTransportError");
    let files = session.files_as("no-such-user");
    session.files().write("file", "content").await?;
    let (read, write) = ("WorkspaceArchiveReadError", "WorkspaceArchiveWriteError");
    assert_eq!(class(files.read("file").await)?, read);
    assert_eq!(class(files.stat("file").await)?, read);
    assert_eq!(class(files.write("file", "other").await)?, write);
    assert_eq!(class(files.mkdir("folder").await)?, write);
    assert_eq!(class(files.rm_all("file").await)?, write);
    assert_eq!(class(files.ls(".").await)?, "ExecNonZeroError");
    assert_eq!(class(files.mv("file", "other").await)?, "ExecNonZeroError");
    assert_eq!(session.files().read("file").await?, b"content".as_slice());
    Ok(session.delete().await?)
}

async fn removes_what_users_made(context: Context) -> Outcome {
    let session = session(&context).await?;
    say_as(&session, "root", "chmod 1777 .").await?;
    let line = "mkdir -p his/deep/er && echo x > his/deep/er/file && chmod 000 his/deep/er his";
    say_as(&session, NUMBER, line).await?;
    Ok(session.delete().await?)
}
