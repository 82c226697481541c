//! What a session leaves in folders of the host.

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use bastide::archive::tar::{TarKind, TarMember, TarWriter};
use bastide::model::{Manifest, PathGrant};
use bastide::{ErrorKind, ExtractOptions, Rung, Session, WriteOptions};

use super::attempt;
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh, skip, with_probe};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    leaves_nothing_on_the_host_that_gives_more,
    leaves_nothing_in_a_granted_folder_that_gives_more,
    leaves_nothing_that_gives_more_by_files,
    leaves_only_files_of_the_folders_owner,
    keeps_set_id_modes_in_storage_of_its_own,
    makes_no_program_of_the_caller_set_id,
    never_touches_what_a_grant_is_mounted_on,
    leaves_no_mount_points_in_the_callers_folder,
    refuses_what_is_granted_for_reading_and_could_be_written,
];

/// Somebody who is not the caller, where the caller may make folders of others.
const SOMEBODY: (u32, u32) = (4711, 4712);

/// A folder of the host, links followed, and whoever works in it can get there.
pub(super) fn host() -> Result<(tempfile::TempDir, PathBuf), TrialError> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let path = folder.path().canonicalize()?;
    Ok((folder, path))
}

/// A folder in it to work in. On the rung `landlock` commands of root are not root, but the folder's owner.
pub(super) fn work(context: &Context, top: &Path, name: &str) -> Result<PathBuf, TrialError> {
    let path = top.join(name);
    fs::create_dir(&path)?;
    if rustix::process::geteuid().is_root() && !context.has_namespaces()? {
        chown(&path, Some(SOMEBODY.0), Some(SOMEBODY.1))?;
    }
    Ok(path)
}

impl Context {
    /// Whether sessions of this backend stand on namespaces.
    pub(super) fn has_namespaces(&self) -> Result<bool, TrialError> {
        let handle = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            handle.block_on(async {
                let session = self.session().await?;
                let rung = session.receipt().rung;
                session.delete().await?;
                Ok(rung == Rung::Namespaces)
            })
        })
    }
}

fn text(path: &Path) -> Result<String, TrialError> {
    Ok(path.to_str().ok_or("not UTF-8")?.to_owned())
}

pub(super) fn grant(
    path: &Path,
    host: Option<&Path>,
    read_only: bool,
) -> Result<PathGrant, TrialError> {
    let host_path = host.map(text).transpose()?;
    Ok(PathGrant { path: text(path)?, read_only, description: None, host_path })
}

pub(super) fn manifest(root: &Path, grants: Vec<PathGrant>) -> Result<Manifest, TrialError> {
    let root = text(root)?;
    Ok(Manifest { root, extra_path_grants: grants, ..Manifest::default() })
}

/// What in a folder gives anybody more than its owner had: by its mode, its kind, its capabilities, its owner.
fn dangers(folder: &Path) -> Result<Vec<String>, TrialError> {
    let owner = fs::metadata(folder)?;
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let path = entry?.path();
            let seen = fs::symlink_metadata(&path)?;
            let mut danger = |what: String| found.push(format!("{}: {what}", path.display()));
            if seen.mode() & 0o6000 != 0 && !seen.is_symlink() {
                danger(format!("mode {:o}", seen.mode()));
            }
            if seen.file_type().is_char_device() || seen.file_type().is_block_device() {
                danger("a device".to_owned());
            }
            if (seen.uid(), seen.gid()) != (owner.uid(), owner.gid()) {
                danger(format!("belongs to {}:{}", seen.uid(), seen.gid()));
            }
            let mut value = [0_u8; 64];
            if rustix::fs::lgetxattr(&path, "security.capability", &mut value[..]).is_ok() {
                danger("a capability".to_owned());
            }
            if seen.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(found)
}

async fn leaves_nothing_on_the_host_that_gives_more(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    let manifest = with_probe(manifest(&root, Vec::new())?)?;
    let session = context.session_with(&manifest).await?;
    let said = attempt(&session, "lasting", &[]).await?;
    let found = dangers(&root)?;
    session.delete().await?;
    assert_eq!((said.as_str(), found), ("", Vec::new()));
    assert!(root.join("by-chmod").exists() && root.join("by-mkdir").exists(), "it tried");
    Ok(())
}

async fn leaves_nothing_in_a_granted_folder_that_gives_more(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let folder = work(&context, &top, "granted")?;
    let mut manifest = with_probe(Manifest::default())?;
    manifest.extra_path_grants = vec![grant(&folder, None, false)?];
    let session = context.session_with(&manifest).await?;
    let line =
        format!("p=$PWD/probe; cd {} && $p {} lasting", folder.display(), super::probe::FLAG);
    let said = say(&session, &line).await?;
    let found = dangers(&folder)?;
    session.delete().await?;
    assert_eq!((said.as_str(), found), ("", Vec::new()));
    assert!(folder.join("by-chmod").exists(), "it tried");
    Ok(())
}

/// A tar with a file and a folder of every set-id mode.
fn tar() -> Result<Vec<u8>, TrialError> {
    let mut bytes = Vec::new();
    let mut writer = TarWriter::new(&mut bytes);
    for (name, kind) in [("tar-folder", TarKind::Dir), ("tar-file", TarKind::File)] {
        let mut member = TarMember::new(name.as_bytes(), kind);
        member.mode = 0o6755;
        writer.append(&member, &mut Cursor::new(b""))?;
    }
    writer.finish()?;
    Ok(bytes)
}

/// The guest is not behind the filter of commands, and does what the host asks, archives and all.
async fn by_files(session: &Session) -> Outcome {
    session.files().write("by-mode", "x").await?;
    session.files().chmod("by-mode", 0o6755).await?;
    let options = WriteOptions::default().mode(0o4755);
    session.files().write_with("by-write", "x", options).await?;
    session.files().mkdir("folder").await?;
    session.files().chmod("folder", 0o2755).await?;
    session.files().extract("in/data.tar", tar()?, ExtractOptions::default()).await?;
    session.compat().hydrate_workspace(tar()?).await?;
    Ok(())
}

async fn leaves_nothing_that_gives_more_by_files(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    let session = context.session_with(&manifest(&root, Vec::new())?).await?;
    by_files(&session).await?;
    let found = dangers(&root)?;
    session.delete().await?;
    assert_eq!(found, Vec::<String>::new());
    assert!(root.join("tar-file").exists() && root.join("in/tar-file").exists(), "it was unpacked");
    Ok(())
}

/// Whoever it is: commands are that one user, and nobody else can be had.
async fn leaves_only_files_of_the_folders_owner(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(&root, Some(SOMEBODY.0), Some(SOMEBODY.1))?;
        fs::write(root.join("callers"), "x")?;
    }
    let session = context.session_with(&manifest(&root, Vec::new())?).await?;
    say(&session, "touch made && mkdir folder && touch folder/made").await?;
    session.files().write("written", "x").await?;
    let found = dangers(&root)?;
    let others = session.exec(sh("true").user("4242")).await;
    let others = others.err().ok_or("another user was there")?;
    let by_number = session.exec(sh("touch x").user("0")).await;
    session.delete().await?;
    let of_caller = format!("{}: belongs to 0:0", root.join("callers").display());
    let want = if is_root { vec![of_caller] } else { Vec::new() };
    assert_eq!(found, want, "only what was there before is anybody else's");
    assert_eq!(others.kind(), ErrorKind::Unsupported, "{others}");
    let (message, place) = (others.message(), root.display().to_string());
    let is_said = ["4242", place.as_str(), "workspace"].iter().all(|it| message.contains(it));
    assert!(is_said, "{message}");
    assert!(by_number.is_err(), "root was there");
    Ok(())
}

async fn keeps_set_id_modes_in_storage_of_its_own(context: Context) -> Outcome {
    let session = context.session().await?;
    if session.receipt().rung == Rung::Landlock {
        // There its storage is a folder of the host like any other.
        let exit = session.exec(sh("touch program && chmod 2755 program")).await?.exit;
        assert_ne!(exit.code, 0);
        return Ok(session.delete().await?);
    }
    // As packages are installed: some programs have a group of their own.
    let line = "touch program && chmod 2755 program && stat -c %a program";
    assert_eq!(say(&session, line).await?, "2755\n");
    session.files().chmod("program", 0o4711).await?;
    assert_eq!(say(&session, "stat -c %a program").await?, "4711\n");
    Ok(session.delete().await?)
}

/// Whatever else commands can do to files of the caller that are outside.
async fn makes_no_program_of_the_caller_set_id(context: Context) -> Outcome {
    let (_held, top) = host()?;
    let program = top.join("program");
    fs::write(&program, "#!/bin/sh\n")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let session = context.session().await?;
    let line = format!("chmod 6755 {}", program.display());
    assert_ne!(session.exec(sh(&line)).await?.exit.code, 0);
    session.delete().await?;
    assert_eq!(fs::metadata(&program)?.mode() & 0o7777, 0o755);
    Ok(())
}

/// A file of the caller's that is granted for reading inside the workspace is neither emptied nor written.
async fn never_touches_what_a_grant_is_mounted_on(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    let file = root.join("config");
    fs::write(&file, "the caller's")?;
    if rustix::process::geteuid().is_root() {
        let owner = fs::metadata(&root)?;
        chown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    let made = context.session_with(&manifest(&root, vec![grant(&file, None, true)?])?).await;
    match made {
        Ok(session) => {
            let line = "echo x > config; echo x >> config; truncate -s 0 config; mv config away; rm -f config; chmod 0 config; true";
            say(&session, line).await?;
            assert_eq!(say(&session, "cat config").await?, "the caller's");
            session.delete().await?;
        }
        // A rung that cannot hold it says so.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains("config") && error.hint().is_some(), "{error}");
        }
    }
    assert_eq!(fs::read_to_string(&file)?, "the caller's");
    Ok(())
}

async fn leaves_no_mount_points_in_the_callers_folder(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    fs::write(top.join("one"), "one file")?;
    fs::create_dir(top.join("data"))?;
    fs::write(top.join("data/file"), "of a folder")?;
    let there = root.join("there");
    fs::write(&there, "the caller's")?;
    let grants = vec![
        grant(&root.join("deep/data"), Some(&top.join("data")), true)?,
        grant(&root.join("deep/one"), Some(&top.join("one")), true)?,
        grant(&there, Some(&top.join("one")), true)?,
    ];
    let session = match context.session_with(&manifest(&root, grants)?).await {
        Ok(session) => session,
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return Err(skip(error.message().to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    let said = say(&session, "cat deep/data/file deep/one there").await?;
    assert_eq!(said, "of a folderone fileone file");
    session.delete().await?;
    assert_eq!(fs::read_to_string(&there)?, "the caller's");
    let left: Vec<_> = fs::read_dir(&root)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    assert_eq!(left, [there]);
    Ok(())
}

/// By its other name, or because rules on files add up.
async fn refuses_what_is_granted_for_reading_and_could_be_written(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = work(&context, &top, "ws")?;
    fs::create_dir(root.join("closed"))?;
    let grants = vec![grant(&top.join("elsewhere"), Some(&root.join("closed")), true)?];
    let made = context.session_with(&manifest(&root, grants)?).await;
    let error = made.err().ok_or("it was granted")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("granted"), "{error}");

    // A command of an earlier session gave it another name.
    let file = root.join("closed/file");
    fs::write(&file, "kept")?;
    fs::hard_link(&file, root.join("other"))?;
    let made = context.session_with(&manifest(&root, vec![grant(&file, None, true)?])?).await;
    let error = made.err().ok_or("it was granted, and has another name")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("granted for reading only"), "{error}");
    Ok(())
}
