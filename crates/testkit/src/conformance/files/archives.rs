//! Archives.

use std::io::Cursor;

use bastide::archive::ArchiveLimits;
use bastide::archive::tar::{TarKind, TarMember, TarWriter};
use bastide::{Content, ErrorClass, ExtractOptions, Tools};

use super::{class, error};
use crate::suite::{Context, Outcome, Trial, TrialError, say, scratch};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    unpacks_archives_beside_themselves,
    t29_refuses_archives_that_play_tricks,
    unpacks_nothing_through_a_link,
    keeps_to_the_limits_of_archives,
    no_few_bytes_fill_a_workspace,
    unpacks_large_archives,
    says_that_a_member_of_a_zip_is_damaged,
    takes_back_what_it_archived,
    says_where_an_archive_does_not_fit,
    patches_what_a_link_leads_to_and_loses_nothing,
];

/// A name and what is in it.
type Member = (&'static str, &'static [u8]);

/// A tar of these members; a folder ends in a slash, and `->` makes a link.
fn tar(members: &[(&str, &[u8])]) -> Result<Vec<u8>, TrialError> {
    let mut bytes = Vec::new();
    let mut writer = TarWriter::new(&mut bytes);
    for (name, content) in members {
        let (name, kind, link) = match name.split_once("->") {
            Some((name, target)) if target.starts_with('=') => {
                (name, TarKind::Hardlink, &target[1..])
            }
            Some((name, target)) => (name, TarKind::Symlink, target),
            None if name.ends_with('/') => (*name, TarKind::Dir, ""),
            None => (*name, TarKind::File, ""),
        };
        let mut member = TarMember::new(name.as_bytes(), kind);
        member.link = link.as_bytes().to_vec();
        member.size = content.len() as u64;
        writer.append(&member, &mut Cursor::new(content))?;
    }
    writer.finish()?;
    Ok(bytes)
}

/// A header of a tar.
fn header(name: &[u8], flag: u8, size: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[148..156].copy_from_slice(b"        ");
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A tar of one empty file with a record about it.
fn tar_with_record(keyword: &str, value: &str) -> Vec<u8> {
    let rest = keyword.len() + value.len() + 3;
    let length =
        (1..8).map(|digits| rest + digits).find(|all| all.to_string().len() + rest == *all);
    let mut record = format!("{} {keyword}={value}\n", length.unwrap_or(rest)).into_bytes();
    let mut tar = header(b"record", b'x', record.len());
    record.resize(record.len().next_multiple_of(512), 0);
    tar.extend(record);
    tar.extend(header(b"file", b'0', 0));
    tar.resize(tar.len() + 1024, 0);
    tar
}

async fn no_few_bytes_fill_a_workspace(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo here > file").await?;
    let bombs = [
        (tar_with_record("GNU.sparse.size", "1099511627776"), "archive expands too far"),
        (tar_with_record("path", &"a/".repeat(100_000)), "archive path is too deep"),
    ];
    for (bomb, reason) in bombs {
        let refused = error(session.compat().hydrate_workspace(bomb.clone()).await)?;
        assert_eq!(refused.context()["reason"], reason, "{refused:?}");
        assert!(refused.hint().is_some(), "{refused:?}");
        let unpacked = session.files().extract("in/a.tar", bomb, ExtractOptions::default()).await;
        let refused = error(unpacked)?;
        assert_eq!(refused.context()["reason"], reason, "{refused:?}");
        assert_eq!(
            say(&session, "cat file; find . -type f | sort").await?,
            "here\n./file\n./in/a.tar\n"
        );
    }
    Ok(session.delete().await?)
}

async fn unpacks_archives_beside_themselves(context: Context) -> Outcome {
    let session = context.session().await?;
    let archive =
        tar(&[("dir/", b""), ("dir/file", b"one"), ("deep/er/file", b"two"), ("top", b"3")])?;
    session.files().extract("in/data.tar", archive.clone(), ExtractOptions::default()).await?;
    let line = "cd in; find . -type f | sort; cat dir/file deep/er/file top";
    assert_eq!(
        say(&session, line).await?,
        "./data.tar\n./deep/er/file\n./dir/file\n./top\nonetwo3"
    );
    assert_eq!(session.files().read("in/data.tar").await?, archive);
    // What is there is written over and keeps its permissions.
    say(&session, "chmod 755 in/top; echo longer than before > in/top").await?;
    session
        .files()
        .extract("in/data.tar", Content::stream(&archive[..]), ExtractOptions::default())
        .await?;
    assert_eq!(say(&session, "cat in/top; stat -c %a in/top").await?, "3755\n");
    let named = ExtractOptions::default().scheme("tar");
    session.files().extract("odd.name", archive.clone(), named).await?;
    let unknown = session.files().extract("data.tar.gz", archive, ExtractOptions::default()).await;
    assert_eq!(class(unknown)?, "InvalidCompressionSchemeError");
    Ok(session.delete().await?)
}

async fn t29_refuses_archives_that_play_tricks(context: Context) -> Outcome {
    let session = context.session().await?;
    let tricks: &[(&str, &[Member])] = &[
        ("absolute path", &[("ok", b"1"), ("/etc/x", b"2")]),
        ("parent traversal", &[("ok", b"1"), ("a/../../x", b"2")]),
        ("symlink member not allowed", &[("ok", b"1"), ("l->/etc", b"")]),
        ("hardlink member not allowed", &[("ok", b"1"), ("h->=ok", b"")]),
        ("duplicate archive path: ok", &[("ok", b"1"), ("./ok", b"2")]),
        ("windows path separator", &[("ok", b"1"), ("a\\b", b"2")]),
        ("archive path descends through non-directory: ok", &[("ok", b"1"), ("ok/x", b"2")]),
    ];
    for (reason, members) in tricks {
        let refused =
            session.files().extract("t.tar", tar(members)?, ExtractOptions::default()).await;
        let error = refused.err().ok_or_else(|| format!("{reason}: it was unpacked"))?;
        assert_eq!(error.class(), Some(ErrorClass::WorkspaceArchiveWriteError), "{reason}");
        assert_eq!(error.context()["reason"], *reason);
        // Nothing of it is unpacked, not even what would have been fine.
        assert_eq!(say(&session, "ls -A").await?, "t.tar\n", "{reason}");
    }
    let garbage = session.files().extract("t.tar", "not a tar", ExtractOptions::default()).await;
    assert_eq!(class(garbage)?, "WorkspaceArchiveWriteError");
    let cut = tar(&[("a", &[1; 5000])])?;
    let cut =
        session.files().extract("t.tar", cut[..2000].to_vec(), ExtractOptions::default()).await;
    assert_eq!(class(cut)?, "WorkspaceArchiveWriteError");
    Ok(session.delete().await?)
}

async fn unpacks_nothing_through_a_link(context: Context) -> Outcome {
    let session = context.session().await?;
    let out = format!("{}/out", scratch(&session).await?);
    let made = format!("mkdir {out} real; ln -s {out} out; ln -s real in; ln -s real/f leaf");
    say(&session, &made).await?;
    for (member, at) in [("out/f", "out"), ("in/f", "in"), ("leaf", "leaf"), ("in/a/b", "in")] {
        let archive = tar(&[("first", b"1"), (member, b"2")])?;
        let refused = session.files().extract("t.tar", archive, ExtractOptions::default()).await;
        let error = refused.err().ok_or_else(|| format!("{member}: it was unpacked"))?;
        assert_eq!(error.context()["reason"], format!("symlink in parent path: {at}"), "{member}");
        assert_eq!(error.context()["member"], member);
        // What came before stays.
        assert_eq!(say(&session, "cat first; rm first").await?, "1");
    }
    let found = say(&session, &format!("find {out} real")).await?;
    assert_eq!(found, format!("{out}\nreal\n"));
    say(&session, "mkdir folder; mkfifo pipe").await?;
    for member in ["folder", "pipe"] {
        let archive = tar(&[(member, b"x")])?;
        let refused = session.files().extract("t.tar", archive, ExtractOptions::default()).await;
        assert_eq!(class(refused)?, "WorkspaceArchiveWriteError", "{member}");
    }
    Ok(session.delete().await?)
}

async fn keeps_to_the_limits_of_archives(context: Context) -> Outcome {
    let session = context.session().await?;
    let archive = tar(&[("a", &[1; 600]), ("b", &[2; 600])])?;
    for (limits, reason) in [
        (
            ArchiveLimits { max_members: Some(1), ..ArchiveLimits::NONE },
            "archive member count exceeds limit",
        ),
        (
            ArchiveLimits { max_extracted_bytes: Some(1000), ..ArchiveLimits::NONE },
            "archive extracted size exceeds limit",
        ),
        (
            ArchiveLimits { max_input_bytes: Some(1000), ..ArchiveLimits::NONE },
            "archive input size exceeds limit",
        ),
    ] {
        let options = ExtractOptions::default().limits(limits);
        let error = error(session.files().extract("t.tar", archive.clone(), options).await)?;
        assert_eq!(error.context()["reason"], reason);
        assert!(session.files().read("a").await.is_err());
    }
    let none = ArchiveLimits { max_members: Some(0), ..ArchiveLimits::NONE };
    let options = ExtractOptions::default().limits(none);
    assert_eq!(class(session.files().extract("t.tar", archive, options).await)?, "ValueError");
    Ok(session.delete().await?)
}

/// A zip of one member as it is, with the sum that is said of it.
fn zip(name: &str, content: &[u8], sum: u32) -> Result<Vec<u8>, TrialError> {
    let (length, named) = (u32::try_from(content.len())?, u16::try_from(name.len())?);
    let numbers =
        |parts: &[u16]| parts.iter().flat_map(|part| part.to_le_bytes()).collect::<Vec<_>>();
    // Version, flags, method, time, date; then the sum, both lengths, and the name's.
    let common = [
        numbers(&[20, 0, 0, 0, 0x21]),
        [sum, length, length].iter().flat_map(|part| part.to_le_bytes()).collect(),
        numbers(&[named, 0]),
    ]
    .concat();
    let file = [&b"PK\x03\x04"[..], &common, name.as_bytes(), content].concat();
    let entry = [&b"PK\x01\x02\x14\x00"[..], &common, &[0; 14], name.as_bytes()].concat();
    let (at, size) = (u32::try_from(file.len())?, u32::try_from(entry.len())?);
    let end = [
        &b"PK\x05\x06"[..],
        &numbers(&[0, 0, 1, 1]),
        &size.to_le_bytes(),
        &at.to_le_bytes(),
        &[0; 2],
    ];
    Ok([file, entry, end.concat()].concat())
}

async fn says_that_a_member_of_a_zip_is_damaged(context: Context) -> Outcome {
    let session = context.session().await?;
    // The sum of these very bytes, as every program reckons it.
    let good = zip("file", b"123456789", 0xcbf4_3926)?;
    session.files().extract("good.zip", good, ExtractOptions::default()).await?;
    assert_eq!(session.files().read("file").await?, "123456789");
    say(&session, "rm file").await?;
    for (content, sum) in [(&b"123456788"[..], 0xcbf4_3926), (b"123456789", 1)] {
        let bad = zip("file", content, sum)?;
        let bad = session.files().extract("bad.zip", bad, ExtractOptions::default()).await;
        assert_eq!(class(bad)?, "WorkspaceArchiveWriteError");
        assert!(session.files().read("file").await.is_err(), "nothing that is damaged is left");
    }
    Ok(session.delete().await?)
}

async fn unpacks_large_archives(context: Context) -> Outcome {
    let session = context.session().await?;
    let count = context.count(20_000);
    let names: Vec<String> =
        (0..count).map(|number| format!("d{}/f{number}", number % 50)).collect();
    let large = vec![7; context.count(40 << 20)];
    let mut members: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    members.push(("large", &large));
    session.files().extract("t.tar", tar(&members)?, ExtractOptions::default()).await?;
    let line = "find . -name 'f*' -type f | wc -l; wc -c < large";
    assert_eq!(say(&session, line).await?, format!("{count}\n{}\n", large.len()));
    assert_eq!(session.files().read("d7/f57").await?, "d7/f57");
    Ok(session.delete().await?)
}

/// Files with several names, pipes and links into the workspace: what is archived can be unpacked.
async fn takes_back_what_it_archived(context: Context) -> Outcome {
    let session = context.session().await?;
    say(
        &session,
        "mkdir d; echo one > a; ln a d/b; mkfifo p; ln -s $PWD/a d/up; ln -s $PWD/d/../a dots",
    )
    .await?;
    let archive = session.compat().persist_workspace().await?;
    let left_out: Vec<&str> = archive.left_out.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(left_out, ["./p"]);
    let content = archive.into_content()?;
    say(&session, "rm -r a d p dots").await?;
    session.compat().hydrate_workspace(content).await?;
    let look = "find . -mindepth 1 | sort; stat -c %h a d/b; readlink d/up dots; cat d/up dots";
    assert_eq!(
        say(&session, look).await?,
        "./a\n./d\n./d/b\n./d/up\n./dots\n1\n1\n../a\nd/../a\none\none\n"
    );
    Ok(session.delete().await?)
}

async fn says_where_an_archive_does_not_fit(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "mkdir folder real; ln -s real link").await?;
    let root = session.root().as_str().to_owned();
    let cases = [
        ("folder", "destination directory already exists: folder"),
        ("link/file", "symlink in parent path"),
    ];
    for (member, reason) in cases {
        let archive = tar(&[(member, b"x")])?;
        let failed = error(session.compat().hydrate_workspace(archive).await)?;
        assert_eq!(failed.class(), Some(ErrorClass::WorkspaceArchiveWriteError));
        let reported = |key: &str| failed.context()[key].as_str().unwrap_or_default().to_owned();
        let reported = (reported("path"), reported("member"), reported("reason"));
        assert_eq!(reported, (root.clone(), member.to_owned(), reason.to_owned()));
    }
    Ok(session.delete().await?)
}

/// A file that is moved to a link to itself stays; a link that leads out is refused by its name.
async fn patches_what_a_link_leads_to_and_loses_nothing(context: Context) -> Outcome {
    let session = context.session().await?;
    say(&session, "echo one > f; ln -s f l; ln -s /etc/hostname out; mkfifo p").await?;
    let tools = Tools::new(&session);
    let patch = |body: &str| format!("*** Begin Patch\n{body}\n*** End Patch");
    tools.apply_patch(&patch("*** Update File: f\n*** Move to: l\n@@\n-one\n+two")).await?;
    assert_eq!(say(&session, "cat f l; readlink l").await?, "two\ntwo\nf\n");
    let out = patch("*** Update File: out\n@@\n-a\n+b");
    let failed = error(tools.apply_patch(&out).await)?;
    assert_eq!(failed.class(), Some(ErrorClass::InvalidManifestPathError));
    let failed = error(tools.apply_patch(&patch("*** Update File: p\n@@\n-a\n+b")).await)?;
    assert_eq!(failed.class(), Some(ErrorClass::WorkspaceArchiveReadError));
    let place = format!("{}/p", session.root());
    assert_eq!(failed.context()["path"], place.as_str(), "the whole path is reported");
    Ok(session.delete().await?)
}
