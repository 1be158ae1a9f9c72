//! The bytes of the journal: one line for each record, with a line end before it and one after it.
//!
//! ```text
//! 1 5f3a90c1 {"lease":{"token":"00…","owner":"nomad","slots":["acme-0"]}}
//!
//! 1 09be41d2 {"ended":["00…"]}
//! ```
//!
//! First comes the version, then the CRC-32 of the rest of the line with the version before it. The line end before a record keeps it apart
//! from whatever is there: damage to one line end costs one record, and a record is read that was appended to a torn one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::ledger::{LEASE_SLOTS_MAX, StoredLease};

/// The version of the records that are written and read.
const VERSION: &str = "1";

/// What a journal says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The leases that have not ended, each with the size of its record in bytes.
    pub(crate) leases: BTreeMap<LeaseToken, (StoredLease, u64)>,
    /// The numbers of the lines, counted from 1, that are no whole record.
    pub(crate) damaged: Vec<usize>,
    /// The last line is no whole record: the writing of it was cut short.
    pub(crate) is_torn: bool,
}

/// A record that is whole, and that this build does not understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownRecord {
    /// The number of its line, counted from 1.
    pub(crate) line: usize,
    /// What is wrong with it.
    pub(crate) why: String,
}

/// What a record says, in the form in which it is written.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Document {
    Lease(Lease),
    Ended(Vec<String>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lease {
    token: String,
    owner: String,
    slots: Vec<String>,
}

/// The record of a lease.
pub(crate) fn of_lease(lease: &StoredLease) -> Vec<u8> {
    let StoredLease { token, owner, slots } = lease;
    let token = token.to_string();
    let owner = owner.as_str().to_owned();
    let slots = slots.clone();
    encode(&Document::Lease(Lease { token, owner, slots }))
}

/// The record of the end of leases.
pub(crate) fn of_end(tokens: &[LeaseToken]) -> Vec<u8> {
    encode(&Document::Ended(tokens.iter().map(ToString::to_string).collect()))
}

/// Reads a journal. What is no whole record is left out, and its lines are told.
///
/// # Errors
/// A record that is whole and is not understood: a later version wrote it, and what it says must not be given out again.
pub(crate) fn read(bytes: &[u8]) -> Result<Contents, UnknownRecord> {
    let mut contents = Contents::default();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let line_number = number + 1;
        let Some((version, document)) = checked(line) else {
            contents.damaged.push(line_number);
            continue;
        };
        let unknown = |why: String| UnknownRecord { line: line_number, why };
        if version != VERSION {
            return Err(unknown(format!("its version is {version:?}, and this build reads {VERSION:?}")));
        }
        let document: Document =
            serde_json::from_str(document).map_err(|fault| unknown(fault.to_string()))?;
        // With the line ends around it.
        let size = u64::try_from(line.len() + 2).unwrap_or(u64::MAX);
        contents.apply(document, size).map_err(unknown)?;
    }
    // A journal that was not cut short ends with a line end, after which `split` finds an empty line.
    let last = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    if contents.damaged.last() == Some(&last) {
        contents.damaged.pop();
        contents.is_torn = true;
    }
    Ok(contents)
}

/// The version and the document of a line, if it is as it was written.
fn checked(line: &[u8]) -> Option<(&str, &str)> {
    let line = std::str::from_utf8(line).ok()?;
    let (version, rest) = line.split_once(' ')?;
    let (sum, document) = rest.split_once(' ')?;
    (sum == checksum(version, document)).then_some((version, document))
}

fn encode(document: &Document) -> Vec<u8> {
    let document = serde_json::to_string(document).expect("texts can always be written as JSON");
    format!("\n{VERSION} {} {document}\n", checksum(VERSION, &document)).into_bytes()
}

fn checksum(version: &str, document: &str) -> String {
    let mut sum = crc32fast::Hasher::new();
    sum.update(version.as_bytes());
    sum.update(b" ");
    sum.update(document.as_bytes());
    format!("{:08x}", sum.finalize())
}

// === impl Contents ===

impl Contents {
    fn apply(&mut self, document: Document, size: u64) -> Result<(), String> {
        match document {
            Document::Lease(lease) => {
                let lease = StoredLease::try_from(lease)?;
                self.leases.insert(lease.token, (lease, size));
            }
            Document::Ended(tokens) => {
                for token in tokens {
                    self.leases.remove(&parse_token(&token)?);
                }
            }
        }
        Ok(())
    }
}

// === impl StoredLease ===

impl TryFrom<Lease> for StoredLease {
    type Error = String;

    fn try_from(lease: Lease) -> Result<Self, String> {
        let Lease { token, owner, slots } = lease;
        let owner = Owner::parse(&owner).ok_or_else(|| format!("{owner:?} is no owner"))?;
        if slots.is_empty() || slots.len() > LEASE_SLOTS_MAX {
            return Err(format!("a lease of {} slots", slots.len()));
        }
        Ok(Self { token: parse_token(&token)?, owner, slots })
    }
}

fn parse_token(text: &str) -> Result<LeaseToken, String> {
    text.parse().map_err(|fault: switchyard_core::id::ParseIdError| fault.to_string())
}

#[cfg(test)]
mod tests;
