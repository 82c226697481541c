//! Proofs that a record is part of an audit log.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::key::AuditPublicKey;
use super::record::{Digest, split};
use super::verify::{LogItem, no_log, walk};
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

/// A proof that a record is part of a log. It can be checked without the log, and discloses nothing
/// of other records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditProof {
    /// The session.
    pub session: SessionId,
    /// The record, as its line in the log.
    pub record: String,
    /// The hash of the chain before the record.
    pub before: String,
    /// The hashes of the bodies of the records after it.
    pub after: Vec<String>,
    /// The number of the last record that the proof covers.
    pub of: u64,
    /// The hash of the chain at that record.
    pub head: String,
    /// The key that signed this hash, if it is signed.
    pub key: Option<String>,
    /// The signature.
    pub sig: Option<String>,
}

/// Proves that a record is part of the log of a session: up to the next signature, or to the end of
/// the log if there is none.
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
    /// Checks the proof; with a key, also that it is signed by it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if the proof does not hold.
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
