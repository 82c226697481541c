//! What whoever comes from the reference's Docker client finds the same. Each value was read off that
//! client on a real daemon.

use bastide::compat::PtyLimits;
use bastide::model::environment::Variable;
use bastide::model::users::User;
use bastide::model::{Manifest, PathGrant};
use bastide::{Command, CreateOptions, ErrorClass, Session};
use bastide_docker::DockerOptions;
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh};
use bastide_testkit::trials;

use super::setting::{Setting, base};

pub(crate) const TRIALS: &[Trial] = trials![
    has_the_users_own_home_or_the_manifests,
    has_the_variables_an_engine_sets,
    tells_a_signal_by_128_and_its_number,
    names_the_shell_that_ran_in_errors,
    makes_a_granted_path_the_image_lacks,
    says_which_granted_path_cannot_be_had,
    runs_commands_as_users_with_groups,
    gives_users_of_the_manifest_a_home,
    says_on_a_terminal_that_a_program_is_missing,
    keeps_to_the_contract_of_sessions_on_this_machine,
];

/// What a shell command says as a user.
async fn say_as(session: &Session, user: &str, line: &str) -> Result<String, TrialError> {
    let output = session.exec(sh(line).user(user)).await?;
    if output.exit.code != 0 {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` as {user}: {} {stderr}", output.exit.code).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

async fn has_the_users_own_home_or_the_manifests(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    assert_eq!(say(&session, "echo $HOME").await?, "/root\n");
    for (user, home) in
        [("app", "/home\n"), ("1000", "/home\n"), ("nobody", "/\n"), ("1234", "/\n")]
    {
        assert_eq!(say_as(&session, user, "echo $HOME").await?, home, "{user}");
    }
    let own = sh("echo $HOME").env("HOME", "/command");
    assert_eq!(session.exec(own).await?.stdout, b"/command\n");
    session.delete().await?;

    let session = setting.session(DockerOptions::new(images::SETTINGS)).await?;
    assert_eq!(say(&session, "echo $HOME").await?, "/home\n", "the image's own user");
    session.delete().await?;

    let mut manifest = Manifest::default();
    manifest.environment.value.insert("HOME".to_owned(), Variable::Plain("/own".to_owned()));
    let client = setting.client(base())?;
    let session = client.create(&manifest, CreateOptions::default()).await?;
    assert_eq!(say(&session, "echo $HOME").await?, "/own\n");
    assert_eq!(say_as(&session, "app", "echo $HOME").await?, "/own\n");
    Ok(session.delete().await?)
}

async fn has_the_variables_an_engine_sets(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    assert_eq!(say(&session, "[ \"$HOSTNAME\" = \"$(uname -n)\" ] && echo same").await?, "same\n");
    assert_eq!(say(&session, "echo \"<$TERM>\"").await?, "<>\n");
    let shown =
        session.compat().pty_exec_start(sh("echo $TERM").terminal(24, 80), PtyLimits::default());
    assert_eq!(String::from_utf8(shown.await?.output)?, "xterm\r\n");
    Ok(session.delete().await?)
}

async fn tells_a_signal_by_128_and_its_number(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    for (line, code) in [("kill -9 $$", 137), ("kill -15 $$", 143), ("kill -11 $$", 139)] {
        assert_eq!(session.compat().exec_result(sh(line)).await?.exit_code, code, "{line}");
        let update = session.compat().pty_exec_start(sh(line), PtyLimits::default()).await?;
        assert_eq!(update.exit_code, Some(code), "{line}");
    }
    Ok(session.delete().await?)
}

async fn names_the_shell_that_ran_in_errors(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    let late = Command::shell("sleep 100").timeout(std::time::Duration::from_millis(200));
    let error = session.compat().exec_result(late).await.err().ok_or("it did not take long")?;
    let reported = error.context().get("command_str").and_then(serde_json::Value::as_str);
    assert_eq!(reported, Some("sh -lc sleep 100"), "{error:?}");
    session.delete().await?;

    let session = setting.session(DockerOptions::new(images::EMPTY)).await?;
    let error = session
        .compat()
        .exec_result(Command::shell("true"))
        .await
        .err()
        .ok_or("there is a shell")?;
    let reported = error.context().get("command_str").and_then(serde_json::Value::as_str);
    assert_eq!(reported, Some("sh -lc true"), "{error:?}");
    Ok(session.delete().await?)
}

fn granted(path: &str, read_only: bool) -> Manifest {
    let grant = PathGrant { path: path.to_owned(), read_only, description: None, host_path: None };
    Manifest { extra_path_grants: vec![grant], ..Manifest::default() }
}

async fn makes_a_granted_path_the_image_lacks(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    for image in [images::BASE, images::SETTINGS, images::EMPTY] {
        let client = setting.client(DockerOptions::new(image))?;
        let manifest = granted("/data/missing", false);
        let session = client.create(&manifest, CreateOptions::default()).await?;
        session.files().write("/data/missing/new", "content").await?;
        assert_eq!(session.files().read("/data/missing/new").await?, "content", "{image}");
        session.delete().await?;

        let manifest = granted("/data/missing", true);
        let session = client.create(&manifest, CreateOptions::default()).await?;
        assert!(session.files().write("/data/missing/new", "content").await.is_err(), "{image}");
        session.delete().await?;
    }
    Ok(())
}

async fn says_which_granted_path_cannot_be_had(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let mut options = base();
    options.read_only_root = true;
    // One that cannot be made, and one that is in the way of itself.
    for (path, options) in [("/data/missing", options), ("/etc/passwd/beneath", base())] {
        let client = setting.client(options)?;
        let made = client.create(&granted(path, false), CreateOptions::default()).await.map(drop);
        let error = made.err().ok_or("it was granted")?;
        assert!(error.message().contains(path), "{error}");
        assert!(!error.message().contains("child"), "{error}");
    }
    Ok(())
}

async fn runs_commands_as_users_with_groups(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    // Once beside root, once beside the very user that is named.
    for image in [images::BASE, images::SETTINGS] {
        let session = setting.session(DockerOptions::new(image)).await?;
        let line = "echo $(id -u) $(id -g) $(id -G)";
        for (user, want) in [
            ("app", "1000 1001 1001 2000\n"),
            ("1000", "1000 1001 1001 2000\n"),
            ("app:extra", "1000 2000 2000\n"),
            ("1000:2000", "1000 2000 2000\n"),
            ("app:root", "1000 0 0\n"),
            ("app:", "1000 1001 1001 2000\n"),
            (":extra", "0 2000 2000\n"),
            ("0:extra", "0 2000 2000\n"),
            ("1234:77", "1234 77 77\n"),
            ("1234", "1234 0 0\n"),
        ] {
            assert_eq!(say_as(&session, user, line).await?, want, "{image} {user}");
        }
        for user in ["nosuch", "app:nosuch", "app:extra:more", ":", "4294967295"] {
            let refused = session.exec(sh("true").user(user)).await.map(drop);
            let error = refused.err().ok_or_else(|| format!("{user} was somebody"))?;
            assert_eq!(error.kind(), bastide::ErrorKind::InvalidInput, "{user}: {error}");
        }
        session.delete().await?;
    }
    Ok(())
}

async fn gives_users_of_the_manifest_a_home(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let manifest = Manifest { users: vec![User::new("ann")], ..Manifest::default() };
    let client = setting.client(base())?;
    let session = client.create(&manifest, CreateOptions::default()).await?;
    let said = say(&session, "grep ^ann: /etc/passwd | cut -d: -f6-").await?;
    assert_eq!(said, "/home/ann:/usr/sbin/nologin\n");
    assert_eq!(say_as(&session, "ann", "echo $HOME").await?, "/home/ann\n");
    Ok(session.delete().await?)
}

async fn says_on_a_terminal_that_a_program_is_missing(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let session = setting.session(base()).await?;
    for (program, said, code) in [
        ("nosuchprogram", "sh: 1: exec: nosuchprogram: not found", 127),
        ("/no/such", "sh: 1: exec: /no/such: not found", 127),
        ("/etc", "sh: 1: exec: /etc: Permission denied", 126),
    ] {
        let command = || Command::new([program, "argument"]);
        let on_terminal = command().terminal(24, 80);
        let update = session.compat().pty_exec_start(on_terminal, PtyLimits::default()).await?;
        assert_eq!(String::from_utf8(update.output)?, format!("{said}\r\n"));
        assert_eq!((update.process_id, update.exit_code), (None, Some(code)), "{program}");
        let update = session.compat().pty_exec_start(command(), PtyLimits::default()).await?;
        assert_eq!(String::from_utf8(update.output)?, format!("{said}\n"));
        assert_eq!(update.exit_code, Some(code), "{program}");
    }
    Ok(session.delete().await?)
}

/// Where the reference's two clients differ about the session itself, every backend here is like the local
/// one: `docs/differences.md` says why.
async fn keeps_to_the_contract_of_sessions_on_this_machine(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let client = setting.client(base())?;
    let session = client.create_unstarted(&Manifest::default(), CreateOptions::default()).await?;
    assert!(!session.compat().running().await, "before it was started");
    session.start().await?;
    assert!(session.compat().running().await);

    session.files().write("file", "content").await?;
    session.files().mkdir("folder").await?;
    session.files().mkdir("folder").await?;
    let class = |done: bastide::Result<()>| done.err().and_then(|error| error.class());
    let cannot_write = Some(ErrorClass::WorkspaceArchiveWriteError);
    assert_eq!(class(session.files().mkdir("a/b").await), cannot_write);
    assert_eq!(class(session.files().mkdir_all("file").await), cannot_write);
    assert_eq!(
        class(session.files().ls("file").await.map(drop)),
        Some(ErrorClass::ExecNonZeroError)
    );
    assert_eq!(class(session.files().write("folder", "content").await), cannot_write);
    assert_eq!(session.files().ls("folder").await?.len(), 0, "nothing came into it");
    session.files().rm("folder").await?;
    session.files().mkdir_all("full/of").await?;
    assert_eq!(class(session.files().rm("full").await), cannot_write);
    let missing = session.compat().exec_result(Command::new(["nosuchprogram"])).await.map(drop);
    assert_eq!(class(missing), Some(ErrorClass::ExecTransportError));
    Ok(session.delete().await?)
}
