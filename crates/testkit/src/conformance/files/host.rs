//! Folders of the host, on backends whose sessions can have them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bastide::model::{Entry, Manifest, PathGrant};
use bastide::{Condition, ErrorKind, Rung, Session};

use super::{class, error};
use crate::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    works_in_a_folder_of_the_host,
    never_clears_or_removes_the_callers_folder,
    grants_folders_and_files_of_the_host,
    refuses_folders_that_are_nobodys_workspace,
    follows_links_between_the_workspace_and_grants,
    is_never_root_where_ids_are_the_hosts,
];

fn manifest(root: &Path, grants: &[(&Path, bool)]) -> Result<Manifest, TrialError> {
    let text = |path: &Path| path.to_str().map(ToOwned::to_owned).ok_or("not UTF-8");
    let mut manifest = Manifest { root: text(root)?, ..Manifest::default() };
    for (path, read_only) in grants {
        let (path, read_only) = (text(path)?, *read_only);
        manifest.extra_path_grants.push(PathGrant {
            path,
            read_only,
            description: None,
            host_path: None,
        });
    }
    Ok(manifest)
}

/// A folder of the host's, links followed.
fn host() -> Result<(tempfile::TempDir, std::path::PathBuf), TrialError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().canonicalize()?;
    Ok((folder, path))
}

async fn works_in_a_folder_of_the_host(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = top.join("project");
    fs::create_dir(&root)?;
    fs::write(root.join("given"), "by the host")?;
    let mut manifest = manifest(&root, &[])?;
    manifest.entries.insert("entry".to_owned(), Entry::file("laid out"));
    let session = context.session_with(&manifest).await?;
    let place = root.to_str().ok_or("not UTF-8")?;
    assert_eq!(session.root().as_str(), place);
    assert_eq!(
        say(&session, "pwd; echo $HOME; cat given entry").await?,
        format!("{place}\n{place}\nby the hostlaid out")
    );
    // Both see what the other does at once, and who does it stays who they are.
    say(&session, "echo command > made; mkdir folder").await?;
    session.files().write("written", "api").await?;
    assert_eq!(fs::read_to_string(root.join("made"))?, "command\n");
    assert_eq!(fs::read_to_string(root.join("written"))?, "api");
    let owner = |name: &str| -> Result<(u32, u32), TrialError> {
        let metadata = fs::metadata(root.join(name))?;
        Ok((metadata.uid(), metadata.gid()))
    };
    let own = owner("given")?;
    for name in ["made", "written", "entry", "folder"] {
        assert_eq!(owner(name)?, own, "{name}");
    }
    assert_eq!(
        say(&session, "stat -c %u given; id -u")
            .await?
            .lines()
            .collect::<std::collections::HashSet<_>>()
            .len(),
        1
    );
    fs::write(root.join("later"), "from outside")?;
    assert_eq!(session.files().read("later").await?, "from outside");
    // What is beside it is not there.
    fs::write(top.join("secret"), "bastide-canary")?;
    let seen =
        format!("cat {}/secret 2>/dev/null; ls {} 2>/dev/null; true", top.display(), top.display());
    let seen = say(&session, &seen).await?;
    // Where it sees the host's own paths, it may not list this one.
    assert!(["project\n", ""].contains(&seen.as_str()), "{seen}");
    Ok(session.delete().await?)
}

async fn never_clears_or_removes_the_callers_folder(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    let root = top.join("made/by/us");
    let session: Session = context.session_with(&manifest(&root, &[])?).await?;
    session.files().write("file", "stays").await?;
    session.delete().await?;
    assert_eq!(fs::read_to_string(root.join("file"))?, "stays");
    // A session that cannot be made takes nothing with it either.
    let mut bad = manifest(&root, &[])?;
    bad.entries.insert("file/below".to_owned(), Entry::file("x"));
    assert!(context.session_with(&bad).await.is_err());
    assert_eq!(fs::read_to_string(root.join("file"))?, "stays");
    let session = context.session_with(&manifest(&root, &[])?).await?;
    assert_eq!(session.files().read("file").await?, "stays");
    session.files().rm_all(".").await?;
    assert!(root.is_dir() && fs::read_dir(&root)?.next().is_none());
    Ok(session.delete().await?)
}

async fn grants_folders_and_files_of_the_host(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    for name in ["ws", "rw", "ro"] {
        fs::create_dir(top.join(name))?;
        fs::write(top.join(name).join("file"), name)?;
    }
    fs::write(top.join("single"), "one file")?;
    // Even what only its owner may read.
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(top.join("ro/file"), private)?;
    let grants =
        [(&*top.join("rw"), false), (&*top.join("ro"), true), (&*top.join("single"), false)];
    let session = context.session_with(&manifest(&top.join("ws"), &grants)?).await?;
    let at = |name: &str| top.join(name).display().to_string();
    assert_eq!(session.files().read(&at("rw/file")).await?, "rw");
    assert_eq!(session.files().read(&at("ro/file")).await?, "ro");
    assert_eq!(say(&session, &format!("cat {}", at("ro/file"))).await?, "ro");
    session.files().write(&at("rw/new"), "granted").await?;
    session.files().write(&at("single"), "changed").await?;
    assert_eq!(fs::read_to_string(top.join("rw/new"))?, "granted");
    assert_eq!(fs::read_to_string(top.join("single"))?, "changed");
    for path in [at("ro/file"), at("ro/new"), at("ro/a/b")] {
        let error = error(session.files().write(&path, "x").await)?;
        assert_eq!(error.context()["reason"], "read_only_extra_path_grant", "{path}");
        assert_eq!(error.context()["grant_path"], at("ro"));
    }
    assert_eq!(class(session.files().rm(&at("ro/file")).await)?, "WorkspaceArchiveWriteError");
    let exit = session.exec(sh(&format!("echo x > {}", at("ro/new")))).await?.exit;
    assert_ne!(exit.code, 0, "a command wrote where only reading is granted");
    // From one to the other, though they are different mounts.
    session.files().mv("file", &at("rw/moved")).await?;
    assert_eq!(fs::read_to_string(top.join("rw/moved"))?, "ws");
    assert!(!top.join("ws/file").exists());
    say(&session, "ln -s somewhere link").await?;
    session.files().mv("link", &at("rw/link")).await?;
    assert_eq!(fs::read_link(top.join("rw/link"))?, Path::new("somewhere"));
    session.delete().await?;
    assert_eq!(fs::read_to_string(top.join("ro/file"))?, "ro");
    Ok(())
}

async fn refuses_folders_that_are_nobodys_workspace(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let home = context.backend.home().canonicalize()?;
    let above = home.parent().ok_or("no parent")?.to_path_buf();
    let sessions = home.join("sessions");
    let roots = ["/", "/usr", "/etc", "/proc", "/tmp", "/usr/bin", "/home", "/dev/shm/x"];
    let roots = roots.iter().map(Path::new).chain([above.as_path(), &home, &sessions]);
    for root in roots {
        let error = context.session_with(&manifest(root, &[])?).await;
        let error = error.err().ok_or_else(|| format!("{} was taken", root.display()))?;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}: {error}", root.display());
    }
    let (_held, top) = host()?;
    fs::create_dir(top.join("ws"))?;
    std::os::unix::fs::symlink("/etc", top.join("link"))?;
    assert!(context.session_with(&manifest(&top.join("link"), &[])?).await.is_err());
    for (grant, read_only) in [("/proc/1", true), ("/usr/lib", false), ("/dev", true)] {
        let grants = [(Path::new(grant), read_only)];
        let refused = context.session_with(&manifest(&top.join("ws"), &grants)?).await;
        assert!(refused.is_err(), "{grant} was granted");
    }
    let missing = [(&*top.join("missing"), true)];
    assert!(context.session_with(&manifest(&top.join("ws"), &missing)?).await.is_err());
    Ok(())
}

async fn follows_links_between_the_workspace_and_grants(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    let (_held, top) = host()?;
    for name in ["ws", "grant", "read", "beside"] {
        fs::create_dir(top.join(name))?;
        fs::write(top.join(name).join("file"), name)?;
    }
    let link =
        |to: &str, at: &str| std::os::unix::fs::symlink(top.join(to), top.join("ws").join(at));
    link("grant", "to_grant")?;
    link("read", "to_read")?;
    link("beside", "to_beside")?;
    std::os::unix::fs::symlink("../grant/file", top.join("ws/up"))?;
    let grants = [(&*top.join("grant"), false), (&*top.join("read"), true)];
    let session = context.session_with(&manifest(&top.join("ws"), &grants)?).await?;
    assert_eq!(session.files().read("to_grant/file").await?, "grant");
    assert_eq!(session.files().read("up").await?, "grant");
    assert_eq!(session.files().read("to_read/file").await?, "read");
    assert_eq!(class(session.files().read("to_beside/file").await)?, "InvalidManifestPathError");
    session.files().write("to_grant/new", "x").await?;
    assert_eq!(fs::read_to_string(top.join("grant/new"))?, "x");
    let error = error(session.files().write("to_read/new", "x").await)?;
    assert_eq!(error.context()["reason"], "read_only_extra_path_grant");
    assert_eq!(
        class(session.files().write("to_beside/new", "x").await)?,
        "InvalidManifestPathError"
    );
    session.files().rm_all("to_grant").await?;
    assert!(top.join("grant/file").exists(), "what a link points to was removed");
    Ok(session.delete().await?)
}

/// Landlock does not cover permissions, owners and times: where ids are the host's, nobody is root.
async fn is_never_root_where_ids_are_the_hosts(context: Context) -> Outcome {
    if !context.backend.has_host_files() || !rustix::process::geteuid().is_root() {
        return Err(skip("nobody here is root with folders of the host"));
    }
    let rung = {
        let session = context.session().await?;
        let rung = session.receipt().rung;
        session.delete().await?;
        rung
    };
    if rung != Rung::Landlock {
        return Err(skip("ids inside are not the host's"));
    }
    let (_held, top) = host()?;
    let root = top.join("project");
    fs::create_dir(&root)?;
    let refused = context.session_with(&manifest(&root, &[])?).await;
    let error = refused.map(drop).err().ok_or("root's folder was taken")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.condition(), Some(&Condition::FolderIsRoots));
    assert!(error.hint().is_some_and(|hint| hint.contains("Rung::Namespaces")));
    // Somebody else's is worked in as that one, who cannot change what is root's.
    fs::set_permissions(&top, fs::Permissions::from_mode(0o755))?;
    std::os::unix::fs::chown(&root, Some(61_234), Some(61_234))?;
    fs::write(top.join("roots"), "")?;
    let session = context.session_with(&manifest(&root, &[])?).await?;
    assert_eq!(say(&session, "id -u").await?, "61234\n");
    let roots = top.join("roots").display().to_string();
    let output =
        session.exec(sh(&format!("chmod 777 {roots} || touch -d 2001-01-01 {roots}"))).await?;
    assert_ne!(output.exit.code, 0);
    Ok(session.delete().await?)
}
