//! Whether a grant stays what the caller granted, whatever commands do to the folders around it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bastide::archive::tar::TarReader;
use bastide::model::Manifest;
use bastide::{CreateOptions, Error, ErrorKind, Session};

use super::host::{grant, host, manifest, work};
use crate::suite::{Context, Outcome, Trial, TrialError, block_sweeps, say, sh};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    follows_no_link_that_a_command_planted_to_a_grant,
    follows_no_link_that_a_command_planted_to_a_workspace,
    resumes_with_no_other_file_than_was_granted,
    keeps_a_grant_in_its_place_whatever_is_renamed_around_it,
    refuses_nested_sandboxes_over_folders_of_the_host,
];

/// What a planted link leads to, outside of everything that was granted.
fn secret(top: &Path) -> Result<(), TrialError> {
    fs::create_dir(top.join("secret"))?;
    Ok(fs::write(top.join("secret/key"), "bastide-canary")?)
}

/// A session that can be stopped and resumed.
async fn lasting(context: &Context, manifest: &Manifest) -> bastide::Result<Session> {
    context.client().create(manifest, CreateOptions::default().detached()).await
}

/// The failure, which names the link and what to do.
fn refused(made: bastide::Result<Session>, name: &str) -> Result<Error, TrialError> {
    let error = made.err().ok_or("the link was followed")?;
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.message().contains(name) && error.message().contains("link"), "{error}");
    assert!(error.hint().is_some(), "{error}");
    Ok(error)
}

async fn follows_no_link_that_a_command_planted_to_a_grant(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let _held = block_sweeps().await;
    let (_folder, top) = host()?;
    secret(&top)?;
    let root = work(&context, &top, "ws")?;
    let sub = work(&context, &root, "sub")?;
    // The host's own paths are the only ones on the rung `landlock`; elsewhere a mount lies on its own path.
    let place = if context.has_namespaces()? { top.join("granted") } else { sub.clone() };
    let manifest = manifest(&root, vec![grant(&place, Some(&sub), false)?])?;
    let session = lasting(&context, &manifest).await?;
    say(&session, "mv sub old && ln -s ../secret sub").await?;
    session.shutdown().await?;
    let resumed = context.client().resume(session.id()).await;
    let again = context.session_with(&manifest).await;
    let mut failures = Vec::new();
    for made in [resumed, again] {
        let opened = match made {
            Ok(opened) => opened,
            Err(error) => {
                failures.push(error);
                continue;
            }
        };
        let line = format!("cat {0}/key; echo x > {0}/planted", place.display());
        opened.exec(sh(&line)).await?;
        opened.shutdown().await?;
    }
    assert!(!top.join("secret/planted").exists(), "a file was planted outside");
    assert_eq!(failures.len(), 2, "the link was followed");
    for error in failures {
        refused(Err(error), "sub")?;
    }
    Ok(session.delete().await?)
}

/// The workspace itself lies in a folder that is granted for writing under another name.
async fn follows_no_link_that_a_command_planted_to_a_workspace(context: Context) -> Outcome {
    if !context.backend.has_host_files() || !context.has_namespaces()? {
        return Ok(());
    }
    let _held = block_sweeps().await;
    let (_folder, top) = host()?;
    secret(&top)?;
    let around = work(&context, &top, "around")?;
    let deep = work(&context, &around, "deep")?;
    let root = work(&context, &deep, "ws")?;
    let place = top.join("granted");
    let manifest = manifest(&root, vec![grant(&place, Some(&around), false)?])?;
    let session = lasting(&context, &manifest).await?;
    let line = format!(
        "cd {} && mv deep old && mkdir deep && ln -s ../../secret deep/ws",
        place.display()
    );
    say(&session, &line).await?;
    session.shutdown().await?;
    refused(context.client().resume(session.id()).await, "ws")?;
    refused(context.session_with(&manifest).await, "ws")?;
    assert_eq!(fs::read_dir(top.join("secret"))?.count(), 1, "nothing was laid out there");
    Ok(session.delete().await?)
}

/// Links of the caller's own are followed once, and what they led to then is meant from then on.
async fn resumes_with_no_other_file_than_was_granted(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let _held = block_sweeps().await;
    let (_folder, top) = host()?;
    for name in ["one", "two"] {
        let folder = work(&context, &top, name)?;
        fs::write(folder.join("file"), name)?;
    }
    let link = top.join("link");
    symlink("one", &link)?;
    let extra_path_grants = vec![grant(&link, None, true)?];
    let manifest = Manifest { extra_path_grants, ..Manifest::default() };
    let session = lasting(&context, &manifest).await?;
    let line = format!("cat {}/file", link.display());
    assert_eq!(say(&session, &line).await?, "one");
    session.shutdown().await?;
    fs::remove_file(&link)?;
    symlink("two", &link)?;
    let error = context.client().resume(session.id()).await.err().ok_or("it was resumed")?;
    let place = link.display().to_string();
    assert!(error.message().contains(&place) && error.hint().is_some(), "{error}");
    // Another one of the same name is another one, too.
    fs::remove_file(&link)?;
    symlink("one", &link)?;
    fs::rename(top.join("one"), top.join("kept"))?;
    fs::create_dir(top.join("one"))?;
    let error = context.client().resume(session.id()).await.err().ok_or("it was resumed")?;
    assert!(error.message().contains(&place) && error.hint().is_some(), "{error}");
    fs::remove_dir(top.join("one"))?;
    fs::rename(top.join("kept"), top.join("one"))?;
    let session = context.client().resume(session.id()).await?;
    assert_eq!(say(&session, &line).await?, "one");
    Ok(session.delete().await?)
}

async fn keeps_a_grant_in_its_place_whatever_is_renamed_around_it(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_folder, top) = host()?;
    let root = work(&context, &top, "ws")?;
    let file = root.join("a/b/config");
    fs::create_dir_all(root.join("a/b"))?;
    fs::write(&file, "the caller's")?;
    fs::write(root.join("a/other"), "also")?;
    let grants = vec![grant(&file, None, true)?];
    match context.session_with(&manifest(&root, grants)?).await {
        Ok(session) => {
            for around in ["a", "a/b"] {
                let line =
                    format!("mv {around} away && mkdir -p a/b && echo evil > a/b/config; true");
                say(&session, &line).await?;
                assert_eq!(fs::read_to_string(&file)?, "the caller's", "{around} was renamed");
            }
            // What lies beside it is as it was: there to be read and, where its owner may, written.
            assert_eq!(say(&session, "cat a/other a/b/config").await?, "alsothe caller's");
            // And it is part of the workspace.
            let archive = session.compat().persist_workspace().await?;
            let mut names = Vec::new();
            let mut reader = TarReader::open(archive.into_file()?)?;
            while let Some(member) = reader.next_member()? {
                names.push(String::from_utf8(member.name)?);
            }
            assert!(names.iter().any(|name| name == "./a/other"), "not saved: {names:?}");
            session.delete().await?;
        }
        // A rung that cannot hold it says so.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
    }
    assert_eq!(fs::read_to_string(&file)?, "the caller's");
    Ok(())
}

/// A command that can mount has the kernel itself write modes, capabilities and devices: an overlay copies them up.
async fn refuses_nested_sandboxes_over_folders_of_the_host(context: Context) -> Outcome {
    if !context.backend.has_host_files() || !context.has_namespaces()? {
        return Ok(());
    }
    let (_folder, top) = host()?;
    let granted = work(&context, &top, "granted")?;
    let nested = || CreateOptions::default().nested_sandbox();
    let missing = top.join("missing");
    let extra_path_grants = vec![grant(&granted, None, false)?];
    let mut with_grant = Manifest { extra_path_grants, ..Manifest::default() };
    for manifest in [&manifest(&missing, Vec::new())?, &with_grant] {
        let made = context.client().create(manifest, nested()).await;
        let error = made.err().ok_or("it was made")?;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("sandboxes inside") && error.hint().is_some(), "{error}");
    }
    assert!(!missing.exists(), "a folder was made for a session that was refused");
    with_grant.extra_path_grants = vec![grant(&granted, None, true)?];
    let session = context.client().create(&with_grant, nested()).await?;
    assert_eq!(say(&session, "unshare --user --map-root-user echo nested").await?, "nested\n");
    Ok(session.delete().await?)
}
