//! Folders and their entries.

use bastide::{ErrorKind, FileKind};

use super::{class, error};
use crate::suite::{Context, Outcome, Trial, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    lists_and_describes_files,
    lists_large_folders,
    makes_folders,
    removes_links_and_never_their_targets,
    removes_trees_of_any_depth,
    renames_files_and_links,
    tells_whether_two_paths_are_one_file,
    changes_permissions_and_owners,
    finds_files_by_pattern,
];

async fn lists_and_describes_files(context: Context) -> Outcome {
    let session = context.session().await?;
    let root = session.root().as_str().to_owned();
    say(
        &session,
        "mkdir -m 700 dir; printf 12345 > file; touch -d @1000000000.25 file
         ln -s file link; mkfifo -m 600 pipe; ln file hard; ln -s dir to_dir; touch dir/inner",
    )
    .await?;
    // Commands may not everywhere.
    session.files().chmod("file", 0o4751).await?;
    let listed = session.files().ls(".").await?;
    let names: Vec<_> = listed.iter().map(|info| info.path.clone()).collect();
    let want = ["dir", "file", "hard", "link", "pipe", "to_dir"];
    assert_eq!(names, want.map(|name| format!("{root}/{name}")));
    let find = |name: &str| {
        let found = listed.iter().find(|info| info.path == format!("{root}/{name}"));
        found.cloned().ok_or_else(|| format!("no {name}"))
    };
    let file = find("file")?;
    assert_eq!((file.kind, file.mode, file.size, file.links), (FileKind::File, 0o4751, 5, 2));
    let since = file.modified.duration_since(std::time::UNIX_EPOCH)?;
    assert_eq!((since.as_secs(), since.subsec_millis()), (1_000_000_000, 250));
    let (uid, user) =
        (say(&session, "id -u").await?, say(&session, "id -un 2>/dev/null; true").await?);
    assert_eq!(file.uid.to_string(), uid.trim());
    // A number without a name has none.
    assert_eq!(file.owner.as_deref(), Some(user.trim()).filter(|user| *user != uid.trim()));
    let link = find("link")?;
    assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some(&b"file"[..])));
    assert_eq!((find("pipe")?.kind, find("dir")?.mode), (FileKind::Fifo, 0o700));
    // Through a link the folder is listed where it is.
    let inner = session.files().ls("to_dir").await?;
    assert_eq!(
        inner.iter().map(|info| &info.path).collect::<Vec<_>>(),
        [&format!("{root}/dir/inner")]
    );
    assert_eq!(session.files().stat("link").await?, file);
    assert_eq!(session.files().lstat("link").await?, link);
    assert_eq!(class(session.files().ls("file").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().ls("gone").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().stat("gone").await)?, "WorkspaceReadNotFoundError");
    assert_eq!(session.files().ls("dir").await?.len(), 1);
    say(&session, "rm dir/inner").await?;
    assert!(session.files().ls("dir").await?.is_empty());
    Ok(session.delete().await?)
}

async fn lists_large_folders(context: Context) -> Outcome {
    let session = context.session().await?;
    let count = context.count(20_000);
    let line = format!("i=0; while [ $i -lt {count} ]; do : > file-$i; i=$((i+1)); done");
    say(&session, &line).await?;
    let listed = session.files().ls(".").await?;
    assert_eq!(listed.len(), count);
    assert!(listed.is_sorted_by(|a, b| a.path < b.path), "each once, by name");
    Ok(session.delete().await?)
}

async fn makes_folders(context: Context) -> Outcome {
    let session = context.session().await?;
    session.files().mkdir("a").await?;
    session.files().mkdir("a").await?;
    session.files().mkdir_all("b/c/d").await?;
    assert_eq!(class(session.files().mkdir("x/y").await)?, "WorkspaceArchiveWriteError");
    say(&session, "echo > file; ln -s new dangling; ln -s a link").await?;
    assert_eq!(class(session.files().mkdir_all("file").await)?, "WorkspaceArchiveWriteError");
    assert_eq!(class(session.files().mkdir_all("file/x").await)?, "WorkspaceArchiveWriteError");
    session.files().mkdir("dangling").await?;
    session.files().mkdir("link").await?;
    session.files().mkdir_all("link/in").await?;
    session.files().mkdir_all(".").await?;
    let line = "find . -type d | sort; stat -c %a a b/c";
    assert_eq!(
        say(&session, line).await?,
        ".\n./a\n./a/in\n./b\n./b/c\n./b/c/d\n./new\n755\n755\n"
    );
    Ok(session.delete().await?)
}

async fn removes_links_and_never_their_targets(context: Context) -> Outcome {
    let session = context.session().await?;
    say(
        &session,
        "echo x > file; mkdir dir; echo y > dir/inner; ln -s file a; ln -s dir b; ln -s /etc out
         ln -s nowhere dangling; mkdir tree; ln -s ../dir tree/link; ln -s /etc tree/out",
    )
    .await?;
    for path in ["a", "dangling"] {
        session.files().rm(path).await?;
    }
    for path in ["b", "out", "tree"] {
        session.files().rm_all(path).await?;
    }
    assert_eq!(say(&session, "find . | sort").await?, ".\n./dir\n./dir/inner\n./file\n");
    assert_eq!(say(&session, "test -e /etc/passwd && echo there").await?, "there\n");
    Ok(session.delete().await?)
}

async fn removes_trees_of_any_depth(context: Context) -> Outcome {
    let session = context.session().await?;
    assert_eq!(class(session.files().rm("gone").await)?, "ExecNonZeroError");
    session.files().rm_all("gone").await?;
    session.files().rm_all("gone/deeper").await?;
    // Deeper than a path can be long, and wider than a buffer.
    let depth = context.count(5000);
    say(
        &session,
        &format!(
            "mkdir deep; cd deep; i=0; while [ $i -lt {depth} ]
             do mkdir a_rather_long_name && cd -P a_rather_long_name; : > f; i=$((i+1)); done"
        ),
    )
    .await?;
    say(&session, "mkdir wide; i=0; while [ $i -lt 3000 ]; do : > wide/$i; i=$((i+1)); done")
        .await?;
    assert_eq!(class(session.files().rm("deep").await)?, "WorkspaceArchiveWriteError");
    session.files().rm_all("deep").await?;
    session.files().mkdir("empty").await?;
    session.files().rm("empty").await?;
    assert_eq!(say(&session, "ls").await?, "wide\n");
    // The root is emptied and stays.
    session.files().rm_all(".").await?;
    assert_eq!(say(&session, "ls -A; echo still here").await?, "still here\n");
    assert!(session.files().rm(".").await.is_err());
    Ok(session.delete().await?)
}

async fn renames_files_and_links(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo x > a; ln -s a link; ln -s /etc out; mkdir dir; echo old > dir/b").await?;
    session.files().mv("a", "dir/b").await?;
    session.files().mv("link", "dir/link").await?;
    session.files().mv("out", "dir/out").await?;
    let line = "cat dir/b; readlink dir/link dir/out; ls";
    assert_eq!(say(&session, line).await?, "x\na\n/etc\ndir\n");
    assert_eq!(class(session.files().mv("dir", "other").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().mv("dir/b", "dir").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().mv("gone", "x").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().mv("dir/b", "no/x").await)?, "ExecNonZeroError");
    assert_eq!(class(session.files().mv("dir/b", "../x").await)?, "InvalidManifestPathError");
    Ok(session.delete().await?)
}

async fn tells_whether_two_paths_are_one_file(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo x > a; cp a copy; ln a hard; ln -s a link; ln -s /etc out").await?;
    for (left, right, follow, want) in [
        ("a", "a", true, true),
        ("a", "hard", true, true),
        ("a", "link", true, true),
        ("a", "link", false, false),
        ("link", "link", false, false),
        ("a", "copy", true, false),
        ("a", "gone", true, false),
        ("gone", "gone", true, false),
        (".", "./.", true, true),
    ] {
        let same = match follow {
            true => session.files().same_file(left, right).await?,
            false => session.files().same_entry(left, right).await?,
        };
        assert_eq!(same, want, "{left} and {right}, followed {follow}");
    }
    let outside = session.files().same_file("a", "out/passwd").await;
    assert_eq!(class(outside)?, "InvalidManifestPathError");
    let under = session.files().same_file("a", "copy/x").await;
    assert_eq!(class(under)?, "ExecNonZeroError");
    Ok(session.delete().await?)
}

async fn changes_permissions_and_owners(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo x > file; ln -s file link; mkdir dir").await?;
    session.files().chmod("link", 0o600).await?;
    session.files().chmod("dir", 0o711).await?;
    assert_eq!(say(&session, "stat -c %a file dir").await?, "600\n711\n");
    // Also where nobody may read: it is enough to own it.
    session.files().chmod("file", 0).await?;
    session.files().chmod("file", 0o640).await?;
    let (uid, user) =
        (say(&session, "id -u").await?, say(&session, "id -un 2>/dev/null; true").await?);
    session.files().chown("file", Some(uid.trim()), None).await?;
    session.files().chown("file", Some(user.trim()), None).await?;
    if uid.trim() == "0" {
        session.files().chown("file", Some("65534"), Some("7")).await?;
        assert_eq!(say(&session, "stat -c %u:%g file").await?, "65534:7\n");
    } else {
        let given = session.files().chown("file", Some("0"), None).await;
        assert_eq!(class(given)?, "WorkspaceArchiveWriteError");
    }
    assert!(session.files().chown("file", Some("no-such-user"), None).await.is_err());
    Ok(session.delete().await?)
}

async fn finds_files_by_pattern(context: Context) -> Outcome {
    let session = context.session().await?;
    say(
        &session,
        "mkdir -p src/deep .git out; touch src/a.rs src/b.txt src/deep/c.rs .git/d.rs top.rs
         ln -s src linked; ln -s / everything",
    )
    .await?;
    for (pattern, want) in [
        ("*.rs", &["top.rs"][..]),
        ("**/*.rs", &["src/a.rs", "src/deep/c.rs", "top.rs"]),
        ("src/*", &["src/a.rs", "src/b.txt", "src/deep"]),
        ("s[a-z]c/?.rs", &["src/a.rs"]),
        (".git/*", &[".git/d.rs"]),
        ("l*", &["linked"]),
        ("linked/*", &[]),
        ("nothing", &[]),
    ] {
        assert_eq!(session.files().glob(pattern).await?, want, "{pattern}");
    }
    for pattern in ["/etc/*", "../*", ""] {
        let error = error(session.files().glob(pattern).await)?;
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{pattern}");
    }
    Ok(session.delete().await?)
}
