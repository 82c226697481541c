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
        return;
    }
    // Only root has ids to give, and so a pattern; in it a device is no mount.
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
