//! Storage that a manifest mounts: by drivers of the engine, or inside.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use bastide::model::Manifest;
use bastide::{CreateOptions, ErrorKind};
use bastide_testkit::conformance;
use bastide_testkit::engine::{Daemon, DaemonOptions};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use bastide_testkit::trials;
use serde_json::{Value, json};

use super::daemons::own_daemon;
use super::setting::{Setting, base, container};

pub(crate) const TRIALS: &[Trial] = trials![
    has_volumes_of_the_drivers_the_manifest_names,
    leaves_nothing_of_a_container_that_did_not_come_up,
    opens_mounting_for_the_session_that_asks_and_no_other,
    refuses_mounts_inside_that_would_open_what_is_closed,
    sees_every_write_where_the_daemon_lies_on_a_disk,
];

/// The name of a driver that mounts such storage.
const NAME: &str = "mountpoint";

/// The option of a volume that can be made and not mounted.
const BROKEN: &str = "broken";

/// A driver of volumes that are folders, which remembers what it was told.
struct Driver {
    /// Where its socket is.
    drivers: tempfile::TempDir,
    folder: tempfile::TempDir,
    reported: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Driver {
    fn start() -> std::io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let drivers = tempfile::tempdir()?;
        let socket = drivers.path().join(format!("{NAME}.sock"));
        let listener = UnixListener::bind(&socket)?;
        let driver = Self { drivers, folder, reported: Arc::default() };
        let (folder, reported) = (driver.folder.path().to_owned(), Arc::clone(&driver.reported));
        std::thread::spawn(move || {
            for engine in listener.incoming().flatten() {
                let (folder, reported) = (folder.clone(), Arc::clone(&reported));
                std::thread::spawn(move || serve(engine, &folder, &reported));
            }
        });
        Ok(driver)
    }

    /// A daemon that knows it. Not the one everybody uses: engines keep asking for drivers they once knew.
    fn daemon(&self, folder: &std::path::Path) -> Result<Daemon, TrialError> {
        let drivers = Some(self.drivers.path().to_owned());
        own_daemon(&folder.join("daemon"), &DaemonOptions { drivers, ..DaemonOptions::default() })
    }

    /// Everything it was told of one kind.
    fn reported(&self, what: &str) -> Vec<Value> {
        let reported = self.reported.lock().map(|reported| reported.clone()).unwrap_or_default();
        reported.into_iter().filter(|(word, _)| word == what).map(|(_, value)| value).collect()
    }
}

/// Answers the questions of an engine, one after the other.
fn serve(
    engine: UnixStream,
    folder: &std::path::Path,
    reported: &Mutex<Vec<(String, Value)>>,
) -> std::io::Result<()> {
    let mut answers = engine.try_clone()?;
    let mut questions = BufReader::new(engine);
    loop {
        let mut line = String::new();
        if questions.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let word = line.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            questions.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(std::io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        questions.read_exact(&mut body)?;
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let name = asked["Name"].as_str().unwrap_or_default().to_owned();
        let place = folder.join(&name);
        let mountpoint = place.display().to_string();
        let answer = match word.as_str() {
            "Plugin.Activate" => json!({"Implements": ["VolumeDriver"]}),
            "VolumeDriver.Create" => {
                std::fs::create_dir_all(&place)?;
                std::fs::write(place.join("object"), "stored elsewhere")?;
                if !asked["Opts"][BROKEN].is_null() {
                    std::fs::write(place.join(BROKEN), "")?;
                }
                json!({"Err": ""})
            }
            "VolumeDriver.Mount" if place.join(BROKEN).exists() => {
                json!({"Err": "the storage does not answer"})
            }
            "VolumeDriver.Mount" | "VolumeDriver.Path" => {
                json!({"Mountpoint": mountpoint, "Err": ""})
            }
            "VolumeDriver.Get" if place.is_dir() => {
                json!({"Volume": {"Name": name, "Mountpoint": mountpoint}, "Err": ""})
            }
            "VolumeDriver.Get" => json!({"Err": "there is no such volume"}),
            "VolumeDriver.List" => json!({"Volumes": [], "Err": ""}),
            "VolumeDriver.Capabilities" => json!({"Capabilities": {"Scope": "local"}}),
            "VolumeDriver.Remove" => {
                drop(std::fs::remove_dir_all(&place));
                json!({"Err": ""})
            }
            _ => json!({"Err": ""}),
        };
        if let Ok(mut reported) = reported.lock() {
            reported.push((word, asked));
        }
        let answer = answer.to_string();
        let kind = "application/vnd.docker.plugins.v1.1+json";
        let length = answer.len();
        write!(
            answers,
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{answer}"
        )?;
    }
}

fn with_mount(strategy: &Value) -> Result<Manifest, TrialError> {
    let mount = json!({
        "type": "s3_mount", "bucket": "pictures", "region": "here-1", "mount_strategy": strategy,
    });
    Ok(bastide::model::lax::read(&json!({"entries": {"data": mount}}))?)
}

async fn has_volumes_of_the_drivers_the_manifest_names(_: Context) -> Outcome {
    let driver = Driver::start()?;
    let folder = tempfile::tempdir()?;
    let daemon = driver.daemon(folder.path())?;
    let setting = Setting::new(&daemon.host())?;
    let manifest = with_mount(&json!({
        "type": "docker_volume", "driver": NAME, "driver_options": {"cache": "small"},
    }))?;
    let client = setting.client(base())?;
    let options = CreateOptions::default().detached();
    let session = client.create(&manifest, options).await?;
    let created = driver.reported("VolumeDriver.Create");
    let [reported] = created.as_slice() else { return Err(format!("{created:?}").into()) };
    let want = json!({"bucket": "pictures", "region": "here-1", "cache": "small"});
    assert_eq!(reported["Opts"], want);
    assert_eq!(say(&session, "cat data/object").await?, "stored elsewhere");
    // Mounts can be read only unless somebody says otherwise.
    assert_ne!(session.exec(sh("echo x > data/x")).await?.exit.code, 0);
    session.files().write("beside", "own").await?;
    let open = session.receipt().not_enforced.join("\n");
    assert!(open.contains("the volume driver mountpoint at /workspace/data"), "{open}");

    // It comes back with the container, and goes with the session.
    let id = session.id().clone();
    drop(session);
    client.stop(&id).await?;
    let mut again = bastide::ResumeOptions::default();
    again.manifest = Some(manifest);
    let session = client.resume_with(&id, again).await?;
    assert_eq!(say(&session, "cat data/object beside").await?, "stored elsewhereown");
    session.delete().await?;
    assert_eq!(driver.reported("VolumeDriver.Remove").len(), 1, "it is the session's own");
    let label = format!("label=bastide.session={id}");
    assert_eq!(setting.docker(&["volume", "ls", "--quiet", "--filter", &label])?, "");
    Ok(())
}

async fn leaves_nothing_of_a_container_that_did_not_come_up(_: Context) -> Outcome {
    let driver = Driver::start()?;
    let folder = tempfile::tempdir()?;
    let daemon = driver.daemon(folder.path())?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let broken = with_mount(&json!({
        "type": "docker_volume", "driver": NAME, "driver_options": {BROKEN: "yes"},
    }))?;
    // It starts, and its workspace cannot be laid out.
    let incomplete = json!({"entries": {"file": {"type": "local_file", "src": "not-there"}}});
    let incomplete: Manifest = bastide::model::lax::read(&incomplete)?;
    for (manifest, why) in [(broken, "does not answer"), (incomplete, "not-there")] {
        let options = CreateOptions::default().base_dir(folder.path().to_owned());
        let Err(error) = client.create(&manifest, options).await else {
            return Err(format!("it came up: {why}").into());
        };
        let said = format!("{error} {:?}", error.context());
        assert!(said.contains(why), "{said}");
        assert_eq!(setting.docker(&["ps", "--all", "--quiet"])?, "", "{why}");
        let label = "label=bastide.session";
        assert_eq!(setting.docker(&["volume", "ls", "--quiet", "--filter", label])?, "", "{why}");
        assert_eq!(client.list().await?.len(), 0, "{why}");
    }
    assert_eq!(driver.reported("VolumeDriver.Remove").len(), 1, "the volume went");
    Ok(())
}

async fn opens_mounting_for_the_session_that_asks_and_no_other(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    if !std::path::Path::new("/dev/fuse").exists() {
        return Err(skip("there is no /dev/fuse on this machine"));
    }
    let client = setting.client(base())?;
    let fuse = with_mount(&json!({"type": "in_container", "pattern": {"type": "mountpoint"}}))?;
    let session = client.create_unstarted(&fuse, CreateOptions::default()).await?;
    let format = "{{.HostConfig.Devices}} {{.HostConfig.CapAdd}} {{.HostConfig.SecurityOpt}}";
    let seen = setting.docker(&["inspect", "--format", format, &container(&session)])?;
    assert!(seen.contains("/dev/fuse") && seen.contains("SYS_ADMIN"), "{seen}");
    let open = session.receipt().not_enforced.join("\n");
    assert!(open.contains("SYS_ADMIN and the device /dev/fuse"), "{open}");
    // Nobody serves it, but it is mounted.
    let mount = "mkdir -p /mnt/fuse && (exec 3<>/dev/fuse && \
                 mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none /mnt/fuse) && \
                 grep -c ' /mnt/fuse fuse ' /proc/mounts && umount /mnt/fuse";
    assert_eq!(say(&session, mount).await?, "1\n");
    // What is mounted already stays as it is.
    let remount = "mount -i -o remount,bind,rw /.bastide/bin/guest";
    assert_ne!(session.exec(sh(remount)).await?.exit.code, 0);
    assert_ne!(session.exec(sh(mount).user("nobody")).await?.exit.code, 0, "only root mounts");
    let guest = say(&session, "grep CapEff /proc/1/status | cut -f2").await?;
    assert_eq!(guest, "00000000000000eb\n", "the first process itself has no use for it");
    session.delete().await?;

    let session = setting.session(base()).await?;
    assert_ne!(session.exec(sh("ls /dev/fuse")).await?.exit.code, 0);
    assert_ne!(
        session.exec(sh("mkdir -p /mnt/x; mount -i -t tmpfs none /mnt/x")).await?.exit.code,
        0
    );
    assert!(!session.receipt().not_enforced.join("\n").contains("SYS_ADMIN"));
    Ok(session.delete().await?)
}

async fn refuses_mounts_inside_that_would_open_what_is_closed(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let granted = tempfile::tempdir()?;
    let mut fuse = with_mount(&json!({"type": "in_container", "pattern": {"type": "mountpoint"}}))?;
    let mut one = base();
    one.only_user = Some("4242".to_owned());
    let client = setting.client(one)?;
    let refused = client.create_unstarted(&fuse, CreateOptions::default()).await.map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Unsupported));
    fuse.extra_path_grants = vec![bastide::model::PathGrant {
        path: "/granted".to_owned(),
        read_only: true,
        description: None,
        host_path: Some(granted.path().display().to_string()),
    }];
    let client = setting.client(base())?;
    let refused = client.create_unstarted(&fuse, CreateOptions::default()).await.map(drop);
    let message = refused.map_err(|error| error.to_string()).err().ok_or("it was made")?;
    assert!(message.contains("read-only host_path grants"), "{message}");
    Ok(())
}

/// The daemon that most trials use keeps its files in memory, where nothing counts as unchanged. On a disk files do, and
/// a store through a mapping has to be seen all the same.
async fn sees_every_write_where_the_daemon_lies_on_a_disk(_: Context) -> Outcome {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let mut stat = std::process::Command::new("stat");
    let kind = stat.args(["-f", "-c", "%T"]).arg(folder.path()).output()?.stdout;
    if !matches!(kind.trim_ascii(), b"ext2/ext3" | b"xfs" | b"btrfs") {
        return Err(skip("/var/tmp is on no disk whose times tell of changes"));
    }
    let daemon = own_daemon(&folder.path().join("daemon"), &DaemonOptions::default())?;
    let setting = Setting::new(&daemon.host())?;
    let context = setting.context();
    let wanted = [
        // Shows that files do count as unchanged.
        "reads_only_what_changed",
        "saves_what_is_written_through_a_mapping",
        "sees_changes_whose_times_were_set_back",
    ];
    let trials = conformance::trials().into_iter().filter(|trial| wanted.contains(&trial.name));
    let trials: Vec<Trial> = trials.collect();
    assert_eq!(trials.len(), wanted.len());
    let session = context.session().await?;
    assert!(conformance::times_tell(&session).await?, "nothing counts as unchanged");
    session.delete().await?;
    for trial in trials {
        // Each on a stack of its own, as elsewhere.
        let ended = tokio::spawn((trial.body)(context.clone())).await?;
        ended.map_err(|error| format!("{}: {error}", trial.name))?;
    }
    Ok(())
}
