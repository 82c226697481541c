//! What a few hostile bytes can ask for, and what honest archives need.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Cursor, Write};

use bastide_archive::bounds::{MAX_DEPTH, MAX_MEMBERS};
use bastide_archive::tar::{LinkPolicy, TarKind, TarMember, TarReader, TarWriter};
use bastide_archive::{ArchiveLimits, ArchiveScheme, Extraction, TarRestore};
use bastide_model::Error;
use flate2::Compression;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;

/// A header of a member.
fn header(name: &[u8], flag: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000000\0");
    block[156] = flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block
}

/// Writes the sum of a header into it.
fn seal(block: &mut [u8; BLOCK]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// A record of an extended header.
fn record(keyword: &str, value: &[u8]) -> Vec<u8> {
    let rest = keyword.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {keyword}=").as_bytes(), value, b"\n"].concat()
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

fn extended(flag: u8, records: &[u8]) -> Vec<u8> {
    let header = header(b"records", flag, records.len() as u64).to_vec();
    [header, padded(records.to_vec())].concat()
}

fn ended(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), vec![0; 2 * BLOCK]].concat()
}

fn gzipped(tar: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(tar).unwrap();
    packer.finish().unwrap()
}

/// A sparse file of so many bytes, of which the archive holds none, in each way there is to say so.
fn sparse(size: u64) -> Vec<Vec<u8>> {
    let mut old = header(b"old", b'S', 0);
    old[257..265].copy_from_slice(b"ustar  \0");
    let mut wide = [0; 12];
    wide[0] = 0x80;
    wide[4..].copy_from_slice(&size.to_be_bytes());
    old[483..495].copy_from_slice(&wide);
    seal(&mut old);
    let size = size.to_string();
    let first = record("GNU.sparse.size", size.as_bytes());
    let map =
        [record("GNU.sparse.map", b"0,0"), record("GNU.sparse.size", size.as_bytes())].concat();
    let one = [
        record("GNU.sparse.major", b"1"),
        record("GNU.sparse.minor", b"0"),
        record("GNU.sparse.realsize", size.as_bytes()),
    ]
    .concat();
    let empty = header(b"file", b'0', 0).to_vec();
    let mapped = [header(b"file", b'0', 512).to_vec(), padded(b"0\n".to_vec())].concat();
    vec![
        ended(&[old.to_vec()]),
        ended(&[extended(b'x', &first), empty.clone()]),
        ended(&[extended(b'x', &map), empty]),
        ended(&[extended(b'x', &one), mapped]),
    ]
}

/// What every reader of foreign tars says.
fn verdicts(tar: &[u8]) -> [Result<(), Error>; 3] {
    let read = || -> Result<(), Error> {
        let mut reader = TarReader::open(tar)?;
        while reader.next_member()?.is_some() {}
        Ok(())
    };
    let data = || Cursor::new(tar.to_vec());
    let restored = TarRestore::open(data(), LinkPolicy::Inside, "/workspace").map(drop);
    let limits = ArchiveLimits::NONE;
    let unpacked =
        Extraction::open(data(), ArchiveScheme::Tar, limits, "/ws/a.tar", "/ws").map(drop);
    [read(), restored, unpacked]
}

#[test]
fn a_few_bytes_are_no_huge_sparse_file() {
    for size in [4 << 30, 1 << 50, u64::MAX >> 1] {
        for tar in sparse(size) {
            for packed in [gzipped(&tar), tar.clone()] {
                for verdict in verdicts(&packed) {
                    let error = verdict.unwrap_err();
                    let reason = error.context()["reason"].as_str().unwrap().to_owned();
                    assert_eq!(reason, "archive expands too far", "{error:?}");
                }
            }
        }
    }
    // One of a size that costs nothing to fill is as good as any.
    for tar in sparse(100 << 20) {
        for verdict in verdicts(&tar) {
            verdict.unwrap();
        }
    }
}

#[test]
fn a_few_bytes_are_no_endless_path() {
    let deep = |depth: usize| {
        let path = vec![&b"a"[..]; depth].join(&b'/');
        gzipped(&ended(&[extended(b'x', &record("path", &path)), header(b"f", b'0', 0).to_vec()]))
    };
    for verdict in verdicts(&deep(MAX_DEPTH)) {
        verdict.unwrap();
    }
    let hostile = deep(MAX_DEPTH * 4);
    assert!(hostile.len() < 1000, "{}", hostile.len());
    for verdict in verdicts(&hostile) {
        let error = verdict.unwrap_err();
        assert_eq!(error.context()["reason"], "archive path is too deep", "{error:?}");
    }
    // Many deep members that share no folder.
    let parts: Vec<Vec<u8>> = (0..64)
        .flat_map(|number| {
            let path =
                [format!("{number}/").as_bytes(), &vec![&b"a"[..]; 8000].join(&b'/')].concat();
            [extended(b'x', &record("path", &path)), header(b"f", b'0', 0).to_vec()]
        })
        .collect();
    let [_, restored, unpacked] = verdicts(&gzipped(&ended(&parts)));
    assert!(restored.is_err() && unpacked.is_err());
}

#[test]
fn records_for_all_members_cost_no_more_for_many_members() {
    let shared: Vec<u8> =
        (0..4000).flat_map(|number| record(&format!("SCHILY.xattr.user.{number}"), b"")).collect();
    let mut parts = vec![extended(b'g', &shared[..60_000])];
    parts
        .extend((0..4_000).map(|number| header(format!("f{number}").as_bytes(), b'0', 0).to_vec()));
    let tar = ended(&parts);
    let mut reader = TarReader::open(tar.as_slice()).unwrap();
    let mut members = Vec::new();
    while let Some(member) = reader.next_member().unwrap() {
        // What all members are said to have is no attribute of each.
        assert_eq!(member.ownership().attributes, []);
        members.push(member);
    }
    assert_eq!(members.len(), 4_000);
    let many: Vec<Vec<u8>> = (0..2000).map(|_| extended(b'g', &record("comment", b"x"))).collect();
    let parts: Vec<Vec<u8>> = many
        .into_iter()
        .enumerate()
        .flat_map(|(number, global)| {
            [global, header(format!("g{number}").as_bytes(), b'0', 0).to_vec()]
        })
        .collect();
    assert!(verdicts(&ended(&parts)).iter().all(Result::is_err));
}

/// A zip whose directory names the same few bytes again and again.
fn overlapping_zip(members: u32, size: u32) -> Vec<u8> {
    let mut zip = b"PK\x03\x04".to_vec();
    zip.extend([20, 0, 0, 0, 8, 0]);
    zip.resize(30, 0);
    zip.extend([3, 0]);
    let start = zip.len();
    for number in 0..members {
        let name = format!("{number}");
        let mut entry = b"PK\x01\x02".to_vec();
        entry.resize(46, 0);
        (entry[6], entry[10]) = (20, 8);
        entry[20..24].copy_from_slice(&2_u32.to_le_bytes());
        entry[24..28].copy_from_slice(&size.to_le_bytes());
        entry[28..30].copy_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
        zip.extend(entry);
        zip.extend(name.as_bytes());
    }
    let length = u32::try_from(zip.len() - start).unwrap();
    zip.extend(b"PK\x05\x06\0\0\0\0\0\0\0\0");
    zip.extend(length.to_le_bytes());
    zip.extend(u32::try_from(start).unwrap().to_le_bytes());
    zip.extend([0, 0]);
    zip
}

#[test]
fn a_zip_holds_no_more_than_its_size_allows() {
    let open = |zip: Vec<u8>| {
        let limits = ArchiveLimits::NONE;
        Extraction::open(Cursor::new(zip), ArchiveScheme::Zip, limits, "/ws/a.zip", "/ws").map(drop)
    };
    open(overlapping_zip(10, 1000)).unwrap();
    let error = open(overlapping_zip(100, 1 << 30)).unwrap_err();
    assert_eq!(error.context()["reason"], "archive expands too far", "{error:?}");
}

#[test]
fn a_workspace_of_many_files_is_no_bomb() {
    let mut tar = Vec::new();
    let mut writer = TarWriter::new(&mut tar);
    for number in 0..5_000 {
        let name = format!("packages/package-{}/src/deep/er/file-{number}.txt", number % 900);
        writer
            .append(&TarMember::new(name.as_bytes(), TarKind::File), &mut std::io::empty())
            .unwrap();
    }
    writer.finish().unwrap();
    for verdict in verdicts(&gzipped(&tar)) {
        verdict.unwrap();
    }
    const { assert!(MAX_MEMBERS >= 1_000_000) }
}
