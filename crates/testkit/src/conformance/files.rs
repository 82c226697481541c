//! Files: what is written is what is read, and nothing leads out.

mod archives;
mod folders;
mod host;
mod watch;

use bastide::{Content, Error, ErrorClass, ErrorKind, FileReader, WriteOptions};

use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

/// Every trial about files.
pub(super) fn all() -> Vec<Trial> {
    [TRIALS, folders::TRIALS, archives::TRIALS, watch::TRIALS, host::TRIALS].concat()
}

/// Those that a guest has to pass whichever way it follows paths.
pub(crate) fn of_paths() -> Vec<Trial> {
    [TRIALS, folders::TRIALS, archives::TRIALS].concat()
}

const TRIALS: &[Trial] = trials![
    reads_what_it_wrote_whatever_its_size,
    writes_what_comes_from_a_stream,
    replaces_a_file_whole_and_keeps_its_permissions,
    writes_what_every_name_of_a_file_sees,
    replaces_a_name_that_others_could_have_made,
    makes_new_files_only_where_none_is,
    reads_parts_of_files,
    leaves_nothing_of_a_file_that_was_not_written_whole,
    follows_links_that_stay_and_refuses_those_that_leave,
    refuses_what_is_not_a_regular_file,
    knows_its_default_user_by_name_and_number,
    bounds_what_it_reads_at_once,
];

/// The class of an error, which must be one.
pub(super) fn class<T>(result: bastide::Result<T>) -> Result<&'static str, TrialError> {
    let error = error(result)?;
    error.class().map(ErrorClass::name).ok_or_else(|| format!("no class: {error:?}").into())
}

/// The error of something that must fail.
pub(super) fn error<T>(result: bastide::Result<T>) -> Result<Error, TrialError> {
    result.err().ok_or_else(|| "it should have failed".into())
}

fn pattern(size: usize) -> Vec<u8> {
    // A prime, so that no piece looks like another.
    (0..251_u8).cycle().take(size).collect()
}

async fn reads_what_it_wrote_whatever_its_size(context: Context) -> Outcome {
    let session = context.session().await?;
    let large = context.count(64 << 20);
    for size in [0, 1, 65_535, 65_536, 65_537, 131_071, 131_072, 131_073, 3 << 20, large] {
        let content = pattern(size);
        session.files().write("file", content.clone()).await?;
        assert_eq!(say(&session, "wc -c < file").await?.trim(), size.to_string());
        assert!(session.files().read("file").await? == content, "{size} bytes came back changed");
        // And what a command wrote.
        say(&session, "cat file > copy").await?;
        assert!(
            session.files().read("copy").await? == content,
            "{size} bytes of a command changed"
        );
    }
    Ok(session.delete().await?)
}

async fn writes_what_comes_from_a_stream(context: Context) -> Outcome {
    let session = context.session().await?;
    for size in [0, 100, 131_072, (1 << 20) + 7, context.count(40 << 20)] {
        let content = pattern(size);
        session.files().write("deep/er/file", Content::stream(&content[..])).await?;
        assert!(session.files().read("deep/er/file").await? == content, "{size} bytes changed");
    }
    Ok(session.delete().await?)
}

async fn replaces_a_file_whole_and_keeps_its_permissions(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo before > file; chmod 751 file; ln -s file link; exec 3< file").await?;
    session.files().write("link", "after\n").await?;
    let line = "cat file; stat -c %a file; readlink link; ls -A";
    assert_eq!(say(&session, line).await?, "after\n751\nfile\nfile\nlink\n");
    let options = WriteOptions::default().mode(0o4750);
    session.files().write_with("file", "again\n", options).await?;
    assert_eq!(session.files().stat("file").await?.mode, 0o4750);
    session.files().write("new", "new").await?;
    assert_eq!(session.files().stat("new").await?.mode, 0o644);
    // Whoever has the old file open has all of it.
    let reader = say(
        &session,
        "echo old > file; exec 3< file; mv file gone; echo new > file; cat <&3; rm gone",
    );
    assert_eq!(reader.await?, "old\n");
    Ok(session.delete().await?)
}

/// A file with several names is written in place.
async fn writes_what_every_name_of_a_file_sees(context: Context) -> Outcome {
    let session = context.session().await?;
    let made = "mkdir -m 755 d; umask 022; echo before, and more of it > d/a; chmod 640 d/a; ln d/a d/b; \
                ln -s d/b l";
    say(&session, made).await?;
    for (path, content) in [("d/a", "one\n"), ("d/b", "two, and longer\n"), ("l", "three\n")] {
        session.files().write(path, content).await?;
        let seen = say(&session, "cat d/a d/b; stat -c '%a %h' d/a; ls -A d").await?;
        assert_eq!(seen, format!("{content}{content}640 2\na\nb\n"), "{path}");
    }
    let large = pattern(3 << 20);
    session.files().write("d/a", Content::stream(&large[..])).await?;
    assert!(session.files().read("d/b").await? == large, "the other name sees something else");
    session.files().write("d/a", "").await?;
    assert_eq!(say(&session, "stat -c '%s %h' d/b; ls -A d").await?, "0 2\na\nb\n");
    // And a patch, which is a write.
    session.files().write("d/a", "four\n").await?;
    let patch = "*** Begin Patch\n*** Update File: d/b\n@@\n-four\n+five\n*** End Patch";
    bastide::Tools::new(&session).apply_patch(patch).await?;
    assert_eq!(say(&session, "cat d/a; stat -c %h d/a").await?, "five\n2\n");
    Ok(session.delete().await?)
}

/// Where others than the owner can make names, one may be a trap: what it leads to stays as it is.
async fn replaces_a_name_that_others_could_have_made(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkdir -m 755 own; mkdir -m 777 open; echo kept > own/a; ln own/a open/a")
        .await?;
    session.files().write("open/a", "new\n").await?;
    assert_eq!(say(&session, "cat own/a open/a").await?, "kept\nnew\n");
    Ok(session.delete().await?)
}

async fn makes_new_files_only_where_none_is(context: Context) -> Outcome {
    let session = context.session().await?;
    let new = |path: &'static str| {
        let session = &session;
        async move {
            let options = WriteOptions::default().new_file();
            session.files().write_with(path, "x", options).await
        }
    };
    new("made/file").await?;
    assert_eq!(class(new("made/file").await)?, "FileExistsError");
    say(&session, "ln -s nowhere dangling; mkdir folder").await?;
    for path in ["dangling", "folder"] {
        let error = error(new(path).await)?;
        assert_eq!(error.kind(), ErrorKind::Conflict, "{path}");
    }
    assert_eq!(class(new("../out").await)?, "InvalidManifestPathError");
    Ok(session.delete().await?)
}

async fn reads_parts_of_files(context: Context) -> Outcome {
    let session = context.session().await?;
    let content = pattern(3 << 20);
    session.files().write("file", content.clone()).await?;
    assert_eq!(session.files().read_bounded("file", 10).await?, &content[..10]);
    assert_eq!(session.files().read_bounded("file", 4 << 20).await?, &content[..]);
    assert_eq!(class(session.files().read_bounded("file", 0).await)?, "ValueError");
    assert_eq!(class(session.files().read_bounded("gone", 1).await)?, "WorkspaceReadNotFoundError");
    assert_eq!(class(session.files().read_bounded(".", 1).await)?, "WorkspaceArchiveReadError");
    for (offset, max) in [(0, Some(5)), (7, None), (2 << 20, Some(2 << 20)), (4 << 20, None)] {
        let reader = session.files().open_range("file", offset, max).await?;
        assert_eq!(reader.size(), 3 << 20);
        let start = usize::try_from(offset)?.min(content.len());
        let end = max.map_or(Ok(content.len()), usize::try_from)?.saturating_add(start);
        assert!(collect(reader).await? == content[start..end.min(content.len())], "at {offset}");
    }
    Ok(session.delete().await?)
}

async fn collect(mut reader: FileReader) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    while let Some(chunk) = reader.next().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// A stream that fails after so many bytes.
struct Failing(usize);

impl tokio::io::AsyncRead for Failing {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let length = self.0.min(buffer.remaining());
        if length == 0 {
            return std::task::Poll::Ready(Err(std::io::Error::other("no more")));
        }
        buffer.put_slice(&vec![b'x'; length]);
        self.0 -= length;
        std::task::Poll::Ready(Ok(()))
    }
}

async fn leaves_nothing_of_a_file_that_was_not_written_whole(context: Context) -> Outcome {
    let session = context.session().await?;
    session.files().write("file", "whole").await?;
    for size in [1000, 5 << 20] {
        let failed = session.files().write("file", Content::stream(Failing(size))).await;
        assert_eq!(class(failed)?, "WorkspaceArchiveWriteError");
        assert_eq!(session.files().read("file").await?, "whole");
    }
    // The guest hears of it a moment later.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while say(&session, "ls -A").await? != "file\n" {
        assert!(std::time::Instant::now() < deadline, "something is left behind");
    }
    Ok(session.delete().await?)
}

async fn follows_links_that_stay_and_refuses_those_that_leave(context: Context) -> Outcome {
    let session = context.session().await?;
    let root = session.root().as_str().to_owned();
    say(
        &session,
        "mkdir d; echo inside > d/f; ln -s d/f near; ln -s \"$PWD/d\" whole; ln -s ../f d/up
         ln -s /etc/passwd out; ln -s / top; ln -s d/new dangling; ln -s loop loop; echo up > f",
    )
    .await?;
    for (path, want) in [("near", "inside\n"), ("whole/f", "inside\n"), ("d/up", "up\n")] {
        assert_eq!(session.files().read(path).await?, want, "{path}");
    }
    let absolute = format!("{root}/whole/../f");
    assert_eq!(
        session.files().read(&absolute).await?,
        "up\n",
        "names are folded before links are seen"
    );
    let files = session.files();
    for path in ["out", "top/etc/passwd", "/etc/passwd", "../etc/passwd", "top"] {
        let refused = "InvalidManifestPathError";
        assert_eq!(class(session.files().read(path).await)?, refused, "read {path}");
        assert_eq!(class(session.files().write(path, "x").await)?, refused, "write {path}");
        assert_eq!(class(session.files().ls(path).await)?, refused, "ls {path}");
        assert_eq!(class(session.files().stat(path).await)?, refused, "stat {path}");
        assert_eq!(class(session.files().chmod(path, 0o777).await)?, refused, "chmod {path}");
        assert_eq!(class(session.files().mkdir_all(path).await)?, refused, "mkdir {path}");
        assert_eq!(class(files.watch_all(path).await)?, refused, "watch {path}");
    }
    for path in ["top/tmp/new", "top/tmp"] {
        assert_eq!(
            class(session.files().rm_all(path).await)?,
            "InvalidManifestPathError",
            "{path}"
        );
        let moved = session.files().mv("f", "top/tmp/f").await;
        assert_eq!(class(moved)?, "InvalidManifestPathError", "{path}");
    }
    session.files().write("dangling", "made").await?;
    assert_eq!(say(&session, "cat d/new; readlink dangling").await?, "maded/new\n");
    assert_eq!(class(session.files().read("loop").await)?, "WorkspaceArchiveReadError");
    assert_eq!(class(session.files().read("nope").await)?, "WorkspaceReadNotFoundError");
    assert_eq!(class(session.files().read("d/f/x").await)?, "WorkspaceArchiveReadError");
    Ok(session.delete().await?)
}

async fn refuses_what_is_not_a_regular_file(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkfifo pipe; mkdir folder").await?;
    let python = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    // Not every image has it.
    let has_socket = say(&session, python).await.is_ok();
    for path in ["pipe", "folder"].into_iter().chain(has_socket.then_some("socket")) {
        assert_eq!(class(session.files().read(path).await)?, "WorkspaceArchiveReadError", "{path}");
        assert_eq!(
            class(session.files().write(path, "x").await)?,
            "WorkspaceArchiveWriteError",
            "{path}"
        );
    }
    // A pipe does not hold us up, and is not taken for something else.
    assert_eq!(say(&session, "stat -c %F pipe").await?, "fifo\n");
    Ok(session.delete().await?)
}

async fn knows_its_default_user_by_name_and_number(context: Context) -> Outcome {
    let session = context.session().await?;
    let (name, uid) =
        (say(&session, "id -un 2>/dev/null; true").await?, say(&session, "id -u").await?);
    for user in [name.trim(), uid.trim()] {
        session.files_as(user).write(user, "mine").await?;
    }
    let uid: u32 = uid.trim().parse()?;
    let owned = session.files().ls(".").await?;
    assert!(owned.iter().all(|file| file.uid == uid), "{owned:?}");
    Ok(session.delete().await?)
}

async fn bounds_what_it_reads_at_once(context: Context) -> Outcome {
    let session = context.session().await?;
    // It has no content to speak of, but says that it has.
    say(&session, "truncate -s 400G huge").await?;
    let error = error(session.files().read("huge").await)?;
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(session.files().read_bounded("huge", 100).await?.len(), 100);
    Ok(session.delete().await?)
}
