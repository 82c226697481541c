//! What programs that were written for the reference meet where a session ends, comes back, or refuses.

use std::fs;
use std::io::Cursor;

use bastide::archive::tar::{TarKind, TarMember, TarWriter};
use bastide::compat::PtyLimits;
use bastide::model::snapshot::SnapshotSpec;
use bastide::model::{Entry, Manifest, PosixPath};
use bastide::{
    Client, Command, Condition, CreateOptions, ErrorClass, ErrorKind, ExtractOptions,
    ResumeOptions, SnapshotChoice, Tools,
};

use crate::suite::{Context, Outcome, Trial, TrialError, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    writes_to_no_file_that_does_not_allow_it,
    outlives_the_handle_it_was_resumed_beside,
    comes_back_in_a_folder_that_is_as_it_was_saved,
    says_that_the_folder_it_worked_in_is_gone,
    has_a_class_for_every_call_after_its_end,
    has_a_class_for_a_command_without_a_word,
    takes_the_permissions_of_an_archive_where_it_has_a_system_of_its_own,
    says_why_it_cannot_be_saved,
    knows_an_empty_name_for_its_own_user,
];

fn class<T>(result: bastide::Result<T>) -> Result<&'static str, TrialError> {
    let error = result.err().ok_or("it should have failed")?;
    error.class().map(ErrorClass::name).ok_or_else(|| format!("no class: {error:?}").into())
}

/// A tar of members with these permissions; a folder ends in a slash.
fn tar(members: &[(&str, u32, &str)]) -> Result<Vec<u8>, TrialError> {
    let mut bytes = Vec::new();
    let mut writer = TarWriter::new(&mut bytes);
    for (name, mode, content) in members {
        let kind = if name.ends_with('/') { TarKind::Dir } else { TarKind::File };
        let mut member = TarMember::new(name.as_bytes(), kind);
        (member.mode, member.size) = (*mode, content.len() as u64);
        writer.append(&member, &mut Cursor::new(content))?;
    }
    writer.finish()?;
    Ok(bytes)
}

/// The user of a session decides, as for a command: a file can be replaced by whoever may change its folder, and yet must not.
async fn writes_to_no_file_that_does_not_allow_it(context: Context) -> Outcome {
    let session = context.session().await?;
    let line = "printf old > ro; printf old > two; ln two too; chmod 400 ro two; \
                printf new >> ro 2>/dev/null; cat ro; printf old > plain";
    let may = say(&session, &format!("{line}; true")).await? == "oldnew";
    say(&session, "chmod 600 ro; printf old > ro; chmod 400 ro").await?;
    let archive = tar(&[("ro", 0o644, "new")])?;
    let patch = "*** Begin Patch\n*** Update File: ro\n@@\n-old\n+new\n*** End Patch";
    let (files, want) = (session.files(), "WorkspaceArchiveWriteError");
    let tools = Tools::new(&session);
    let written = [
        files.write("ro", "new").await,
        files.write("two", "new").await,
        files.extract("a.tar", archive, ExtractOptions::default()).await,
        tools.apply_patch(patch).await.map(drop),
    ];
    for (number, written) in written.into_iter().enumerate() {
        match may {
            true => drop(written),
            false => assert_eq!(class(written)?, want, "way {number}"),
        }
    }
    let want = if may { "newnewnew" } else { "oldoldold" };
    assert_eq!(say(&session, "cat ro two too").await?, want);
    files.write("plain", "new").await?;
    // Its folder may be changed, so it can be removed or renamed.
    files.mv("ro", "moved").await?;
    files.rm("two").await?;
    Ok(session.delete().await?)
}

async fn outlives_the_handle_it_was_resumed_beside(context: Context) -> Outcome {
    let client = context.client();
    let mut manifest = Manifest::default();
    manifest.entries.insert("a".to_owned(), Entry::file("1"));
    for tied in [false, true] {
        let first = client.create(&manifest, CreateOptions::default()).await?;
        let options = ResumeOptions::default().manifest(manifest.clone());
        let options = if tied { options.tied() } else { options };
        // Another client of the same program, as a program has that stored the state somewhere.
        let other = Client::new(std::sync::Arc::clone(&context.backend));
        let second = other.resume_state(first.state_json()?, options).await?;
        drop(first);
        assert_eq!(say(&second, "cat a").await?, "1", "tied: {tied}");
        assert!(second.is_running().await?);
        let info = client.inspect(second.id()).await?;
        assert_eq!(info.tied_to_owner, tied);
        second.delete().await?;
    }
    Ok(())
}

async fn comes_back_in_a_folder_that_is_as_it_was_saved(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let client = context.client();
    let top = tempfile::tempdir()?;
    let top = top.path().canonicalize()?;
    let root = top.join("project");
    fs::create_dir(&root)?;
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let manifest = Manifest { root: text(&root), ..Manifest::default() };
    let base_path = PosixPath::new(&text(&top.join("snaps")));
    let snapshot = SnapshotChoice::Spec(SnapshotSpec::Local { base_path });
    let options = || CreateOptions::default().snapshot(snapshot.clone());
    let session = client.create(&manifest, options()).await?;
    say(&session, "printf kept > a; mkdir d; ln -s a d/l").await?;
    session.close().await?;
    let stored = session.state_json()?;
    client.delete(session.id()).await?;
    let resume = || ResumeOptions::default().manifest(manifest.clone()).create(options());
    let back = client.resume_state(stored.clone(), resume()).await?;
    assert_eq!(say(&back, "cat a; readlink d/l").await?, "kepta\n");
    back.close().await?;
    client.delete(back.id()).await?;
    // What changed is the caller's: it is neither given up nor called what was saved.
    fs::write(root.join("a"), "changed")?;
    let refused = client.resume_state(stored, resume()).await.map(drop);
    let refused = refused.err().ok_or("it should have been refused")?;
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(fs::read_to_string(root.join("a"))?, "changed");
    Ok(())
}

async fn says_that_the_folder_it_worked_in_is_gone(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let top = tempfile::tempdir()?;
    // A backslash is a slash inside, and the folder is called otherwise there.
    for name in ["project", "its\\own"] {
        let root = top.path().canonicalize()?.join(name);
        fs::create_dir(&root)?;
        let root_text = root.to_string_lossy().into_owned();
        let manifest = Manifest { root: root_text, ..Manifest::default() };
        let session = match context.client().create(&manifest, CreateOptions::default()).await {
            // Not where a session has the host's own paths.
            Err(error) if error.condition() == Some(&Condition::GrantMoved) => {
                assert!(name.contains('\\'), "{error}");
                continue;
            }
            made => made?,
        };
        assert!(session.compat().exec_result(sh("true")).await?.ok());
        fs::remove_dir_all(&root)?;
        let refused = session.compat().exec_result(sh("true")).await;
        assert_eq!(class(refused)?, "WorkspaceRootNotFoundError");
        let refused = session.compat().pty_exec_start(sh("true"), PtyLimits::default()).await;
        assert_eq!(class(refused)?, "WorkspaceRootNotFoundError");
        session.delete().await?;
    }
    Ok(())
}

async fn has_a_class_for_every_call_after_its_end(context: Context) -> Outcome {
    let session = context.session().await?;
    session.files().write("a", "x").await?;
    session.shutdown().await?;
    let (files, want) = (session.files(), "ExecTransportError");
    let called = [
        ("read", files.read("a").await.map(drop)),
        ("write", files.write("b", "x").await),
        ("ls", files.ls(".").await.map(drop)),
        ("mkdir", files.mkdir("d").await),
        ("rm", files.rm("a").await),
        ("mv", files.mv("a", "b").await),
        ("same_file", files.same_file("a", "a").await.map(drop)),
        ("exec", session.compat().exec_result(sh("true")).await.map(drop)),
        ("persist", session.compat().persist_workspace().await.map(drop)),
        (
            "patch",
            Tools::new(&session)
                .apply_patch("*** Begin Patch\n*** Add File: n\n+x\n*** End Patch")
                .await
                .map(drop),
        ),
    ];
    for (call, result) in called {
        assert_eq!(class(result)?, want, "{call}");
    }
    assert_eq!(class(session.start().await)?, "WorkspaceStartError");
    // Nothing is kept of it, so nothing is missing.
    session.save().await?;
    Ok(session.delete().await?)
}

async fn has_a_class_for_a_command_without_a_word(context: Context) -> Outcome {
    let session = context.session().await?;
    let none = Command::new(Vec::<Vec<u8>>::new());
    let run = session.compat().exec_result(none.clone()).await;
    assert_eq!(class(run)?, "ExecTransportError");
    let started = session.compat().pty_exec_start(none, PtyLimits::default()).await;
    assert_eq!(class(started)?, "ExecTransportError");
    Ok(session.delete().await?)
}

async fn takes_the_permissions_of_an_archive_where_it_has_a_system_of_its_own(
    context: Context,
) -> Outcome {
    let session = context.session().await?;
    let archive = tar(&[
        ("d/", 0o711, ""),
        ("d/f", 0o640, "x"),
        ("shut/", 0o500, ""),
        ("shut/r", 0o444, "y"),
    ])?;
    session.compat().hydrate_workspace(archive).await?;
    let modes = say(&session, "stat -c %a d d/f shut shut/r").await?;
    match context.backend.has_own_system() {
        true => assert_eq!(modes, "711\n640\n500\n444\n"),
        // As the reference's client for this machine has them.
        false => assert_eq!(modes, "755\n640\n755\n644\n"),
    }
    Ok(session.delete().await?)
}

async fn says_why_it_cannot_be_saved(context: Context) -> Outcome {
    let top = tempfile::tempdir()?;
    let place = top.path().join("snaps");
    // A file where a folder has to be.
    fs::write(&place, "")?;
    let base_path = PosixPath::new(&place.to_string_lossy());
    let snapshot = SnapshotChoice::Spec(SnapshotSpec::Local { base_path });
    let options = CreateOptions::default().snapshot(snapshot);
    let session = context.client().create(&Manifest::default(), options).await?;
    let want = match context.backend.has_own_system() {
        true => "SnapshotPersistError",
        false => "WorkspaceStopError",
    };
    assert_eq!(class(session.save().await)?, want);
    Ok(session.delete().await?)
}

async fn knows_an_empty_name_for_its_own_user(context: Context) -> Outcome {
    let session = context.session().await?;
    let own = say(&session, "id -u").await?;
    let output = session.exec(sh("id -u").user("")).await?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), own);
    session.files_as("").write("a", "x").await?;
    assert_eq!(session.files_as("").read("a").await?, "x");
    Ok(session.delete().await?)
}
