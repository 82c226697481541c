//! Whatever is killed, and whenever: what is left can be found and removed, and what lives is not
//! touched.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::{Home, count, is_running, kill, parent, pass, text, until};

/// Numbers nobody can foresee, and nobody has to.
pub(crate) fn random(below: u64) -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let seed = std::env::var_os("BASTIDE_TEST_SEED");
    let seed = seed.and_then(|seed| seed.to_str()?.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let seed = seed << 32 | 0x9e37_79b9;
    let before = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mut number = before.wrapping_add(seed);
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (number ^ (number >> 31)) % below
}

/// Some moment of something that takes about as long as this; now and then, one after it.
pub(crate) fn moment(usual: Duration) -> Duration {
    let most = u64::try_from(usual.as_micros()).unwrap_or(u64::MAX).max(1000);
    Duration::from_micros(random(most + most / 8))
}

/// Nothing of any session is left.
fn assert_nothing_left(home: &Home) {
    until("its processes end", || home.processes().is_empty());
    assert_eq!(home.folders(), Vec::<String>::new());
    assert_eq!(home.say(&["ls"]), "");
}

#[test]
fn leaves_nothing_that_cannot_be_swept_however_a_maker_is_killed() {
    let home = Home::new();
    let survivor = home.create();
    fs::write(home.path().join("m.yaml"), "entries:\n  a/b/c:\n    type: file\n    content: x\n")
        .unwrap();
    for round in 0..count(400) {
        let arguments: &[&str] = match round % 4 {
            0 => &["create"],
            3 => &["create", "--pids", "100"],
            1 => &["create", "--manifest", "m.yaml"],
            _ => &["run", "--manifest", "m.yaml", "--", "sleep", "7900@"],
        };
        let mut child = home.command(arguments).spawn().unwrap();
        pass(Duration::from_micros(random(25_000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Wardens that lost their owner end by themselves; some sessions were made to their end.
    until("only sessions that were made are alive", || {
        let live = home.json(&["ls", "--json"]);
        let live = live.as_array().unwrap().iter().filter(|session| session["state"] == "running");
        let live = live.count();
        // Each has a warden, an init, a guest, a launcher and a few supervisors.
        home.processes().len() <= live * 10
            && home.json(&["sweep", "--json"])["kept"].as_u64() == u64::try_from(live).ok()
    });
    let swept = home.json(&["sweep", "--json"]);
    assert_eq!(swept["failed"], serde_json::json!([]));
    let live = home.json(&["ls", "--json"]);
    for session in live.as_array().unwrap() {
        assert_eq!(session["state"], "running", "{session}");
        let id = session["id"].as_str().unwrap();
        assert_eq!(home.say(&["exec", id, "--", "echo", "here"]), "here\n");
        home.say(&["rm", id]);
    }
    assert!(live.as_array().unwrap().iter().any(|session| session["id"] == survivor.as_str()));
    assert_nothing_left(&home);
    assert!(!is_running("sleep 7900@"));
    // The guest, and what says that it was compared with the one we have.
    let guests: Vec<_> = fs::read_dir(home.path().join("guests")).unwrap().collect();
    let is_stamp = |guest: &&std::io::Result<fs::DirEntry>| {
        guest.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "checked")
    };
    let stamps = guests.iter().filter(is_stamp).count();
    assert!(stamps <= 1 && guests.len() == 1 + stamps, "{guests:?}");
}

#[test]
fn serves_many_processes_at_once_on_one_home() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..count(60) {
                    let id = home.create();
                    assert_eq!(home.say(&["exec", &id, "--", "echo", "here"]), "here\n");
                    let listed = home.json(&["ls", "--json"]);
                    let listed = listed.as_array().unwrap();
                    let own = listed.iter().find(|session| session["id"] == id.as_str()).unwrap();
                    assert_eq!(own["state"], "running");
                    let swept = home.json(&["sweep", "--json"]);
                    assert_eq!(swept["failed"], serde_json::json!([]), "{swept}");
                    assert_eq!(home.say(&["exec", &id, "--", "echo", "there"]), "there\n");
                    home.say(&["rm", &id]);
                    let gone = home.run(&["exec", &id, "--", "true"]);
                    assert_eq!(gone.status.code(), Some(125));
                }
            });
        }
    });
    assert_nothing_left(&home);
    assert_eq!(home.sweep(), Vec::<String>::new());
}

/// The warden and the first process of a session, as the host numbers them.
pub(crate) fn warden_and_init(home: &Home, id: &str) -> (i32, i32) {
    let guest = home.json(&["inspect", "--json", id])["guest"]["pid"].as_i64().unwrap();
    let init = parent(i32::try_from(guest).unwrap());
    (parent(init), init)
}

pub(crate) fn state(home: &Home, id: &str) -> String {
    home.json(&["inspect", "--json", id])["state"].as_str().unwrap().to_owned()
}

#[test]
fn ends_with_its_warden_and_is_swept() {
    let home = Home::new();
    let (id, other) = (home.create(), home.create());
    home.say(&["exec", "-d", &id, "--", "sleep", "7901@"]);
    let (warden, _) = warden_and_init(&home, &id);
    kill(warden, "KILL");
    until("the sandbox ends", || !is_running("sleep 7901@") && state(&home, &id) == "ended");
    assert_eq!(home.run(&["exec", &id, "--", "true"]).status.code(), Some(125));
    until("it is swept away", || {
        home.say(&["sweep", "--ended"]);
        !home.folders().contains(&id)
    });
    assert_eq!(home.say(&["exec", &other, "--", "echo", "here"]), "here\n");
    home.say(&["rm", &other]);
    assert_nothing_left(&home);
}

/// The cgroups of a session, wherever they are.
fn groups(id: &str) -> String {
    let mut find = std::process::Command::new("find");
    let name = format!("bastide-{id}");
    text(&find.args(["/sys/fs/cgroup", "-type", "d", "-name", &name]).output().unwrap().stdout)
}

#[test]
fn removes_control_groups_though_the_warden_is_gone() {
    let home = Home::new();
    let limits = ["--memory", "1g", "--pids", "100"];
    let id = home.say(&[&["create"], &limits[..]].concat()).trim().to_owned();
    let receipt = &home.json(&["inspect", "--json", &id])["receipt"];
    let by = receipt["limits"]["pids"]["enforced_by"].as_str().unwrap_or_default();
    assert_eq!(!groups(&id).is_empty(), by.starts_with("cgroup"), "{receipt}");
    let (warden, _) = warden_and_init(&home, &id);
    kill(warden, "KILL");
    until("the sandbox ends", || state(&home, &id) == "ended");
    until("it is swept away", || {
        home.say(&["sweep", "--ended"]);
        !home.folders().contains(&id)
    });
    assert_eq!(groups(&id), "");
}

#[test]
fn sweeps_a_sandbox_that_can_do_nothing_any_more() {
    let home = Home::new();
    let id = home.create();
    home.say(&["exec", "-d", &id, "--", "sleep", "7902@"]);
    let (warden, _) = warden_and_init(&home, &id);
    let guest = home.json(&["inspect", "--json", &id])["guest"]["pid"].as_i64().unwrap();
    kill(i32::try_from(guest).unwrap(), "STOP");
    kill(warden, "KILL");
    until("the warden is gone", || state(&home, &id) == "ended");
    until("it runs", || is_running("sleep 7902@"));
    // What runs there can be reached by nobody, and ends; what lies there stays.
    let swept = home.json(&["sweep", "--json"]);
    // Locks of ids belong to no home.
    let removed = swept["removed"].as_array().unwrap();
    assert!(removed.iter().all(|removed| removed["id"].is_null()), "{swept}");
    assert_eq!(swept["ended"][0]["id"], id.as_str(), "{swept}");
    assert!(!is_running("sleep 7902@"));
    let swept = home.json(&["sweep", "--ended", "--json"]);
    assert_eq!(swept["removed"][0]["id"], id.as_str(), "{swept}");
    assert_nothing_left(&home);
}

#[test]
fn removes_sessions_whose_keepers_stand_still() {
    let home = Home::new();
    for stopped in 0..3 {
        let id = home.create();
        home.say(&["exec", "-d", &id, "--", "sleep", "7903@"]);
        let (warden, init) = warden_and_init(&home, &id);
        let guest = home.json(&["inspect", "--json", &id])["guest"]["pid"].as_i64().unwrap();
        kill([warden, init, i32::try_from(guest).unwrap()][stopped], "STOP");
        home.say(&["rm", &id]);
        assert!(!is_running("sleep 7903@"));
        assert_nothing_left(&home);
    }
}

#[test]
fn sweeps_wardens_whose_folder_somebody_removed() {
    let home = Home::new();
    let (id, other) = (home.create(), home.create());
    home.say(&["exec", "-d", &id, "--", "sleep", "7904@"]);
    fs::remove_dir_all(home.path().join("sessions").join(&id)).unwrap();
    until("it runs", || is_running("sleep 7904@"));
    let swept = home.say(&["sweep"]);
    assert!(swept.contains("a warden whose session's folder is gone"), "{swept}");
    until("the sandbox ends", || !is_running("sleep 7904@"));
    assert_eq!(home.say(&["exec", &other, "--", "echo", "here"]), "here\n");
    home.say(&["rm", &other]);
    assert_nothing_left(&home);
}

#[test]
fn needs_no_database_to_know_its_sessions() {
    let home = Home::new();
    let id = home.create();
    let database = home.path().join("state.db");
    let damages: [fn(&std::path::Path); 3] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "this is no database, and long enough to be sure of that").unwrap(),
        |path| fs::write(path, "").unwrap(),
    ];
    for damage in damages {
        assert!(database.exists());
        for beside in ["state.db-wal", "state.db-shm"] {
            drop(fs::remove_file(home.path().join(beside)));
        }
        damage(&database);
        assert!(home.say(&["ls"]).starts_with(&id));
        assert_eq!(home.json(&["sweep", "--json"])["indexed"], 1);
        assert_eq!(home.say(&["exec", &id, "--", "echo", "here"]), "here\n");
    }
    assert_eq!(fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o600);
    home.say(&["rm", &id]);
    assert_nothing_left(&home);
}

#[test]
fn removes_a_session_whose_making_was_interrupted() {
    let home = Home::new();
    let whole = home.create();
    let record = fs::read_to_string(home.path().join("sessions").join(&whole).join("machine.json"));
    let mut record: serde_json::Value = serde_json::from_str(&record.unwrap()).unwrap();
    record["stage"] = "starting".into();
    record["machine"] = serde_json::Value::Null;
    let id = "0123456789abcdef0123456789abcdef";
    let ways: [&[&str]; 2] = [&["rm", id], &["sweep"]];
    for remove in ways {
        let folder = home.path().join("sessions").join(id);
        fs::create_dir_all(folder.join("work/a/b")).unwrap();
        record["id"] = id.into();
        fs::write(folder.join("machine.json"), record.to_string()).unwrap();
        assert_eq!(state(&home, id), "failed");
        assert_eq!(home.run(&["exec", id, "--", "true"]).status.code(), Some(125));
        home.say(remove);
        assert_eq!(home.folders(), [whole.as_str()], "{remove:?}");
    }
    home.say(&["rm", &whole]);
    assert_nothing_left(&home);
}

#[test]
fn removes_a_session_whose_record_is_damaged() {
    let home = Home::new();
    for text in ["", "{}", "not json", "{\"form\":99}"] {
        let id = home.create();
        home.say(&["exec", "-d", &id, "--", "sleep", "7905@"]);
        let record = home.path().join("sessions").join(&id).join("machine.json");
        fs::write(&record, text).unwrap();
        assert_eq!(home.run(&["exec", &id, "--", "true"]).status.code(), Some(125));
        // It lives, so nobody sweeps it away.
        home.say(&["sweep"]);
        until("it runs", || is_running("sleep 7905@"));
        home.say(&["rm", &id]);
        assert!(!is_running("sleep 7905@"));
        assert_nothing_left(&home);
    }
}

#[test]
fn removes_whatever_a_command_made() {
    let home = Home::new();
    let id = home.create();
    let line = "
        mkdir -p closed/deeper && touch closed/deeper/file && chmod 0 closed/deeper closed
        touch read-only && chmod 0 read-only && ln -s /etc link && mkfifo pipe
        i=0; while [ $i -lt 300 ]; do mkdir deep && cd deep || exit 1; i=$((i+1)); done
        touch bottom
    ";
    home.say(&["exec", &id, "--", "sh", "-ec", line]);
    home.say(&["rm", &id]);
    assert_nothing_left(&home);
    assert!(fs::exists("/etc/passwd").unwrap());

    // Also when nobody is there to ask: its maker ran it, and is killed.
    let script = format!("{line} echo done; sleep 7906@");
    let mut child = home.start(&["run", "--", "sh", "-c", &script], "done");
    child.kill().unwrap();
    child.wait().unwrap();
    until("it is gone", || home.folders().is_empty());
    assert_nothing_left(&home);
    assert!(text(&fs::read("/etc/passwd").unwrap()).contains("root"));
}

/// On the rung `landlock` commands of an ordinary user are that user, and can close the session's folder to its owner.
#[test]
fn removes_what_commands_closed_to_its_owner() {
    let home = Home::of_anybody_but_root();
    let run = ["run", "--isolation", "landlock", "--", "sh", "-c"];
    let line = "mkdir deep; chmod 000 deep .. ; echo done; sleep 7907@";
    let mut child = home.start(&[&run[..], &[line]].concat(), "done");
    child.kill().unwrap();
    child.wait().unwrap();
    until("it is gone", || home.folders().is_empty());
    assert_nothing_left(&home);

    let id = home.say(&["create", "--isolation", "landlock"]).trim().to_owned();
    home.run(&["exec", &id, "--", "chmod", "000", ".."]);
    home.say(&["rm", &id]);
    assert_nothing_left(&home);
}

/// The caller's own limit on processes counts a storm of commands that run as the caller.
#[test]
fn ends_a_fork_storm_though_there_is_no_room_for_a_thread_of_its_own() {
    let Some(home) = Home::of_somebody() else { return };
    for isolation in ["namespaces", "landlock"] {
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", "ulimit -u 200 && exec \"$@\"", "bash"]);
        let storm = ["perl", "-e", "$| = 1; print qq(up\\n); while (1) { fork }"];
        let run = ["run", "--isolation", isolation, "--timeout", "2", "--"];
        let ended = home.around(shell, &[&run[..], &storm].concat()).output().unwrap();
        let said = text(&ended.stderr);
        assert!(!said.contains("panicked"), "{isolation}: {said}");
        assert_eq!(ended.status.code(), Some(124), "{isolation}: {said}");
        until("the storm is over", || home.processes().is_empty());
    }
}
