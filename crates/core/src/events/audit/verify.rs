//! Whether a log is what was written.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::head::{KnownHead, SignedHead};
use super::key::AuditPublicKey;
use super::log::{head, segment_path, segments};
use super::read::unreadable;
use super::record::{Digest, Line, MAX_LINE, split};
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

/// What is wrong with a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditProblem {
    /// A record, or the hash before it, is not what was written.
    Changed {
        /// The record.
        seq: u64,
    },
    /// Records are not there.
    Missing {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// A record is not in its place.
    Moved {
        /// The record.
        seq: u64,
    },
    /// Something is there that is no record, and no write that was cut off.
    Damaged {
        /// The last record before it.
        after: u64,
    },
    /// A signature is not by the key, or not over this log.
    BadSeal {
        /// The record with the signature.
        seq: u64,
    },
    /// A key was asked for, and nothing in the log is signed by it.
    Unsigned,
    /// A key was asked for, and the end of the log is not signed.
    UnsignedEnd {
        /// The first record that is not.
        from: u64,
        /// The last one.
        to: u64,
    },
    /// A key was asked for, and nothing outside the log says how far it was signed.
    NoHead,
    /// What says how far the log was signed is not signed itself, or by another key.
    BadHead,
}

impl std::fmt::Display for AuditProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Changed { seq } => write!(f, "record {seq} was changed"),
            Self::Missing { from, to } if from == to => write!(f, "record {from} is missing"),
            Self::Missing { from, to } => write!(f, "records {from} to {to} are missing"),
            Self::Moved { seq } => write!(f, "record {seq} is not in its place"),
            Self::Damaged { after } => {
                write!(f, "something that is no record follows record {after}")
            }
            Self::BadSeal { seq } => write!(f, "the signature in record {seq} is not valid"),
            Self::Unsigned => f.write_str("nothing is signed by the key"),
            Self::UnsignedEnd { from, to } if from == to => {
                write!(f, "record {from} at the end is not signed")
            }
            Self::UnsignedEnd { from, to } => {
                write!(f, "records {from} to {to} at the end are not signed")
            }
            Self::NoHead => f.write_str("nothing says how far it was signed: it may be cut back"),
            Self::BadHead => f.write_str("what says how far it was signed is not valid"),
        }
    }
}

impl AuditProblem {
    /// Whether this may be because the log is being written, or its last writer had no key or was killed.
    #[must_use]
    pub fn is_only_unsigned(&self) -> bool {
        matches!(self, Self::UnsignedEnd { .. })
    }
}

/// What was found out about a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// The session.
    pub id: SessionId,
    /// How many records there are.
    pub records: u64,
    /// In how many files.
    pub files: usize,
    /// The hash at the end: whoever keeps it elsewhere can tell later that nothing was taken away.
    pub head: String,
    /// What is wrong.
    pub problems: Vec<AuditProblem>,
    /// How many writes were cut off by a crash, and went on after that.
    pub mended: u64,
    /// How many bytes at the end are of a write that was cut off. That is no tampering.
    pub torn: u64,
    /// The last record that is covered by a signature.
    pub signed: Option<u64>,
    /// The key that signed.
    pub key: Option<String>,
    /// The log of a session that was deleted ends with that.
    pub is_ended: bool,
}

impl AuditReport {
    /// Whether the log is what was written.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks the whole log of a session; with a key, also that the log is signed by it to its end, and goes as
/// far as it did when it was last signed.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no log of that session; others if it cannot be read. What is
/// wrong with the log itself is in the report.
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
enum LogItem {
    File,
    Record(Line),
    /// Something that is no record. A write that was cut off has no line end.
    Other {
        from: u64,
        bytes: Vec<u8>,
        has_end: bool,
    },
}

fn no_log(id: &SessionId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no audit log of session {id}"))
}

/// Goes through a log until `visit` has enough. One that has no file yet has no records.
fn walk(folder: &Path, mut visit: impl FnMut(LogItem) -> bool) -> Result<()> {
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
    open: Option<Open>,
    signer: Option<AuditPublicKey>,
    /// The last record that is a signature, or signed.
    covered: u64,
    /// What was signed last, as is kept elsewhere.
    signed: KnownHead,
}

/// Something that is no record.
struct Open {
    from: u64,
    hasher: blake3::Hasher,
    length: u64,
    /// The front of it.
    front: Vec<u8>,
    is_zeros: bool,
    has_end: bool,
}

impl Open {
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
                self.open.get_or_insert_with(|| Open::new(from)).add(&bytes, has_end);
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
        let is_good = signer.is_some_and(|signer| {
            let sig = line.text("sig").unwrap_or_default();
            expected.is_none_or(|expected| expected == signer)
                && line.number("of") == Some(self.last)
                && line.text("head") == Some(&self.hash.to_string())
                && signer.signed(&self.id, self.last, &self.hash, sig)
        });
        if !is_good {
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

/// A proof that a record is part of a log, which needs nothing but itself, and says nothing of other
/// records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditProof {
    /// The session.
    pub session: SessionId,
    /// The record, as its line in the log.
    pub record: String,
    /// The hash before it.
    pub before: String,
    /// The hashes of what the records after it say.
    pub after: Vec<String>,
    /// The last record the proof goes to.
    pub of: u64,
    /// The hash there.
    pub head: String,
    /// The key that signed that, if it is signed.
    pub key: Option<String>,
    /// The signature.
    pub sig: Option<String>,
}

/// Proves that a record is part of the log of a session: up to the next signature, or to the end where
/// there is none.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is no such log or record.
pub fn prove(home: &Path, id: &SessionId, seq: u64) -> Result<AuditProof> {
    let folder = super::audit_folder(home, id);
    let mut hash = Digest::first(id);
    let mut proof: Option<AuditProof> = None;
    if !folder.exists() {
        return Err(no_log(id));
    }
    walk(&folder, |step| {
        let LogItem::Record(line) = step else { return true };
        if let Some(proof) = &mut proof {
            if line.text("kind") == Some("seal") && line.number("of") == Some(proof.of) {
                proof.key = line.text("key").map(str::to_owned);
                proof.sig = line.text("sig").map(str::to_owned);
                return false;
            }
            proof.after.push(line.body.to_string());
            proof.of = line.seq;
            proof.head = line.hash.to_string();
        } else if line.seq == seq {
            proof = Some(AuditProof {
                session: id.clone(),
                record: line.text.clone(),
                before: hash.to_string(),
                after: Vec::new(),
                of: seq,
                head: line.hash.to_string(),
                key: None,
                sig: None,
            });
        }
        hash = line.hash;
        true
    })?;
    let missing = || {
        let message = format!("the audit log of session {id} has no record {seq}");
        Error::new(ErrorKind::NotFound, message)
    };
    let proof = proof.ok_or_else(missing)?;
    // A proof that does not hold is none.
    proof.check(None)?;
    Ok(proof)
}

impl AuditProof {
    /// Checks the proof; with a key, also that it is signed by it. What it proves is its record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if it proves nothing.
    pub fn check(&self, key: Option<AuditPublicKey>) -> Result<()> {
        let wrong =
            |why: &str| Err(Error::new(ErrorKind::InvalidInput, format!("no proof: {why}")));
        let (Some((body, hash)), Some(before)) =
            (split(&self.record), Digest::from_hex(&self.before))
        else {
            return wrong("it holds no record");
        };
        let mut chain = before.then(Digest::of(body.as_bytes()));
        if chain != hash {
            return wrong("the record is not what was written");
        }
        for step in &self.after {
            let Some(step) = Digest::from_hex(step) else { return wrong("it is damaged") };
            chain = chain.then(step);
        }
        if chain.to_string() != self.head {
            return wrong("the record does not lead to the end");
        }
        match (&self.key, &self.sig) {
            (Some(by), Some(sig)) => {
                let by: AuditPublicKey = by.parse()?;
                if key.is_some_and(|key| key != by) {
                    return wrong("it is signed by another key");
                }
                match by.signed(&self.session, self.of, &chain, sig) {
                    true => Ok(()),
                    false => wrong("the signature is not valid"),
                }
            }
            _ if key.is_some() => wrong("it is not signed"),
            _ => Ok(()),
        }
    }
}
