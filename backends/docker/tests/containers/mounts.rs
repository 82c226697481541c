//! Cloud storage that programs inside a container mount: rclone with a server it has itself, and stand-ins
//! for programs that cannot be had.

use std::path::{Path, PathBuf};
use std::process::{Child, Command as HostCommand, Stdio};
use std::time::{Duration, Instant};

use bastide::model::mount::Exposure;
use bastide::model::{Manifest, PathGrant};
use bastide::{Client, Command, CreateOptions, ErrorClass, ResumeOptions, Session};
use bastide_testkit::engine::{DaemonOptions, images};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use bastide_testkit::trials;
use serde_json::{Value, json};

use super::daemons::own_daemon;
use super::setting::{Setting, base};

pub(crate) const TRIALS: &[Trial] = trials![
    mounts_a_store_with_rclone_and_unmounts_it,
    goes_on_with_live_mounts_and_makes_stopped_ones_again,
    leaves_every_object_when_a_session_is_deleted,
    keeps_stores_out_of_snapshots,
    says_why_a_store_cannot_be_mounted,
    exposes_no_key_that_nobody_acknowledged,
    tells_the_programs_that_mount_what_the_reference_tells_them,
    mounts_over_nfs_with_a_stand_in_for_the_kernels_client,
    says_which_program_is_missing,
    mounts_by_rclones_volume_plugin,
];

const IMAGE: &str = "bastide-test/mounting";
const ID: &str = "AKIDTRIAL";
const KEY: &str = "s3cr3t-of-the-trial";
const PORT: u16 = 15_071;

/// How long a server may take to come up on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Mounts something, and remembers what it was told.
const STAND_IN: &str = "#!/bin/sh\nfor last do :; done\n{ echo \"${0##*/} $*\"; env | \
                        grep ^AWS_; for word do case $word in *.yaml) cat \"$word\";; esac; done; } \
                        > /tmp/reported\nmount -i -t tmpfs none \"$last\"\n";

/// As `mount` calls it: device, folder, options.
const HELPER: &str = "#!/bin/sh\necho \"$*\" > /tmp/reported\nmount -i -t tmpfs none \"$2\"\n";

/// Where `cargo xtask test` puts servers and rclone.
pub(crate) fn tools() -> PathBuf {
    match std::env::var_os("BASTIDE_TEST_MOUNT_TOOLS") {
        Some(given) => PathBuf::from(given),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mount-tools"),
    }
}

pub(crate) fn rclone() -> Result<PathBuf, TrialError> {
    let found = Some(tools().join("venv/bin/rclone")).filter(|path| path.exists());
    found.ok_or_else(|| skip("rclone 1.75 is not installed"))
}

/// What mounts for rclone.
fn fusermount() -> Result<&'static Path, TrialError> {
    let found = Some(Path::new("/usr/bin/fusermount3")).filter(|path| path.exists());
    found.ok_or_else(|| skip("fusermount3 is not installed"))
}

/// A daemon with the image, a home, and a folder of the host that the store is in.
pub(crate) struct MountSetup {
    setting: Setting,
    store: tempfile::TempDir,
}

impl MountSetup {
    pub(crate) fn new() -> Result<Self, TrialError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(skip("there is no /dev/fuse on this machine"));
        }
        let rclone = rclone()?;
        let fusermount = fusermount()?;
        let setting = Setting::prepared()?;
        let known = setting.docker(&["image", "ls", "--quiet", IMAGE])?;
        if known.is_empty() {
            let programs = [(rclone.as_path(), "rclone"), (fusermount, "fusermount3")];
            let scripts = [
                ("mount-s3", STAND_IN),
                ("blobfuse2", STAND_IN),
                ("mount.s3files", HELPER),
                ("mount.nfs", HELPER),
            ];
            images::make_with(&setting.host, IMAGE, &programs, &scripts)?;
        }
        let store = tempfile::tempdir()?;
        std::fs::create_dir(store.path().join("data"))?;
        std::fs::write(store.path().join("data/seed"), "from the store")?;
        Ok(Self { setting, store })
    }

    pub(crate) fn client(&self) -> Result<Client, TrialError> {
        let mut options = base();
        IMAGE.clone_into(&mut options.image);
        self.setting.client(options)
    }

    /// A manifest with one mount at `data`, and the store in a folder beside the workspace.
    fn manifest(&self, change: &Value) -> Result<Manifest, TrialError> {
        let mut mount = json!({
            "type": "s3_mount", "bucket": "data", "s3_provider": "Other", "read_only": false,
            "endpoint_url": format!("http://127.0.0.1:{PORT}"), "access_key_id": ID,
            "secret_access_key": KEY,
            "mount_strategy": {"type": "in_container", "pattern": {"type": "rclone"}},
        });
        for (key, value) in change.as_object().into_iter().flatten() {
            mount[key] = value.clone();
        }
        let mut manifest: Manifest =
            bastide::model::lax::read(&json!({"entries": {"data": mount}}))?;
        manifest.extra_path_grants = vec![PathGrant {
            path: "/store".to_owned(),
            read_only: false,
            description: None,
            host_path: Some(self.store.path().display().to_string()),
        }];
        Ok(manifest)
    }

    fn acknowledged(&self, change: &Value) -> Result<Manifest, TrialError> {
        let manifest = self.manifest(change)?;
        Ok(manifest.with_mount_exposure_acknowledged(Exposure::MountScoped, &["data"])?)
    }

    /// A session whose store answers, and whose workspace is not made yet.
    async fn unstarted(&self, manifest: &Manifest) -> Result<Session, TrialError> {
        let client = self.client()?;
        let session =
            client.create_unstarted(manifest, CreateOptions::default().detached()).await?;
        serve(&session).await?;
        Ok(session)
    }

    async fn started(&self, manifest: &Manifest) -> Result<Session, TrialError> {
        let session = self.unstarted(manifest).await?;
        session.start().await?;
        Ok(session)
    }

    /// What is in the store, by name.
    fn objects(&self) -> Result<Vec<String>, TrialError> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.store.path().join("data"))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

/// Starts the server of the store inside, and waits until it answers.
async fn serve(session: &Session) -> Outcome {
    let (address, key) = (format!("127.0.0.1:{PORT}"), format!("{ID},{KEY}"));
    let argv = ["rclone", "serve", "s3", "/store", "--addr", &address, "--auth-key", &key];
    session.launch(Command::new(argv).user("0")).await?;
    let script = format!(
        "exec rclone lsd :s3: --s3-provider Other --s3-endpoint http://{address} \
         --s3-access-key-id {ID} --s3-secret-access-key {KEY} --retries 1 --low-level-retries 1"
    );
    let deadline = Instant::now() + DEADLINE;
    while session.exec(sh(&script)).await?.exit.code != 0 {
        if Instant::now() > deadline {
            return Err("the server did not come up".into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn mounts_a_store_with_rclone_and_unmounts_it(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let session = trying.started(&trying.acknowledged(&json!({}))?).await?;
    assert_eq!(say(&session, "cat data/seed").await?, "from the store");
    assert_eq!(say(&session, "echo new > data/made && ls data").await?, "made\nseed\n");
    assert_eq!(trying.objects()?, ["made", "seed"], "it is in the store");
    // Its configuration was read, and is gone.
    assert_eq!(say(&session, "ls -A /dev/shm; find . -name '*.conf'").await?, "");
    let mounts = session.mounts().await?;
    let [mount] = mounts.as_slice() else { return Err(format!("{mounts:?}").into()) };
    assert_eq!((mount.path.as_str(), mount.state.as_str()), ("/workspace/data", "mounted"));
    assert_eq!((mount.provider.as_str(), mount.strategy.as_str()), ("s3", "in_container"));
    assert_eq!(mount.exposed, ["access_key_id", "secret_access_key"]);
    assert!(mount.since.is_some() && !mount.read_only, "{mount:?}");
    session.compat().apply_manifest(bastide::compat::ManifestPart::Whole).await?;
    session.start().await?;
    assert_eq!(say(&session, "grep -c ' /workspace/data ' /proc/mounts").await?, "1\n", "once");
    let policy = bastide::Tools::new(&session).remote_mount_policy()?.unwrap_or_default();
    assert!(policy.contains("/workspace/data (read and write)"), "{policy}");
    session.shutdown().await?;
    assert_eq!(trying.objects()?, ["made", "seed"]);
    Ok(session.delete().await?)
}

async fn goes_on_with_live_mounts_and_makes_stopped_ones_again(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    // Nobody has to answer for a store that is read as nobody in particular: no key, so no redaction.
    let manifest = trying.acknowledged(&json!({"read_only": true}))?;
    let session = trying.started(&manifest).await?;
    let id = session.id().clone();
    drop(session);
    let client = trying.client()?;
    let session = client.attach(&id).await?;
    assert_eq!(session.mounts().await?[0].state, "mounted", "another process sees it");
    assert_eq!(say(&session, "cat data/seed").await?, "from the store");
    assert_ne!(session.exec(sh("echo x > data/x")).await?.exit.code, 0, "it is read-only");
    // Its file is in use, and the session can be stopped all the same.
    session.launch(Command::new(["tail", "-f", "/workspace/data/seed"])).await?;
    drop(session);
    client.stop(&id).await?;
    let refused = client.resume(&id).await.map(drop).map_err(|error| error.to_string());
    assert!(refused.as_ref().is_err_and(|why| why.contains("mount")), "{refused:?}");
    // With the manifest the mount is tried; its server is gone with the machine.
    let mut options = ResumeOptions::default();
    options.manifest = Some(manifest);
    let refused = client.resume_with(&id, options).await.map(drop);
    let why = refused.map_err(|error| error.message().to_owned()).err().unwrap_or_default();
    assert!(why.contains("nothing listens at the endpoint"), "{why}");
    client.delete(&id).await?;
    assert_eq!(trying.objects()?, ["seed"]);
    Ok(())
}

async fn leaves_every_object_when_a_session_is_deleted(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let session = trying.started(&trying.acknowledged(&json!({}))?).await?;
    say(&session, "for n in 1 2 3; do echo $n > data/$n; done").await?;
    let hold = "exec 3<data/seed; touch held; sleep 600";
    session.launch(Command::new(["sh", "-c", hold])).await?;
    let deadline = Instant::now() + DEADLINE;
    while session.exec(sh("test -e held")).await?.exit.code != 0 {
        assert!(Instant::now() < deadline, "the file is not open");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    session.delete().await?;
    assert_eq!(trying.objects()?, ["1", "2", "3", "seed"]);
    Ok(())
}

async fn keeps_stores_out_of_snapshots(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    // Whatever the mount says of itself.
    let manifest = trying.acknowledged(&json!({"ephemeral": false}))?;
    let session = trying.started(&manifest).await?;
    session.files().write("own", "kept").await?;
    let store = bastide::Store::open(trying.setting.home.path().join("snapshots"))?;
    session.snapshots(&store).save("one", None).await?;
    assert_eq!(say(&session, "cat data/seed").await?, "from the store", "it is still mounted");
    say(&session, "rm own; echo more > data/more").await?;
    session.snapshots(&store).restore("one", None).await?;
    assert_eq!(say(&session, "cat own data/seed data/more").await?, "keptfrom the storemore\n");
    let client = trying.client()?;
    let plain = client.create(&Manifest::default(), CreateOptions::default()).await?;
    plain.snapshots(&store).restore("one", None).await?;
    assert_eq!(
        say(&plain, "find . -type f").await?,
        "./own\n",
        "neither objects nor configuration"
    );
    plain.delete().await?;
    Ok(session.delete().await?)
}

async fn says_why_a_store_cannot_be_mounted(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let session = trying.unstarted(&trying.acknowledged(&json!({}))?).await?;
    session.delete().await?;
    let cases = [
        (json!({"endpoint_url": "http://127.0.0.1:9"}), "nothing listens at the endpoint"),
        (json!({"bucket": "nowhere"}), "there is no such bucket"),
        (json!({"secret_access_key": "wrong-key-of-the-trial"}), "refuses the credentials"),
        (json!({"prefix": "seed"}), "is an object, not a folder"),
        (json!({"endpoint_url": "http://no.such.name.invalid"}), "has no network that leads"),
    ];
    for (change, why) in cases {
        let session = trying.unstarted(&trying.acknowledged(&change)?).await?;
        let Err(error) = session.start().await else {
            return Err(format!("it was mounted: {why}").into());
        };
        let said = format!("{error} {error:?}");
        assert!(error.message().contains(why), "{why}: {said}");
        assert!(error.message().contains("/workspace/data"), "{said}");
        assert!(!said.contains("of-the-trial"), "{said}");
        let left = "grep -c fuse.rclone /proc/mounts; ls -A /dev/shm; \
                    ps -eo args | grep -c '[r]clone mount'; true";
        assert_eq!(say(&session, left).await?, "0\n0\n", "nothing stays of it: {why}");
        session.delete().await?;
    }
    // Something is there that nobody would see any more.
    let session = trying.unstarted(&trying.acknowledged(&json!({}))?).await?;
    say(&session, "mkdir -p data && echo own > data/own").await?;
    let Err(error) = session.start().await else { return Err("it was hidden".into()) };
    assert!(error.message().contains("there is something in it already"), "{error}");
    assert_eq!(say(&session, "cat data/own").await?, "own\n");
    session.delete().await?;
    assert_eq!(trying.objects()?, ["seed"]);
    Ok(())
}

async fn exposes_no_key_that_nobody_acknowledged(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let client = trying.client()?;
    let unaccepted = trying.manifest(&json!({}))?;
    let Err(error) = client.create(&unaccepted, CreateOptions::default()).await else {
        return Err("the sandbox has the key".into());
    };
    assert_eq!(error.class(), Some(ErrorClass::MountConfigError));
    assert!(error.message().contains("mount-scoped credentials"), "{error}");
    assert_eq!(client.list().await?.len(), 0, "nothing was made");
    let accepted = trying.acknowledged(&json!({}))?;
    let session = trying.started(&accepted).await?;
    let state = session.state_json()?.to_string();
    assert!(!state.contains(KEY) && !state.contains(ID), "{state}");
    let id = session.id().clone();
    session.delete().await?;
    // Neither the record, the audit log nor anything else of the home has it.
    let mut grep = HostCommand::new("grep");
    let found = grep.args(["-r", "-l", KEY]).arg(trying.setting.home.path()).output()?;
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{id}");
    Ok(())
}

async fn tells_the_programs_that_mount_what_the_reference_tells_them(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let inside = |pattern: Value| json!({"type": "in_container", "pattern": pattern});
    let cases = [
        (
            json!({"mount_strategy": inside(json!({"type": "mountpoint"})), "prefix": "a/"}),
            vec![Exposure::MountScoped],
            format!(
                "mount-s3 --allow-overwrite --allow-delete --endpoint-url http://127.0.0.1:{PORT} \
                 --prefix a/ data /workspace/data\nAWS_ACCESS_KEY_ID={ID}\n\
                 AWS_SECRET_ACCESS_KEY={KEY}\n"
            ),
        ),
        (
            json!({"type": "azure_blob_mount", "account": "acct", "container": "box",
                "account_key": KEY, "mount_strategy": inside(json!({"type": "fuse"}))}),
            vec![Exposure::MountScoped, Exposure::Broad],
            format!("account-key: {KEY}"),
        ),
        (
            json!({"type": "s3_files_mount", "file_system_id": "fs-1", "region": "r",
                "mount_strategy": inside(json!({"type": "s3files"}))}),
            vec![Exposure::Broad],
            "fs-1 /workspace/data -o rw,region=r".to_owned(),
        ),
    ];
    for (change, exposures, want) in cases {
        let mut manifest = trying.manifest(&change)?;
        for exposure in exposures {
            manifest = manifest.with_mount_exposure_acknowledged(exposure, &["data"])?;
        }
        let client = trying.client()?;
        let session = client.create(&manifest, CreateOptions::default()).await?;
        let reported = say(&session, "cat /tmp/reported").await?;
        let is_reported = reported.contains(&want) || reported.contains(&want.replace("rw,", ""));
        assert!(is_reported, "{want}\n{reported}");
        assert_eq!(session.mounts().await?[0].state, "mounted");
        session.shutdown().await?;
        session.delete().await?;
    }
    Ok(())
}

async fn mounts_over_nfs_with_a_stand_in_for_the_kernels_client(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let pattern = json!({"type": "rclone", "mode": "nfs", "nfs_addr": "127.0.0.1:20490"});
    let nfs = json!({"mount_strategy": {"type": "in_container", "pattern": pattern}});
    let session = trying.started(&trying.acknowledged(&nfs)?).await?;
    let reported = say(&session, "cat /tmp/reported").await?;
    assert!(reported.contains("127.0.0.1:/ /workspace/data"), "{reported}");
    assert!(reported.contains("vers=4.1,tcp,port=20490"), "{reported}");
    let serves = |process: &bastide::ProcessInfo| {
        process.exit.is_none() && process.argv.get(2).is_some_and(|word| word == "nfs")
    };
    assert!(session.processes().await?.iter().any(serves), "its server runs");
    // The store is gone, so it is not what it was: its server ends with it.
    say(&session, "kill $(ps -eo pid,args | awk '/[s]erve s3/ {print $1}')").await?;
    say(&session, "umount /workspace/data").await?;
    assert!(session.start().await.is_err(), "nobody serves it");
    assert!(!session.processes().await?.iter().any(serves), "its server ended");
    Ok(session.delete().await?)
}

async fn says_which_program_is_missing(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let client = trying.setting.client(base())?;
    let manifest = trying.acknowledged(&json!({}))?;
    let Err(error) = client.create(&manifest, CreateOptions::default()).await else {
        return Err("it was mounted".into());
    };
    assert_eq!(error.class(), Some(ErrorClass::MountToolMissingError));
    assert_eq!(error.message(), "required mount tool missing: rclone");
    assert_eq!(client.list().await?.len(), 0, "nothing is left of it");
    Ok(())
}

/// A process of the host that ends with the trial.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(program: &Path, arguments: &[&str]) -> Result<Serving, TrialError> {
    let mut command = HostCommand::new(program);
    command.args(arguments).env_remove("AWS_CA_BUNDLE");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Serving(command.spawn()?))
}

async fn until(what: &str, is_so: impl Fn() -> bool) -> Outcome {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("{what} did not come up").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn mounts_by_rclones_volume_plugin(_: Context) -> Outcome {
    let rclone = rclone()?;
    fusermount()?;
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    std::fs::create_dir_all(path("store/data"))?;
    std::fs::write(path("store/data/seed"), "from the store")?;
    std::fs::create_dir(path("drivers"))?;
    let (address, key) = (format!("127.0.0.1:{port}"), format!("{ID},{KEY}"));
    let store = path("store");
    let _server = start(&rclone, &["serve", "s3", &store, "--addr", &address, "--auth-key", &key])?;
    let (socket, volumes, cache) = (path("drivers/rclone.sock"), path("volumes"), path("cache"));
    until("the server", || std::net::TcpStream::connect(&address).is_ok()).await?;
    let drivers = Some(folder.path().join("drivers"));
    let options = DaemonOptions { drivers, ..DaemonOptions::default() };
    let daemon = own_daemon(&folder.path().join("daemon"), &options)?;
    // What the plugin mounts has to be seen by the daemon, which has mounts of its own here.
    let namespace = format!("--mount=/proc/{}/ns/mnt", daemon.pid());
    let program = rclone.display().to_string();
    let plugin = [
        &namespace,
        &program,
        "serve",
        "docker",
        "--socket-addr",
        &socket,
        "--base-dir",
        &volumes,
        "--cache-dir",
        &cache,
    ];
    let _plugin = start(Path::new("nsenter"), &plugin)?;
    until("the plugin", || Path::new(&socket).exists()).await?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let volume = json!({"type": "docker_volume", "driver": "rclone"});
    let manifest: Manifest = bastide::model::lax::read(&json!({"entries": {"data": {
        "type": "s3_mount", "bucket": "data", "s3_provider": "Other", "read_only": false,
        "endpoint_url": format!("http://{address}"), "access_key_id": ID,
        "secret_access_key": KEY, "mount_strategy": volume,
    }}}))?;
    let session = client.create(&manifest, CreateOptions::default()).await?;
    assert_eq!(say(&session, "cat data/seed; echo new > data/made").await?, "from the store");
    let inside = say(
        &session,
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c '[o]f-the-trial'; true",
    );
    assert_eq!(inside.await?, "0\n", "the key stays outside");
    assert!(session.mounts().await?[0].exposed.is_empty());
    session.delete().await?;
    assert!(Path::new(&path("store/data/made")).exists(), "what was written is in the store");
    assert_eq!(setting.docker(&["volume", "ls", "--quiet", "--filter", "driver=rclone"])?, "");
    // The plugin takes the options of a bucket of Google's without HMAC keys.
    let native: Manifest = bastide::model::lax::read(&json!({"entries": {"data": {
        "type": "gcs_mount", "bucket": "data", "access_token": "token-of-the-trial",
        "mount_strategy": {"type": "docker_volume", "driver": "rclone", "driver_options":
            {"gcs-endpoint": format!("http://{address}/storage/v1/")}},
    }}}))?;
    let refused = client.create(&native, CreateOptions::default()).await;
    match refused {
        Ok(session) => session.delete().await?,
        Err(error) => assert!(!error.to_string().contains("unsupported"), "{error}"),
    }
    Ok(())
}
