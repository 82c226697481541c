//! Archives, whole and by their members.

use std::io::{Cursor, Read as _};

use bastide_archive::bounds;
use bastide_archive::tar::{
    LinkPolicy, TarKind, TarMember, TarReader, TarRules, TarWriter, check_workspace_tar,
    strip_prefix,
};
use bastide_archive::{
    Action, ArchiveLimits, ArchiveScheme, EntryPath, Extraction, TarRestore, UnpackStep,
};
use bastide_model::error::raise;
use bastide_model::{Error, Result};
use serde_json::Value;

use super::seeds::recorded;
use super::{Target, Verdict, equal};
use crate::vectors::decode_base64;

/// What an archive may unpack to is bounded, but too much to be read each time.
const READ_OF_EACH: u64 = 64 << 10;

pub(super) const TAR_BYTES: Target = Target {
    name: "tar_bytes",
    check: check_tar,
    seeds: || {
        let mut seeds = archives("tar_safety", "tar_b64");
        seeds.extend(archives("archive_extract", "archive_b64"));
        seeds
    },
    words: &[
        "ustar\0",
        "ustar  \0",
        "././@LongLink",
        "././@PaxHeader",
        "30 path=../../../etc/passwd\n",
        "GNU.sparse.map=0,1,2,3",
        "22 GNU.sparse.major=1\n",
        "size=18446744073709551615",
        "32 GNU.sparse.size=4294967296\n",
        "35 GNU.sparse.realsize=1099511627776\n",
        "a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/",
        "BZh91AY&SY",
        "\0",
        "../",
        "/",
    ],
};

pub(super) const ZIP_BYTES: Target = Target {
    name: "zip_bytes",
    check: |input| {
        let limits = ArchiveLimits { max_members: Some(1000), ..ArchiveLimits::default() };
        let unpacked = unpack(input, ArchiveScheme::Zip, limits);
        unpacked.map_or_else(judge_error, |()| Verdict::Accepted)
    },
    seeds: || archives("archive_extract", "archive_b64"),
    words: &[
        "PK\x01\x02",
        "PK\x03\x04",
        "PK\x05\x06",
        "PK\x06\x06",
        "PK\x06\x07",
        "\0\0\0\0",
        "../",
        "/",
    ],
};

pub(super) const TAR_MEMBERS: Target = Target {
    name: "tar_members",
    check: |input| {
        let members = members_of(input);
        let mut tar = Vec::new();
        let mut writer = TarWriter::new(&mut tar);
        for member in &members {
            if let Err(error) = writer.append(member, &mut std::io::repeat(b'x')) {
                return Verdict::Broken(format!("{member:?} cannot be written: {error}"));
            }
        }
        if let Err(error) = writer.finish() {
            return Verdict::Broken(format!("the archive cannot be written: {error}"));
        }
        let read = match read_back(&tar) {
            Ok(read) => read,
            Err(error) => return Verdict::Broken(format!("its own archive is refused: {error}")),
        };
        let shape = |member: &TarMember| {
            // Trailing slashes are not part of a folder's name, nor of a long one.
            let name = String::from_utf8_lossy(&member.name);
            let name = name.trim_end_matches('/').to_owned();
            (name, member.kind, member.link.clone(), member.size)
        };
        let (before, after): (Vec<_>, Vec<_>) =
            (members.iter().map(shape).collect(), read.iter().map(shape).collect());
        match equal("members", &before, &after) {
            Verdict::Accepted => check_tar(&tar),
            broken => broken,
        }
    },
    seeds: || {
        let text = |lines: &str| lines.as_bytes().to_vec();
        vec![
            text("da\nfa/b\nfa/c"),
            text("da\nsl>a\nfl/x"),
            text("fa\nfa"),
            text("f../x\ns/>../../y\nhb>a"),
            text("d.\nfworkspace/a\nsworkspace/l>/workspace/a"),
        ]
    },
    words: &[
        "\nf",
        "\nd",
        "\ns",
        "\nh",
        "\np",
        ">",
        "/",
        "..",
        "./",
        "workspace/",
        "\u{e9}",
        "C:",
        "\\",
    ],
};

/// One member per line: a letter for its kind, its name, and behind `>` what it points to.
fn members_of(input: &[u8]) -> Vec<TarMember> {
    let lines = input.split(|byte| *byte == b'\n').take(64);
    let members = lines.filter_map(|line| {
        let (kind, rest) = line.split_first()?;
        let kind = match kind {
            b'f' => TarKind::File,
            b'd' => TarKind::Dir,
            b's' => TarKind::Symlink,
            b'h' => TarKind::Hardlink,
            b'p' => TarKind::Fifo,
            _ => return None,
        };
        let mut parts = rest.splitn(2, |byte| *byte == b'>');
        let (name, link) = (parts.next()?, parts.next().unwrap_or_default());
        // Neither a header nor a file system holds these.
        if name.contains(&0) || link.contains(&0) {
            return None;
        }
        let mut member = TarMember::new(name, kind);
        member.link = link.to_vec();
        member.size = if kind == TarKind::File { u64::try_from(link.len()).ok()? } else { 0 };
        Some(member)
    });
    members.collect()
}

fn read_back(tar: &[u8]) -> Result<Vec<TarMember>> {
    let mut reader = TarReader::open(tar)?;
    let mut members = Vec::new();
    while let Some(member) = reader.next_member()? {
        members.push(member);
    }
    Ok(members)
}

/// Whether what a reader of tars tells stays within what any archive may cost.
fn is_bounded(tar: &[u8]) -> bool {
    let most = bounds::expansion(u64::try_from(tar.len()).unwrap_or(u64::MAX));
    let Ok(mut reader) = TarReader::open(tar) else { return true };
    let names = |path: &[u8]| path.split(|byte| *byte == b'/').filter(|n| !n.is_empty()).count();
    let (mut total, mut last) = (0_u64, 0_u64);
    // A header may lie about its member: what that has is known when the next one is read.
    while let Ok(member) = reader.next_member() {
        total = total.saturating_add(last);
        let Some(member) = member else { break };
        last = if member.kind == TarKind::File { member.size } else { 0 };
        if names(&member.name).max(names(&member.link)) > bounds::MAX_DEPTH {
            return false;
        }
    }
    // What is in the stream, and what is left out of it.
    total <= most.saturating_mul(2)
}

/// Everything that reads tars, over one.
fn check_tar(tar: &[u8]) -> Verdict {
    if !is_bounded(tar) {
        return Verdict::Broken("it unpacks to more than any archive may".to_owned());
    }
    drop(strip_prefix(tar, std::io::sink(), "workspace", Some("/workspace")));
    let limits = ArchiveLimits { max_members: Some(1000), ..ArchiveLimits::default() };
    if let Err(error) = unpack(tar, ArchiveScheme::Tar, limits)
        && let broken @ Verdict::Broken(_) = judge_error(error)
    {
        return broken;
    }
    let strict = TarRules { links: LinkPolicy::Inside, ..TarRules::default() };
    let checked = check_workspace_tar(tar, &strict);
    let mut copy = Vec::new();
    match restore(tar, &mut copy) {
        Err(error) => judge_error(error),
        Ok(()) if checked.is_err() => {
            Verdict::Broken("what the check refuses was restored".to_owned())
        }
        // What was restored is an archive that is restored the same.
        Ok(()) => match restore(&copy, &mut Vec::new()) {
            Ok(()) => Verdict::Accepted,
            Err(error) => Verdict::Broken(format!("the copy is refused: {error}")),
        },
    }
}

/// The code of an error that says a step leaves the folder.
const ESCAPED: &str = "escaped";

fn judge_error(error: Error) -> Verdict {
    match error.error_code() {
        Some(ESCAPED) => Verdict::Broken(error.to_string()),
        _ => Verdict::Refused,
    }
}

/// Restores an archive into another one.
fn restore(tar: &[u8], copy: &mut Vec<u8>) -> Result<()> {
    let mut plan = TarRestore::open(Cursor::new(tar), LinkPolicy::Inside, "/workspace")?;
    let mut writer = TarWriter::new(copy);
    while let Some(mut step) = plan.next_step()? {
        stays_inside(&step)?;
        let (kind, content, link) = match &mut step.action {
            Action::Dir => (TarKind::Dir, Vec::new(), Vec::new()),
            Action::File { content, .. } => {
                let mut read = Vec::new();
                let taken = content.take(READ_OF_EACH).read_to_end(&mut read);
                taken.map_err(|error| raise::runtime_error(error.to_string()))?;
                (TarKind::File, read, Vec::new())
            }
            Action::Link { target } => (TarKind::Symlink, Vec::new(), target.clone()),
        };
        let mut member = TarMember::new(step.path.as_bytes(), kind);
        member.size = u64::try_from(content.len()).unwrap_or(0);
        member.link = link;
        writer.append(&member, &mut content.as_slice())?;
    }
    writer.finish()
}

/// Unpacks an archive into nothing.
fn unpack(archive: &[u8], scheme: ArchiveScheme, limits: ArchiveLimits) -> Result<()> {
    let mut plan = Extraction::open(Cursor::new(archive), scheme, limits, "/ws/a", "/ws")?;
    while let Some(mut step) = plan.next_step()? {
        stays_inside(&step)?;
        if let Action::File { content, .. } = &mut step.action {
            let read = std::io::copy(&mut content.take(READ_OF_EACH), &mut std::io::sink());
            read.map_err(|error| raise::runtime_error(error.to_string()))?;
        }
    }
    Ok(())
}

/// No step leaves the folder, by its name or by where its link points.
fn stays_inside(step: &UnpackStep<'_>) -> Result<()> {
    let escaped = |what: &[u8]| {
        let what = String::from_utf8_lossy(what);
        Err(raise::runtime_error(format!("{what} escapes")).with_code(ESCAPED))
    };
    let path = step.path.as_bytes();
    if path.starts_with(b"/") || path.split(|byte| *byte == b'/').any(|name| name == b"..") {
        return escaped(path);
    }
    if let Action::Link { target } = &step.action {
        let mut depth = step.path.names().count().saturating_sub(1);
        for name in EntryPath::new(target).names() {
            match name {
                b".." if depth == 0 => return escaped(target),
                b".." => depth -= 1,
                _ => depth += 1,
            }
        }
        if target.starts_with(b"/") {
            return escaped(target);
        }
    }
    Ok(())
}

fn archives(area: &str, key: &str) -> Vec<Vec<u8>> {
    const MAX_SEED: usize = 8 << 10;
    let encoded = recorded(area, key).into_iter();
    let bytes = encoded.filter_map(|value| match value {
        Value::String(text) => decode_base64(&text).ok(),
        _ => None,
    });
    bytes.filter(|bytes| bytes.len() <= MAX_SEED).collect()
}
