//! Other users of the machine, beside a session whose commands opened to them what is kept about it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::text;

/// Whose session it is, and somebody else. Nobody has these ids.
const OWNER: u32 = 61_231;
const STRANGER: u32 = 61_232;

fn bastide(program: &Path, home: &Path, who: u32, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("BASTIDE_HOME", home).current_dir("/");
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").uid(who).gid(who);
    command.output().unwrap()
}

/// A folder that everybody can enter, and a copy of the program in it.
fn program_for_all() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("bastide");
    fs::copy(env!("CARGO_BIN_EXE_bastide"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (folder, program)
}

/// On the rung `landlock` commands of an ordinary user are that user, and can change the permissions of what is kept
/// about sessions. That gives nobody a session.
#[test]
fn nobody_else_gets_into_a_session_whose_folder_was_opened() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be two others");
        return;
    }
    let (folder, program) = program_for_all();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(OWNER), Some(OWNER)).unwrap();
    let owner = |arguments: &[&str]| bastide(&program, &home, OWNER, arguments);
    let created = owner(&["create", "--isolation", "landlock"]);
    assert!(created.status.success(), "{}", text(&created.stderr));
    let id = text(&created.stdout).trim().to_owned();
    let line = format!("chmod -R go+rwX {0} {0}/sessions/{id} {0}/*; true", home.display());
    let opened = owner(&["exec", &id, "--", "sh", "-c", &line]);
    let session = home.join("sessions").join(&id);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&session) & 0o007, 0o007, "it was not opened: {}", text(&opened.stderr));
    // The stranger may have anything that lies there.
    for name in ["guest.sock", "warden.sock", "machine.json", "token"] {
        if let Ok(found) = fs::metadata(session.join(name)) {
            let open = fs::Permissions::from_mode(found.permissions().mode() | 0o666);
            fs::set_permissions(session.join(name), open).unwrap();
        }
    }
    let ran = bastide(&program, &home, STRANGER, &["exec", &id, "--", "id", "-u"]);
    let ended = bastide(&program, &home, STRANGER, &["rm", &id]);
    let still = owner(&["exec", &id, "--", "id", "-u"]);
    let removed = owner(&["rm", &id]);
    assert!(!ran.status.success(), "a stranger ran a command: {}", text(&ran.stdout));
    assert_eq!(
        text(&still.stdout),
        format!("{OWNER}\n"),
        "{} {}",
        text(&ended.stderr),
        text(&still.stderr)
    );
    assert!(removed.status.success(), "{}", text(&removed.stderr));
}

/// Two ordinary users and root, each with a home of their own, at the same time on one machine.
#[test]
fn users_of_one_machine_never_meet() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be two others");
        return;
    }
    let (folder, program) = program_for_all();
    let users = [0, OWNER, STRANGER];
    let homes = users.map(|user| {
        let home = folder.path().join(user.to_string());
        fs::create_dir(&home).unwrap();
        chown(&home, Some(user), Some(user)).unwrap();
        (user, home)
    });
    let program = &program;
    let say = |user: u32, home: &Path, arguments: &[&str]| {
        let output = bastide(program, home, user, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{user} {arguments:?}: {said}");
        text(&output.stdout)
    };
    let say = &say;
    // All at once: each makes sessions, publishes the same port of them, sweeps, and sees its own only.
    let ids: Vec<Vec<String>> = std::thread::scope(|scope| {
        let work = homes.each_ref().map(|(user, home)| {
            scope.spawn(move || {
                let make = |_| say(*user, home, &["create"]).trim().to_owned();
                let ids: Vec<String> = (0..3).map(make).collect();
                for id in &ids {
                    let line = format!("echo {user} > owner");
                    say(*user, home, &["exec", id, "--", "sh", "-c", &line]);
                    say(*user, home, &["port", id, "8080"]);
                }
                // Locks of ids that nobody uses belong to no home.
                let swept = say(*user, home, &["sweep"]);
                assert!(swept.lines().all(|line| line.contains("/id-ranges/")), "{user}: {swept}");
                ids
            })
        });
        work.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut ports = Vec::new();
    for ((user, home), own) in homes.iter().zip(&ids) {
        let listed = say(*user, home, &["ls"]);
        assert_eq!(listed.lines().count(), own.len(), "{listed}");
        for id in own {
            assert_eq!(say(*user, home, &["exec", id, "--", "cat", "owner"]), format!("{user}\n"));
            ports.push(say(*user, home, &["port", id, "8080"]));
        }
        // Nobody but root gets into the home of another.
        for (other, _) in homes.iter().filter(|(other, _)| other != user && *other != 0) {
            for arguments in [&["ls"][..], &["exec", &own[0], "--", "true"], &["rm", &own[0]]] {
                let refused = bastide(program, home, *other, arguments);
                assert_ne!(refused.status.code(), Some(0), "{other} in the home of {user}");
            }
        }
    }
    let all = ports.len();
    ports.sort();
    ports.dedup();
    assert_eq!(ports.len(), all, "each has a port of its own");
    for ((user, home), own) in homes.iter().zip(&ids) {
        for id in own {
            say(*user, home, &["exec", id, "--", "cat", "owner"]);
            say(*user, home, &["rm", id]);
        }
        assert_eq!(fs::read_dir(home.join("sessions")).unwrap().count(), 0);
    }
}

/// Whoever may use a daemon of root's is not root for that: what has to be done beside its containers is refused by name,
/// before there is one.
#[test]
fn users_of_docker_are_told_what_takes_root() {
    let Some(host) = std::env::var_os("BASTIDE_TEST_DOCKER") else {
        println!("skipped: no Docker daemon was prepared; `cargo xtask test` starts one");
        return;
    };
    let host = host.to_string_lossy().into_owned();
    let socket = host.strip_prefix("unix://").and_then(|path| fs::metadata(path).ok());
    let (true, Some(socket)) = (rustix::process::geteuid().is_root(), socket) else {
        println!("skipped: only root can be somebody else");
        return;
    };
    let (folder, program) = program_for_all();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(OWNER), Some(OWNER)).unwrap();
    // In the group that the socket is for.
    let call = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env_clear().env("BASTIDE_HOME", &home).current_dir("/");
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("DOCKER_HOST", &host);
        command.uid(OWNER).gid(socket.gid()).output().unwrap()
    };
    let with = ["create", "--backend", "docker", "--image", "bastide-test/base"];
    let plain = call(&with);
    if text(&plain.stderr).contains("ermission denied") {
        println!("skipped: this daemon's socket is for root alone");
        return;
    }
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    let id = text(&plain.stdout).trim().to_owned();
    let manifest = folder.path().join("mount.yaml");
    let mount = "entries: {data: {type: s3_mount, bucket: b, mount_strategy: {type: host}}}\n";
    fs::write(&manifest, mount).unwrap();
    fs::set_permissions(&manifest, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = call(&[&with[..], &["--manifest", manifest.to_str().unwrap()]].concat());
    let sessions = fs::read_dir(home.join("sessions")).unwrap().count();
    let removed = call(&["rm", &id]);
    assert!(!refused.status.success(), "{}", text(&refused.stdout));
    let why = text(&refused.stderr);
    assert!(why.contains("takes root of this machine") && why.contains("in_container"), "{why}");
    assert_eq!(sessions, 1, "nothing was made for it");
    assert!(removed.status.success(), "{}", text(&removed.stderr));
}
