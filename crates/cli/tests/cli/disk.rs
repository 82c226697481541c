//! Disks that are full: every call ends with the true reason, nothing is half done, and whoever filled the
//! disk can be removed.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{Home, fed, text};
use crate::inject::{self, Call};

/// A small disk, in a mount namespace of its own that anybody may make. It goes with this value.
struct SmallDisk {
    holder: Child,
}

impl SmallDisk {
    /// Mounts a disk of so many MiB on a folder.
    fn mount(folder: &Path, size: u32) -> Self {
        Self::with(folder, &format!("size={size}m"))
    }

    /// Mounts a disk with these bounds on a folder.
    fn with(folder: &Path, bounds: &str) -> Self {
        let line = format!("mount -t tmpfs -o {bounds},mode=755 tmpfs \"$1\" && echo up && cat");
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", &line, "sh"]).arg(folder);
        let mut holder = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 3];
        holder.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"up\n");
        Self { holder }
    }

    /// Runs the tool where the disk is, with something to read.
    fn feed(&self, home: &Home, arguments: &[&str], input: &[u8]) -> Output {
        let mut enter = Command::new("nsenter");
        enter.args(["--user", "--mount", "--preserve-credentials", "--target"]);
        enter.arg(self.holder.id().to_string());
        enter.arg(env!("CARGO_BIN_EXE_bastide"));
        fed(&mut home.wrapped(enter, arguments), input)
    }

    fn run(&self, home: &Home, arguments: &[&str]) -> Output {
        self.feed(home, arguments, b"")
    }

    /// What the tool prints, which must end well.
    fn say(&self, home: &Home, arguments: &[&str]) -> String {
        let output = self.run(home, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        drop(self.holder.wait());
    }
}

/// A failure for want of room, said in so many words.
fn is_storage_full(output: &Output) -> bool {
    output.status.code() == Some(125) && text(&output.stderr).contains("No space left on device")
}

const FILL: &str = "head -c 100000000 /dev/zero > big";

#[test]
fn tells_the_true_reason_when_a_workspace_is_full() {
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let disk = SmallDisk::mount(&folder, 8);
    let say = |arguments: &[&str]| disk.say(&home, arguments);
    let id = say(&["create", "--workspace", folder.to_str().unwrap()]).trim().to_owned();
    let other = say(&["create"]).trim().to_owned();

    let filled = disk.run(&home, &["exec", &id, "--", "sh", "-c", FILL]);
    assert_eq!(filled.status.code(), Some(1), "{}", text(&filled.stderr));
    assert!(text(&filled.stderr).contains("No space left on device"), "{}", text(&filled.stderr));
    for size in [1, 5_000_000] {
        let put = disk.feed(&home, &["files", "put", &id, "new"], &vec![b'x'; size]);
        assert!(is_storage_full(&put), "{size}: {}", text(&put.stderr));
    }
    std::fs::write(home.path().join("file"), vec![b'x'; 3_000_000]).unwrap();
    let file = home.path().join("file").display().to_string();
    let copied = disk.run(&home, &["cp", &file, &format!("{id}:new")]);
    assert!(is_storage_full(&copied), "{}", text(&copied.stderr));
    // Nothing is half written, and nobody else noticed.
    let listed: Value = serde_json::from_str(&say(&["files", "ls", "--json", &id, "."])).unwrap();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["big"]);
    // What commands say is kept elsewhere.
    let line = "yes | head -c 3000000 | tail -c 2; echo alive";
    assert_eq!(say(&["exec", &id, "--", "sh", "-c", line]), "y\nalive\n");
    assert_eq!(say(&["exec", &other, "--", "sh", "-c", "echo x > x; cat x"]), "x\n");
    // With room again, everything works again.
    say(&["files", "rm", &id, "big"]);
    let put = disk.feed(&home, &["files", "put", &id, "new"], &vec![b'x'; 5_000_000]);
    assert_eq!(put.status.code(), Some(0), "{}", text(&put.stderr));
    say(&["rm", &id, &other]);
    assert_eq!(home.folders(), Vec::<String>::new());
}

#[test]
fn removes_a_session_that_filled_the_disk_it_is_kept_on() {
    let home = Home::new();
    let disk = SmallDisk::mount(home.path(), 32);
    let say = |arguments: &[&str]| disk.say(&home, arguments);
    let (id, other) = (say(&["create"]).trim().to_owned(), say(&["create"]).trim().to_owned());
    let filled = disk.run(&home, &["exec", &id, "--", "sh", "-c", FILL]);
    assert_eq!(filled.status.code(), Some(1), "{}", text(&filled.stderr));
    // What cannot be noted is not done.
    for refused in [&["create"][..], &["exec", &id, "--", "true"]] {
        let output = disk.run(&home, refused);
        assert!(is_storage_full(&output), "{refused:?}: {}", text(&output.stderr));
    }
    let listed: Value = serde_json::from_str(&say(&["ls", "--json"])).unwrap();
    let running = listed.as_array().unwrap().iter().filter(|one| one["state"] == "running");
    assert_eq!(running.count(), 2, "{listed}");
    say(&["rm", &id]);
    assert_eq!(say(&["exec", &other, "--", "echo", "alive"]), "alive\n");
    assert_eq!(say(&["run", "--", "echo", "again"]), "again\n");
    let reported = say(&["events", &id, "--json"]);
    assert!(reported.contains("\"deleting\"") && reported.contains("\"late\":true"), "{reported}");
    say(&["rm", &other]);
    assert_eq!(say(&["ls"]), "");
    assert_eq!(say(&["audit", "verify", &id]).lines().count(), 1);
}

#[test]
fn makes_room_on_the_disk_it_is_kept_on() {
    let home = Home::new();
    let disk = SmallDisk::mount(home.path(), 32);
    let say = |arguments: &[&str]| disk.say(&home, arguments);
    let id = say(&["create"]).trim().to_owned();
    let filled = disk.run(&home, &["exec", &id, "--", "sh", "-c", FILL]);
    assert_eq!(filled.status.code(), Some(1), "{}", text(&filled.stderr));
    // What makes no room is not done without being noted.
    for refused in [&["files", "put", &id, "new"][..], &["files", "mkdir", &id, "new"]] {
        let output = disk.run(&home, refused);
        assert!(is_storage_full(&output), "{refused:?}: {}", text(&output.stderr));
    }
    say(&["files", "rm", &id, "big"]);
    assert_eq!(say(&["exec", &id, "--", "sh", "-c", "ls; echo alive"]), "alive\n");
    // It is on record, with that it was told late.
    let reported = say(&["events", &id, "--json"]);
    let reported = reported.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let late: Vec<_> = reported.filter(|record| record["data"]["late"] == true).collect();
    let what = |record: &Value, key: &str| record[key].as_str().map(str::to_owned);
    assert!(late.iter().any(|record| what(record, "op").as_deref() == Some("rm")), "{late:?}");
    let attached = late.iter().any(|record| what(record, "state").as_deref() == Some("attached"));
    assert!(attached, "{late:?}");
    assert!(say(&["audit", "verify", &id]).contains("good"));
    say(&["rm", &id]);
}

/// What cannot be kept is no point, and costs none.
#[test]
fn keeps_the_points_there_are_when_there_is_no_room_for_another() {
    let home = Home::new();
    let store = home.path().join("snapshots");
    std::fs::create_dir(&store).unwrap();
    let disk = SmallDisk::mount(&store, 4);
    let say = |arguments: &[&str]| disk.say(&home, arguments);
    let id = say(&["create"]).trim().to_owned();
    say(&["exec", &id, "--", "sh", "-c", "echo good > file"]);
    say(&["checkpoint", &id, "good"]);
    let fill = "dd if=/dev/urandom of=big bs=1M count=8 2>/dev/null; echo bad > file";
    say(&["exec", &id, "--", "sh", "-c", fill]);
    say(&["exec", "-d", &id, "--", "sh", "-c", "while :; do echo x >> alive; sleep 0.01; done"]);
    for refused in [&["checkpoint", &id, "big"][..], &["undo", &id], &["fork", &id]] {
        let output = disk.run(&home, refused);
        assert!(is_storage_full(&output), "{refused:?}: {}", text(&output.stderr));
    }
    // The session goes on, and so does what runs in it.
    let grows =
        "a=$(wc -c < alive); while [ $(wc -c < alive) -eq $a ]; do sleep 0.01; done; cat file";
    assert_eq!(say(&["exec", &id, "--", "sh", "-c", grows]), "bad\n");
    assert_eq!(say(&["log", &id]).lines().count(), 1);
    say(&["files", "rm", &id, "big"]);
    say(&["undo", &id]);
    assert_eq!(say(&["exec", &id, "--", "cat", "file"]), "good\n");
    say(&["rm", &id]);
}

#[test]
fn removes_a_session_where_no_file_can_be_made() {
    let home = Home::new();
    let disk = SmallDisk::with(home.path(), "size=64m,nr_inodes=400");
    let say = |arguments: &[&str]| disk.say(&home, arguments);
    let id = say(&["create"]).trim().to_owned();
    let fill = "n=0; while : > f$n; do n=$((n+1)); done";
    let filled = disk.run(&home, &["exec", &id, "--", "sh", "-c", fill]);
    assert!(text(&filled.stderr).contains("No space left on device"), "{}", text(&filled.stderr));
    let refused = disk.run(&home, &["create"]);
    assert!(is_storage_full(&refused), "{}", text(&refused.stderr));
    say(&["ls"]);
    say(&["rm", &id]);
    assert_eq!(say(&["run", "--", "echo", "again"]), "again\n");
}

/// A store into a page of a shared file that a full disk has no block for is SIGBUS.
#[test]
fn keeps_nothing_about_sessions_in_memory_shared_through_a_file() {
    let home = Home::new();
    let id = home.create();
    // One that an earlier version made goes.
    let wal = b"SQLite format 3\0\x10\0\x02\x02";
    std::fs::write(home.path().join("state.db"), wal).unwrap();
    std::fs::write(home.path().join("state.db-shm"), vec![0; 32768]).unwrap();
    let within = home.path().canonicalize().unwrap();
    for arguments in [&["ls"][..], &["create"], &["ls"], &["rm", &id], &["sweep"]] {
        let traced = inject::run(&mut home.command(arguments), &within, None);
        let said = text(&traced.output.stderr);
        assert_eq!(traced.output.status.code(), Some(0), "{arguments:?}: {said}");
        let name =
            |call: &Call| call.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let names: Vec<_> =
            traced.calls.iter().filter(|call| call.name == "openat").filter_map(name).collect();
        assert!(names.iter().any(|name| name == "state.db"), "{arguments:?}: {names:?}");
        assert!(!names.iter().any(|name| name.ends_with("-shm")), "{arguments:?}: {names:?}");
    }
}

/// Takes something away that a workspace on a file system of its own needs, and says what the receipt says
/// of the limit then.
fn limit_without(home: &Home, line: &str, more: &[&str]) -> (String, Vec<String>) {
    let mut wrapper = Command::new("unshare");
    if !is_root() {
        wrapper.args(["--user", "--map-current-user"]);
    }
    wrapper.args(["--mount", "sh", "-c", &format!("{line} && exec \"$@\""), "sh"]);
    wrapper.arg(env!("CARGO_BIN_EXE_bastide"));
    let arguments = [&["run", "--json", "--disk", "8M"], more, &["--", "true"]].concat();
    let output = home.wrapped(wrapper, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let open = report["receipt"]["not_enforced"].as_array().unwrap().iter();
    let open = open.map(|open| open.as_str().unwrap().to_owned());
    let by = report["receipt"]["limits"]["disk"]["enforced_by"].as_str().unwrap();
    (by.to_owned(), open.filter(|open| open.starts_with("disk as a whole: ")).collect())
}

fn is_root() -> bool {
    text(&Command::new("id").arg("-u").output().unwrap().stdout) == "0\n"
}

#[test]
fn says_what_the_limit_on_disk_does_not_bound_and_why() {
    const EACH: &str = "size of /tmp and /dev/shm; rlimit fsize, each file elsewhere";
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let folder = ["--workspace", folder.to_str().unwrap()];
    let mut cases = vec![("true", &folder[..], "the workspace is a folder of the host")];
    if is_root() {
        let no_device = "mount --bind /dev/null /dev/loop-control";
        let no_maker = "mount --bind /dev/null /usr/sbin/mkfs.ext4";
        cases.push((no_device, &[], "cannot find a loop device"));
        cases.push((no_maker, &[], "cannot run /usr/sbin/mkfs.ext4"));
    } else {
        cases.push(("true", &[], "only root can"));
    }
    for (line, more, why) in cases {
        let (by, open) = limit_without(&home, line, more);
        assert_eq!((by.as_str(), open.len()), (EACH, 1), "{line}: {open:?}");
        assert!(open[0].contains(why), "{line}: {open:?}");
    }
    assert_eq!(home.folders(), Vec::<String>::new());
}
