//! Sessions that live, stop and come back whole.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a trial fails by its message")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bastide::compat::ManifestPart;
use bastide::model::snapshot::SnapshotSpec;
use bastide::model::{Entry, Manifest, PosixPath};
use bastide::snapshot::RemoteSnapshotsBinding;
use bastide::{
    Client, Content, CreateOptions, Dependencies, Error, ErrorClass, ErrorKind, RemoteSnapshots,
    Result, ResumeOptions, Rung, Session, SessionStatus, SnapshotChoice,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::suite::{Context, Outcome, Trial, TrialError, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    starts_stops_and_shuts_down_in_the_order_of_the_reference,
    closes_once_and_lets_go_whatever_failed,
    saves_nothing_after_a_hook_failed,
    t6_keeps_every_write_over_twenty_cycles,
    brings_everything_back_from_a_tar_file,
    touches_nothing_for_a_damaged_tar_file,
    keeps_a_workspace_with_a_client_of_the_programs,
    t23_a_stored_state_grants_nothing,
    makes_ephemeral_entries_anew_and_keeps_the_rest,
    makes_users_and_groups_of_the_manifest,
    gives_a_model_its_tools,
];

fn snapshots() -> std::result::Result<(tempfile::TempDir, SnapshotChoice), TrialError> {
    let folder = tempfile::tempdir()?;
    let base_path = PosixPath::new(&folder.path().join("snaps").to_string_lossy());
    Ok((folder, SnapshotChoice::Spec(SnapshotSpec::Local { base_path })))
}

fn options(snapshot: SnapshotChoice) -> CreateOptions {
    CreateOptions::default().detached().snapshot(snapshot)
}

fn file(name: &str, content: &str) -> Manifest {
    let mut manifest = Manifest::default();
    manifest.entries.insert(name.to_owned(), Entry::file(content));
    manifest
}

async fn state(client: &Client, session: &Session) -> Result<SessionStatus> {
    Ok(client.inspect(session.id()).await?.status)
}

async fn starts_stops_and_shuts_down_in_the_order_of_the_reference(context: Context) -> Outcome {
    let client = context.client();
    let (folder, snapshot) = snapshots()?;
    let session = client.create_unstarted(&file("a", "1"), options(snapshot)).await?;
    assert!(!session.compat().running().await, "it has not started");
    assert_eq!(session.state_json()?["workspace_root_ready"], false);
    assert_eq!(say(&session, "ls -A").await?, "");
    session.start().await?;
    assert!(session.compat().running().await);
    assert_eq!(session.state_json()?["workspace_root_ready"], true);
    assert_eq!(say(&session, "cat a").await?, "1");
    assert!(!folder.path().join("snaps").exists());
    say(&session, "echo 2 > a").await?;
    session.start().await?;
    assert_eq!(say(&session, "cat a").await?, "2\n", "starting again loses nothing");
    session.save().await?;
    assert!(session.compat().running().await, "stopping saves, and ends nothing");
    assert!(session.state_json()?["snapshot_fingerprint"].is_string());
    session.shutdown().await?;
    session.shutdown().await?;
    assert!(!session.compat().running().await);
    assert_eq!(state(&client, &session).await?, SessionStatus::Stopped);
    let refused = session.start().await.unwrap_err();
    assert_eq!(refused.class(), Some(ErrorClass::WorkspaceStartError));
    Ok(session.delete().await?)
}

async fn closes_once_and_lets_go_whatever_failed(context: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("file"), "")?;
    // A folder that cannot be made.
    let base_path = PosixPath::new(&folder.path().join("file/snaps").to_string_lossy());
    let closed = Arc::new(AtomicUsize::new(0));
    let dependencies = Dependencies::default();
    let counted = Arc::clone(&closed);
    dependencies.bind_factory("thing", move |_| {
        let counted = Arc::clone(&counted);
        Box::pin(async move {
            Ok(bastide::Dependency::closed_by(Arc::new(1_u8), move |_| async move {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }))
        })
    })?;
    let client = context.client().with_dependencies(dependencies);
    let spec = SnapshotChoice::Spec(SnapshotSpec::Local { base_path });
    let session = client.create(&Manifest::default(), options(spec)).await?;
    assert_eq!(*session.dependencies().require::<u8>("thing", "a trial").await?, 1);
    let failed = session.close().await.unwrap_err();
    let class = match context.backend.has_own_system() {
        true => ErrorClass::SnapshotPersistError,
        false => ErrorClass::WorkspaceStopError,
    };
    assert_eq!(failed.class(), Some(class));
    assert!(failed.hint().is_some_and(|hint| hint.contains("shut down all the same")));
    assert_eq!(state(&client, &session).await?, SessionStatus::Stopped);
    assert_eq!(closed.load(Ordering::SeqCst), 1);
    session.close().await?;
    assert_eq!(closed.load(Ordering::SeqCst), 1, "once");
    Ok(session.delete().await?)
}

async fn saves_nothing_after_a_hook_failed(context: Context) -> Outcome {
    let client = context.client();
    for fails in [false, true] {
        let (folder, snapshot) = snapshots()?;
        let session = client.create(&file("a", "1"), options(snapshot)).await?;
        let order = Arc::new(Mutex::new(Vec::new()));
        for number in [1, 2] {
            let order = Arc::clone(&order);
            session.compat().register_pre_stop_hook(move || {
                order.lock().unwrap().push(number);
                Box::pin(async move {
                    match fails && number == 1 {
                        true => Err(Error::new(ErrorKind::Io, "the hook failed")),
                        false => Ok(()),
                    }
                })
            });
        }
        let (one, other) = tokio::join!(session.close(), session.close());
        assert_eq!(one.and(other).is_err(), fails);
        assert_eq!(*order.lock().unwrap(), [1, 2], "all of them, once");
        assert_eq!(folder.path().join("snaps").exists(), !fails);
        assert_eq!(state(&client, &session).await?, SessionStatus::Stopped);
        session.delete().await?;
    }
    Ok(())
}

async fn t6_keeps_every_write_over_twenty_cycles(context: Context) -> Outcome {
    let client = context.client();
    let (_folder, snapshot) = snapshots()?;
    let manifest = file("a", "1");
    let mut session = client.create(&manifest, options(snapshot.clone())).await?;
    let id = session.id().clone();
    let sum = "find . -type f | sort | xargs cat | cksum; find . | sort";
    for cycle in 0..20 {
        let line = format!(
            "mkdir -p d{cycle} && head -c 70000 /dev/urandom > d{cycle}/f && echo {cycle} >> a"
        );
        say(&session, &line).await?;
        let before = say(&session, sum).await?;
        client.stop(&id).await?;
        let stored = session.state_json()?;
        session = match cycle % 5 {
            // Nothing is left here but the snapshot.
            4 => {
                client.delete(&id).await?;
                let resume = ResumeOptions::default()
                    .manifest(manifest.clone())
                    .create(options(snapshot.clone()));
                client.resume_state(stored, resume).await?
            }
            _ => client.resume(&id).await?,
        };
        assert_eq!(session.id(), &id);
        assert_eq!(say(&session, sum).await?, before, "cycle {cycle}");
    }
    Ok(session.delete().await?)
}

/// A bit of everything that needs nothing but a shell.
const EVERYTHING: &str = r#"
mkdir -p empty deep/er 'odd
name' && echo content > plain && printf '' > nothing
printf 'x' > "$(printf 'n\377me')"
ln -s /absolute/target absolute && ln -s missing dangling && ln -s plain relative
ln plain second && ln plain deep/third
mkfifo pipe && chmod 640 pipe
echo run > script && chmod 755 script && echo s > special && { chmod 4711 special 2>/dev/null || chmod 1711 special; }
dd if=/dev/zero of=sparse bs=1 count=1 seek=3000000 2>/dev/null
dd if=/dev/urandom of=large bs=65536 count=10 2>/dev/null
chmod 1777 empty && touch -d '2001-02-03 04:05:06' plain && touch -d '1980-01-01 00:00:00' deep
"#;

/// Everything there is to see of a tree. Where each session has one id of its own, all of it belongs
/// to that one.
fn list_tree(session: &Session) -> String {
    let owner = if session.receipt().rung == Rung::Landlock { "" } else { "%u %g" };
    format!(
        "(find . ! -type d -exec stat -c '%n %F %a {owner} %s %Y %h' {{}} + | sort; \
         find . $([ -O . ] || echo -mindepth 1) -type d -exec stat -c '%n %F %a {owner} %Y' {{}} + | sort; \
         find . -type l -exec readlink {{}} \\; | sort; \
         find . -type f -exec cksum {{}} + | sort) | LC_ALL=C tr '\\377' '?'"
    )
}

async fn brings_everything_back_from_a_tar_file(context: Context) -> Outcome {
    let client = context.client();
    let (_folder, snapshot) = snapshots()?;
    let session = client.create(&Manifest::default(), options(snapshot.clone())).await?;
    let id = session.id().clone();
    say(&session, EVERYTHING).await?;
    session.save().await?;
    say(&session, "echo later > plain && rm -r deep && touch new").await?;
    session.close().await?;
    client.delete(&id).await?;
    let resume = |trusted: Option<Manifest>| {
        let mut resume = ResumeOptions::default();
        resume.manifest = trusted;
        resume.create = options(snapshot.clone());
        resume
    };
    let stored = session.state_json()?;
    let refused = client.resume_state(stored.clone(), resume(None)).await.map(drop).unwrap_err();
    assert_eq!(refused.class(), Some(ErrorClass::ValueError), "nobody vouches for it");
    let again = client.resume_state(stored, resume(Some(Manifest::default()))).await?;
    // What was saved last was saved by closing.
    assert_eq!(
        say(&again, "cat plain; ls -d new; ls deep 2>/dev/null || echo gone").await?,
        "later\nnew\ngone\n"
    );
    say(&again, "rm -rf ./* && true").await?;
    say(&again, EVERYTHING).await?;
    let filled = say(&again, &list_tree(&again)).await?;
    client.stop(&id).await?;
    let stored = again.state_json()?;
    client.delete(&id).await?;
    let last = client.resume_state(stored, resume(Some(Manifest::default()))).await?;
    // In an archive each name of a file is a file, and pipes are not kept.
    let filled: String = filled
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("./pipe "))
        .map(|line| line.replace(" 981173106 3\n", " 981173106 1\n"))
        .collect();
    assert_eq!(say(&last, &list_tree(&last)).await?, filled);
    assert_eq!(
        say(&last, "cat second deep/third; du -k sparse | cut -f1").await?.lines().next(),
        Some("content")
    );
    Ok(last.delete().await?)
}

async fn touches_nothing_for_a_damaged_tar_file(context: Context) -> Outcome {
    if !context.backend.keeps_files() {
        return Err(skip("what was not saved goes with its machine here"));
    }
    let client = context.client();
    let (folder, snapshot) = snapshots()?;
    let session = client.create(&file("a", "1"), options(snapshot)).await?;
    let id = session.id().clone();
    say(&session, "head -c 300000 /dev/urandom > big").await?;
    client.stop(&id).await?;
    let snapshot =
        std::fs::read_dir(folder.path().join("snaps"))?.next().ok_or("no snapshot")??.path();
    let whole = std::fs::read(&snapshot)?;
    std::fs::write(&snapshot, &whole[..whole.len() / 2])?;
    let live = client.resume(&id).await?;
    say(&live, "echo precious > unsaved").await?;
    live.shutdown().await?;
    let options = ResumeOptions::default().discard_changes();
    let failed = client.resume_with(&id, options.clone()).await.map(drop).unwrap_err();
    assert_eq!(failed.class(), Some(ErrorClass::WorkspaceArchiveWriteError), "{failed}");
    let live = client.resume(&id).await?;
    assert_eq!(say(&live, "cat unsaved a").await?, "precious\n1", "nothing was cleared for it");
    live.shutdown().await?;
    std::fs::write(&snapshot, &whole)?;
    let back = client.resume_with(&id, options).await?;
    assert_eq!(say(&back, "ls").await?, "a\nbig\n", "and what was saved is there when asked for");
    Ok(back.delete().await?)
}

/// Archives in memory.
#[derive(Default)]
struct MemorySnapshots(Mutex<std::collections::HashMap<String, Vec<u8>>>);

#[async_trait]
impl RemoteSnapshots for MemorySnapshots {
    async fn upload(&self, id: &str, archive: Content<'static>) -> Result<()> {
        let mut all = Vec::new();
        match archive {
            Content::Bytes(bytes) => all.extend(bytes),
            Content::Stream(mut stream) => {
                let read = stream.read_to_end(&mut all).await;
                read.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
            }
        }
        self.0.lock().unwrap().insert(id.to_owned(), all);
        Ok(())
    }

    async fn download(&self, id: &str) -> Result<Content<'static>> {
        let found = self.0.lock().unwrap().get(id).cloned();
        Ok(found.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such archive"))?.into())
    }

    async fn exists(&self, id: &str) -> Result<bool> {
        Ok(self.0.lock().unwrap().contains_key(id))
    }
}

async fn keeps_a_workspace_with_a_client_of_the_programs(context: Context) -> Outcome {
    let key = "shelf".to_owned();
    let spec = SnapshotChoice::Spec(SnapshotSpec::Remote { client_dependency_key: key });
    let unbound = context.client().create(&Manifest::default(), options(spec.clone())).await;
    let class = unbound.map(drop).unwrap_err();
    assert_eq!(class.class(), Some(ErrorClass::DependenciesMissingDependencyError));
    let shelf: RemoteSnapshotsBinding = Arc::new(MemorySnapshots::default());
    let dependencies = Dependencies::default();
    dependencies.bind_value("shelf", Arc::new(shelf))?;
    let client = context.client().with_dependencies(dependencies);
    let session = client.create(&file("a", "1"), options(spec.clone())).await?;
    say(&session, "echo 2 > a; ln -s /etc e").await?;
    session.close().await?;
    let (id, stored) = (session.id().clone(), session.state_json()?);
    client.delete(&id).await?;
    let resume = ResumeOptions::default().manifest(file("a", "1")).create(options(spec));
    let back = client.resume_state(stored, resume).await?;
    assert_eq!(say(&back, "cat a; readlink e").await?, "2\n/etc\n");
    Ok(back.delete().await?)
}

/// What an attacker adds to a stored state, and how.
type Edit = (&'static str, fn(&mut Value, &Value, &str));

async fn t23_a_stored_state_grants_nothing(context: Context) -> Outcome {
    let client = context.client();
    let (folder, snapshot) = snapshots()?;
    let manifest = file("a", "1");
    let session = client.create(&manifest, options(snapshot.clone())).await?;
    let id = session.id().clone();
    session.close().await?;
    let stored = session.state_json()?;
    let mount = json!({"type": "s3_mount", "bucket": "b",
        "mount_strategy": {"type": "in_container", "pattern": {"type": "rclone"}}});
    let edits: &[Edit] = &[
        ("a path of the host", |state, _, _| {
            state["manifest"]["extra_path_grants"] = json!([{"path": "/srv", "read_only": false}]);
        }),
        ("a path of the host behind another", |state, _, _| {
            state["manifest"]["extra_path_grants"] =
                json!([{"path": "/mnt/x", "host_path": "/srv"}]);
        }),
        ("a grant that says it was there", |state, _, _| {
            state["__openai_agents_redacted_host_path_grant_paths"] = json!(["/srv"]);
        }),
        ("a workspace", |state, _, _| state["manifest"]["root"] = "/srv".into()),
        ("a mount", |state, mount, _| state["manifest"]["entries"]["m"] = mount.clone()),
        ("a file of the host", |state, _, _| {
            state["manifest"]["entries"]["k"] =
                json!({"type": "local_file", "src": "/etc/hostname"});
        }),
        ("a repository", |state, _, _| {
            state["manifest"]["entries"]["r"] =
                json!({"type": "git_repo", "repo": "a/b", "ref": "main"});
        }),
        ("another snapshot", |state, _, elsewhere| {
            state["snapshot"]["base_path"] = elsewhere.into();
        }),
    ];
    let elsewhere = folder.path().join("elsewhere").to_string_lossy().into_owned();
    let resume =
        || ResumeOptions::default().manifest(manifest.clone()).create(options(snapshot.clone()));
    // First where the session is on record, then where only its snapshot is left.
    for is_left in [true, false] {
        if !is_left {
            client.delete(&id).await?;
        }
        for (what, edit) in edits {
            let mut tampered = stored.clone();
            edit(&mut tampered, &mount, &elsewhere);
            assert_ne!(tampered, stored, "{what}");
            let done = client.resume_state(tampered, resume()).await;
            if let Ok(session) = &done {
                client.delete(session.id()).await?;
            }
            let refused = done.map(drop).expect_err(what);
            let is_refused = matches!(
                refused.class(),
                Some(ErrorClass::ValueError | ErrorClass::MountConfigError)
            );
            assert!(is_refused, "{what}: {refused:?}");
        }
    }
    // What it says about a machine is not even looked at.
    let mut tampered = stored.clone();
    tampered["machine"] = json!({"dir": "/srv", "warden": 1, "image": "evil"});
    tampered["receipt"] = Value::Null;
    let back = client.resume_state(tampered, resume()).await?;
    assert_eq!(say(&back, "cat a; ls /srv 2>/dev/null || true").await?, "1");
    assert_eq!(back.receipt().network.as_str(), "none");
    Ok(back.delete().await?)
}

async fn makes_ephemeral_entries_anew_and_keeps_the_rest(context: Context) -> Outcome {
    let client = context.client();
    let (_folder, snapshot) = snapshots()?;
    let mut manifest = file("keep", "k");
    manifest.entries.insert("fresh".to_owned(), Entry::file("f").ephemeral());
    let session = client.create(&manifest, options(snapshot)).await?;
    let id = session.id().clone();
    say(&session, "echo x > keep; echo x > fresh; mkdir skipped && echo s > skipped/s").await?;
    session.compat().register_persist_workspace_skip_path("skipped")?;
    let archive = session.compat().persist_workspace().await?;
    let mut names = Vec::new();
    let mut reader = bastide::archive::tar::TarReader::open(archive.into_file()?)?;
    while let Some(member) = reader.next_member()? {
        names.push(String::from_utf8(member.name)?);
    }
    names.sort();
    assert_eq!(names, [".", "./keep"], "what is ephemeral or skipped is not saved");
    let done = session.compat().apply_manifest(ManifestPart::Ephemeral).await?;
    assert_eq!(done.files, []);
    assert_eq!(say(&session, "cat keep fresh").await?, "x\nf");
    client.stop(&id).await?;
    let back = client.resume(&id).await?;
    assert_eq!(say(&back, "cat keep fresh skipped/s").await?, "x\nfs\n");
    Ok(back.delete().await?)
}

async fn makes_users_and_groups_of_the_manifest(context: Context) -> Outcome {
    let manifest: Manifest = bastide::model::lax::read(&json!({
        "users": [{"name": "amy"}],
        "groups": [{"name": "team", "users": [{"name": "zoe"}, {"name": "amy"}]}],
        "entries": {"shared": {"type": "file", "content": "s", "group": {"name": "team", "users": []},
            "permissions": {"owner": 6, "group": 4, "other": 0}}},
    }))?;
    let session = match context.session_with(&manifest).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            assert!(error.to_string().contains("cannot make users and groups"), "{error}");
            return Err(crate::suite::skip("this machine has no ids for other users"));
        }
        session => session?,
    };
    assert_eq!(say(&session, "stat -c '%G %a' shared").await?, "team 640\n");
    session.compat().provision_manifest_accounts().await?;
    let as_amy =
        bastide::Command::shell("id -un; id -Gn | tr ' ' '\\n' | sort; cat shared").user("amy");
    let output = session.exec(as_amy).await?;
    assert_eq!(String::from_utf8(output.stdout.to_vec())?, "amy\namy\nteam\ns");
    assert_eq!(
        say(&session, "grep -c '^amy:' /etc/passwd").await?,
        "1\n",
        "twice is as good as once"
    );
    session.delete().await?;
    for name in ["", "a:b", "a b", "a\nb", "-x"] {
        let manifest: Manifest = bastide::model::lax::read(&json!({"users": [{"name": name}]}))?;
        let refused = context.session_with(&manifest).await.map(drop).unwrap_err();
        assert_eq!(refused.class(), Some(ErrorClass::ExecNonZeroError), "{name:?}: {refused}");
    }
    Ok(())
}

async fn gives_a_model_its_tools(context: Context) -> Outcome {
    let session = context.session_with(&file("a.txt", "one\ntwo\n")).await?;
    let tools = bastide::Tools::new(&session);
    let text = tools.exec_command(r#"{"cmd": "cat a.txt; exit 3"}"#).await?;
    assert!(text.contains("Process exited with code 3\nOutput:\none\ntwo\n"), "{text}");
    let patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n one\n-two\n+2\n*** Add File: d/b.txt\n+new\n+\n*** End Patch\n";
    tools.apply_patch(patch).await?;
    assert_eq!(say(&session, "cat a.txt d/b.txt").await?, "one\n2\nnew\n");
    let escape = "*** Begin Patch\n*** Add File: ../../etc/x\n+x\n*** End Patch\n";
    assert!(tools.apply_patch(escape).await.is_err());
    session.files().write("p.png", &b"\x89PNG\r\n\x1a\nrest"[..]).await?;
    let bastide::ToolAnswer::Image(url) = tools.view_image(r#"{"path": "p.png"}"#).await? else {
        return Err("no image".into());
    };
    assert!(url.starts_with("data:image/png;base64,"), "{url}");
    let text = tools.exec_command(r#"{"cmd": "cat", "tty": true, "yield_time_ms": 250}"#).await?;
    let id = text.split("session ID ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let id = id.ok_or_else(|| format!("no session in {text}"))?;
    let raw = json!({"session_id": id.parse::<i64>()?, "chars": "hey\n", "yield_time_ms": 1000});
    assert!(
        tools.call("write_stdin", &raw.to_string()).await?.to_json().to_string().contains("hey")
    );
    assert_eq!(tools.call("nothing", "{}").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bastide::Tools::definitions().len(), 4);
    session.compat().pty_terminate_all().await;
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("pdf/scripts"))?;
    std::fs::write(folder.path().join("pdf/SKILL.md"), "---\ndescription: Reads PDF\n---\n")?;
    std::fs::write(folder.path().join("pdf/scripts/run"), "x")?;
    let skills = bastide::Skills::new(bastide::SkillSource::Lazy(folder.path().to_owned()))?;
    let reported = skills.instructions(&session).await?.unwrap_or_default();
    assert!(reported.contains("- pdf: Reads PDF (file: .agents/pdf/SKILL.md)"), "{reported}");
    for status in ["loaded", "already_loaded"] {
        assert_eq!(skills.load_skill(&session, "pdf").await?["status"], status);
    }
    assert_eq!(say(&session, "cat .agents/pdf/scripts/run").await?, "x");
    assert!(skills.load_skill(&session, "none").await.is_err());
    Ok(session.delete().await?)
}
