//! Whether a log is what was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::head::{KnownHead, SignedHead};
use super::key::AuditPublicKey;
use super::log::{head, segment_path, segments};
use super::read::unreadable;
use super::record::{Digest, Line, MAX_LINE};
use super::report::{AuditProblem, AuditReport};
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

/// Verifies the whole log of a session; with a key, also that the log is signed by it to its end,
/// and not shorter than when it was last signed.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no log of that session; others if it cannot be read.
/// Problems of the log itself are in the report.
pub fn verify(home: &Path, id: &SessionId, key: Option<AuditPublicKey>) -> Result<AuditReport> {
    let folder = super::audit_folder(home, id);
    let signed = super::head::read(&folder, id).map_err(|error| unreadable(&folder, error))?;
    if matches!(signed, KnownHead::None) && !folder.exists() {
        return Err(no_log(id));
    }
    let mut check = Check::new(id, key, head(&folder), signed);
    walk(&folder, |step| {
        check.step(step);
        true
    })?;
    Ok(check.report())
}

/// What is found in a log, one after the other.
pub(super) enum LogItem {
    File,
    Record(Line),
    /// Something that is no record. A write that was cut off has no line end.
    Other {
        from: u64,
        bytes: Vec<u8>,
        has_end: bool,
    },
}

pub(super) fn no_log(id: &SessionId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no audit log of session {id}"))
}

/// Goes through a log until `visit` has enough. One that has no file yet has no records.
pub(super) fn walk(folder: &Path, mut visit: impl FnMut(LogItem) -> bool) -> Result<()> {
    let failed = |error| unreadable(folder, error);
    let numbers = segments(folder).map_err(failed)?;
    for number in numbers {
        if !visit(LogItem::File) {
            return Ok(());
        }
        let file = File::open(segment_path(folder, number)).map_err(failed)?;
        let mut file = BufReader::new(file);
        let mut offset = 0;
        loop {
            let mut line = Vec::new();
            // Nothing that is longer is a record of ours.
            let most = 4 * MAX_LINE as u64;
            let read = file.by_ref().take(most).read_until(b'\n', &mut line).map_err(failed)?;
            if read == 0 {
                break;
            }
            let has_end = line.last() == Some(&b'\n');
            if has_end {
                line.pop();
            }
            let step = match Line::parse(&line) {
                Some(line) if has_end => LogItem::Record(line),
                _ => LogItem::Other { from: offset, bytes: line, has_end },
            };
            if !visit(step) {
                return Ok(());
            }
            offset += read as u64;
        }
    }
    Ok(())
}

struct Check {
    id: SessionId,
    wanted: Option<AuditPublicKey>,
    noted: Option<(u64, Digest)>,
    report: AuditReport,
    last: u64,
    hash: Digest,
    /// What is no record and may turn out to be a write that was cut off.
    open: Option<TornWrite>,
    signer: Option<AuditPublicKey>,
    /// The last record that is a signature, or signed.
    covered: u64,
    /// What was signed last, as is kept elsewhere.
    signed: KnownHead,
}

/// Something that is no record.
struct TornWrite {
    from: u64,
    hasher: blake3::Hasher,
    length: u64,
    /// The front of it.
    front: Vec<u8>,
    is_zeros: bool,
    has_end: bool,
}

impl TornWrite {
    fn new(from: u64) -> Self {
        let hasher = blake3::Hasher::new();
        Self { from, hasher, length: 0, front: Vec::new(), is_zeros: true, has_end: false }
    }

    fn add(&mut self, bytes: &[u8], has_end: bool) {
        if self.has_end {
            self.push(b"\n");
        }
        self.push(bytes);
        self.has_end = has_end;
    }

    fn push(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        let room = (4 * MAX_LINE).saturating_sub(self.front.len());
        self.front.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.is_zeros &= bytes.iter().all(|byte| *byte == 0);
    }

    /// Whether it can be the beginning of a record, or what a file system leaves of one: no line end, and
    /// zeros where nothing reached the disk.
    fn is_torn(&self) -> bool {
        let data = self.front.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let is_padded = (data as u64) < self.length;
        let data = &self.front[..data];
        let is_longer =
            !is_padded && data.split_last().is_some_and(|(_, bytes)| Line::parse(bytes).is_some());
        let begins = data.starts_with(b"{\"seq\":") || b"{\"seq\":".starts_with(data);
        !self.has_end && (self.is_zeros || (begins && !is_longer && !data.contains(&b'\n')))
    }
}

impl Check {
    fn new(
        id: &SessionId,
        key: Option<AuditPublicKey>,
        noted: Option<(u64, Digest)>,
        signed: KnownHead,
    ) -> Self {
        let hash = Digest::first(id);
        let report = AuditReport {
            id: id.clone(),
            records: 0,
            files: 0,
            head: hash.to_string(),
            problems: Vec::new(),
            mended: 0,
            torn: 0,
            signed: None,
            key: None,
            is_ended: false,
        };
        let (id, wanted) = (id.clone(), key);
        let (open, signer, covered) = (None, None, 0);
        Self { id, wanted, noted, report, last: 0, hash, open, signer, covered, signed }
    }

    fn step(&mut self, step: LogItem) {
        match step {
            LogItem::File => {
                self.give_up();
                self.report.files += 1;
            }
            LogItem::Record(line) => self.record(&line),
            LogItem::Other { from, bytes, has_end } => {
                self.open.get_or_insert_with(|| TornWrite::new(from)).add(&bytes, has_end);
            }
        }
    }

    fn problem(&mut self, problem: AuditProblem) {
        // Whoever wants all of thousands can count them.
        if self.report.problems.len() < 100 {
            self.report.problems.push(problem);
        }
    }

    fn record(&mut self, line: &Line) {
        self.report.records += 1;
        if let Some(open) = self.open.take() {
            let hash = Digest(*open.hasher.finalize().as_bytes());
            let says_so = line.text("kind") == Some("torn")
                && line.number("from") == Some(open.from)
                && line.text("blake3") == Some(&hash.to_string());
            match says_so {
                true => self.report.mended += 1,
                false => self.problem(AuditProblem::Damaged { after: self.last }),
            }
        }
        let seq = line.seq;
        if seq <= self.last {
            self.problem(AuditProblem::Moved { seq });
        } else if seq > self.last + 1 {
            self.problem(AuditProblem::Missing { from: self.last + 1, to: seq - 1 });
        } else if self.hash.then(line.body) != line.hash {
            self.problem(AuditProblem::Changed { seq });
        }
        let is_other = |(known, hash): (u64, Digest)| known == seq && hash != line.hash;
        if self.noted.is_some_and(is_other) || self.signed_last().is_some_and(is_other) {
            self.problem(AuditProblem::Changed { seq });
        }
        match line.text("kind") {
            Some("open") if line.text("session") != Some(self.id.as_str()) => {
                self.problem(AuditProblem::Changed { seq });
            }
            Some("seal") => self.seal(line),
            _ => {}
        }
        self.report.is_ended = line.text("state") == Some("deleted")
            || (self.report.is_ended && line.text("kind") == Some("seal"));
        self.last = self.last.max(seq);
        self.hash = line.hash;
    }

    fn seal(&mut self, line: &Line) {
        let signer = line.text("key").and_then(|key| key.parse::<AuditPublicKey>().ok());
        let expected = self.wanted.or(self.signer);
        let is_valid = signer.is_some_and(|signer| {
            let sig = line.text("sig").unwrap_or_default();
            expected.is_none_or(|expected| expected == signer)
                && line.number("of") == Some(self.last)
                && line.text("head") == Some(&self.hash.to_string())
                && signer.signed(&self.id, self.last, &self.hash, sig)
        });
        if !is_valid {
            self.problem(AuditProblem::BadSeal { seq: line.seq });
            return;
        }
        self.signer = signer;
        self.report.signed = Some(self.last);
        self.covered = line.seq;
    }

    /// The last record that was signed, as is kept elsewhere.
    fn signed_last(&self) -> Option<(u64, Digest)> {
        match &self.signed {
            KnownHead::Signed(head) => Some((head.seq, head.hash)),
            KnownHead::None | KnownHead::Bad => None,
        }
    }

    /// What the head that is kept elsewhere says about the log.
    fn compare_with_head(&mut self) {
        let is_by_another = |head: &SignedHead| {
            self.wanted.or(self.signer).is_some_and(|expected| expected != head.key)
        };
        match &self.signed {
            KnownHead::None if self.wanted.is_some() => self.problem(AuditProblem::NoHead),
            KnownHead::None => {}
            KnownHead::Signed(head) if !is_by_another(head) => {
                let seq = head.seq;
                if seq > self.last && self.noted.is_none_or(|(noted, _)| noted < seq) {
                    self.problem(AuditProblem::Missing { from: self.last + 1, to: seq });
                }
            }
            KnownHead::Signed(_) | KnownHead::Bad => self.problem(AuditProblem::BadHead),
        }
    }

    /// What is no record, and nothing after it says why.
    fn give_up(&mut self) {
        if self.open.take().is_some() {
            self.problem(AuditProblem::Damaged { after: self.last });
        }
    }

    fn report(mut self) -> AuditReport {
        match self.open.take() {
            Some(open) if open.is_torn() => self.report.torn = open.length,
            Some(_) => self.problem(AuditProblem::Damaged { after: self.last }),
            None => {}
        }
        if let Some((noted, _)) = self.noted
            && noted > self.last
        {
            self.problem(AuditProblem::Missing { from: self.last + 1, to: noted });
        }
        self.compare_with_head();
        match (self.wanted, self.report.signed) {
            (Some(_), None) => self.problem(AuditProblem::Unsigned),
            (Some(_), Some(_)) if self.covered < self.last => {
                let (from, to) = (self.covered + 1, self.last);
                self.problem(AuditProblem::UnsignedEnd { from, to });
            }
            _ => {}
        }
        self.report.head = self.hash.to_string();
        self.report.key = self.signer.map(|key| key.to_string());
        self.report
    }
}
