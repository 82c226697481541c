//! What sessions have in common, and that each has only that.

use std::sync::Arc;

use bastide::model::Manifest;
use bastide::{Client, Command, CreateOptions};
use bastide_local::LocalBackend;

#[test]
fn copies_what_sessions_have_in_common() {
    let home = tempfile::tempdir().unwrap();
    let granted = tempfile::tempdir().unwrap();
    std::fs::write(granted.path().join("file"), "granted").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap().for_many()));
    let run = |manifest: &serde_json::Value, line: &str| {
        runtime.block_on(async {
            let manifest: Manifest = bastide::model::lax::read(manifest).unwrap();
            let session = client.create(&manifest, CreateOptions::default()).await.unwrap();
            let output = session.exec(Command::shell(line)).await.unwrap();
            let rung = session.receipt().rung;
            session.delete().await.unwrap();
            (rung, String::from_utf8_lossy(&output.stdout).into_owned())
        })
    };
    let line = "grep -c /dev/null /proc/self/mounts; echo x > /dev/null && cat /etc/ld.so.conf; \
        for f in /x /etc/x /dev/x /etc/ld.so.conf; do (echo x > $f) 2>/dev/null && echo wrote $f; done; \
        mknod /tmp/null c 1 3 2>/dev/null && echo made; ls /proc | grep -c '^[0-9]'; ls /workspace";
    let (rung, said) = run(&serde_json::json!({}), line);
    if rung != bastide::Rung::Namespaces {
        // Whoever is root, and may have namespaces, has the best rung with a template, too.
        let plain = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap()));
        runtime.block_on(async {
            let manifest = Manifest::default();
            let session = plain.create(&manifest, CreateOptions::default()).await.unwrap();
            assert_eq!(session.receipt().rung, rung);
            session.delete().await.unwrap();
        });
        return;
    }
    // Only root has ids to give, and so a template; in it a device is no mount.
    let is_copy = rustix::process::geteuid().is_root();
    let (mounts, rest) = said.split_once('\n').unwrap();
    assert_eq!(mounts, if is_copy { "0" } else { "1" }, "{said}");
    let (rest, processes) = rest.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(rest.trim_end(), std::fs::read_to_string("/etc/ld.so.conf").unwrap().trim_end());
    // Its own, and none of the host's.
    assert!(processes.parse::<u32>().unwrap() < 12, "{said}");
    // What sees more of the host than others builds its root itself.
    let path = granted.path().to_str().unwrap();
    let manifest = serde_json::json!({"extra_path_grants": [{"path": path, "read_only": true}]});
    assert_eq!(run(&manifest, &format!("cat {path}/file")).1, "granted");
}

/// Where this very test is run again, by a process that has another root.
const IN_A_CHROOT: &str = "BASTIDE_TEST_IN_A_CHROOT";

/// A user that nothing else belongs to.
const SOMEBODY: u32 = 57_411;

/// What is only outside of it.
const LOOK: &str = "test -e /run/only-outside && echo out; echo in";

#[test]
fn takes_no_copy_where_the_root_is_not_the_machines_own() {
    if std::env::var_os(IN_A_CHROOT).is_some() {
        let home = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = Client::new(Arc::new(LocalBackend::new(home.path()).unwrap().for_many()));
        let output = runtime.block_on(async {
            // A place that is there outside, too. Where no user namespaces can be made, as in a chroot, commands
            // are whoever it belongs to, and never root.
            std::os::unix::fs::chown("/srv", Some(SOMEBODY), Some(SOMEBODY)).unwrap();
            let manifest = serde_json::json!({"root": "/srv"});
            let manifest: Manifest = bastide::model::lax::read(&manifest).unwrap();
            let session = client.create(&manifest, CreateOptions::default()).await.unwrap();
            let output = session.exec(Command::shell(LOOK)).await.unwrap();
            session.delete().await.unwrap();
            output
        });
        assert_eq!(String::from_utf8_lossy(&output.stdout), "in\n");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let around = tempfile::tempdir().unwrap();
    // Outside of it there is what the steps of a sandbox look for.
    let script = "set -e; mount --make-rprivate /; mkdir $1/jail; mount --rbind / $1/jail; \
        mount -t tmpfs none $1/jail/srv; mount -t tmpfs none /run; mkdir /run/accounts; touch /run/only-outside; \
        exec chroot $1/jail \"$2\" --exact takes_no_copy_where_the_root_is_not_the_machines_own";
    let itself = std::env::current_exe().unwrap();
    let status = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([around.path(), &itself])
        .env(IN_A_CHROOT, "1")
        .status()
        .unwrap();
    assert!(status.success());
}
