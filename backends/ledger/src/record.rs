//! The format of the journal: one line for each record, with a newline before and after it.
//!
//! ```text
//! 1 5f3a90c1 {"lease":{"token":"00…","owner":"nomad","slots":["acme-0"]}}
//!
//! 1 09be41d2 {"ended":["00…"]}
//! ```
//!
//! The version is followed by the CRC-32 of the version and the rest of the line, then the document. The
//! newline before a record separates it from anything before it: damage to one newline costs one record, and
//! a record that was appended to an incomplete one can be read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use switchyard_core::id::{InvalidSlotId, LeaseToken, Owner, SlotId};
use switchyard_core::ledger::{LEASE_SLOTS_MAX, StoredLease};

/// The version of the records that are written and read.
const VERSION: &str = "1";

/// The content of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    /// The leases that have not ended, with the size of their records in bytes.
    pub(crate) leases: BTreeMap<LeaseToken, (StoredLease, u64)>,
    /// The numbers, counted from 1, of the lines that are not intact records.
    pub(crate) damaged: Vec<usize>,
    /// True if the last line is not an intact record: writing it was interrupted.
    pub(crate) is_torn: bool,
}

/// An intact record that this build cannot decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownRecord {
    /// The number of its line, counted from 1.
    pub(crate) line: usize,
    /// The defect.
    pub(crate) why: String,
}

/// The document of a record.
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

/// Encodes the record of a lease.
pub(crate) fn of_lease(lease: &StoredLease) -> Vec<u8> {
    let StoredLease {
        token,
        owner,
        slots,
    } = lease;
    let token = token.to_string();
    let owner = owner.as_str().to_owned();
    let slots = slots.iter().map(ToString::to_string).collect();
    encode(&Document::Lease(Lease {
        token,
        owner,
        slots,
    }))
}

/// Encodes the record of ended leases.
pub(crate) fn of_end(tokens: &[LeaseToken]) -> Vec<u8> {
    encode(&Document::Ended(
        tokens.iter().map(ToString::to_string).collect(),
    ))
}

/// Reads a journal. Lines that are not intact records are skipped and reported.
///
/// # Errors
/// An intact record that cannot be decoded: it was written by a later version, and the devices in it must not
/// be given out again.
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
        let unknown = |why: String| UnknownRecord {
            line: line_number,
            why,
        };
        if version != VERSION {
            return Err(unknown(format!(
                "its version is {version:?}, and this build reads {VERSION:?}"
            )));
        }
        let document: Document =
            serde_json::from_str(document).map_err(|fault| unknown(fault.to_string()))?;
        // Including the newlines around it.
        let size = u64::try_from(line.len() + 2).unwrap_or(u64::MAX);
        contents.apply(document, size).map_err(unknown)?;
    }
    // A complete journal ends with a newline, after which `split` returns an empty line.
    let last = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    if contents.damaged.last() == Some(&last) {
        contents.damaged.pop();
        contents.is_torn = true;
    }
    Ok(contents)
}

/// The version and the document of a line, if its checksum is correct.
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
        let Lease {
            token,
            owner,
            slots,
        } = lease;
        let owner = Owner::parse(&owner).ok_or_else(|| format!("{owner:?} is no owner"))?;
        if slots.is_empty() || slots.len() > LEASE_SLOTS_MAX {
            return Err(format!("a lease of {} slots", slots.len()));
        }
        let slots = slots
            .into_iter()
            .map(SlotId::new)
            .collect::<Result<_, InvalidSlotId>>();
        let slots = slots.map_err(|fault| fault.to_string())?;
        Ok(Self {
            token: parse_token(&token)?,
            owner,
            slots,
        })
    }
}

fn parse_token(text: &str) -> Result<LeaseToken, String> {
    text.parse()
        .map_err(|fault: switchyard_core::id::ParseIdError| fault.to_string())
}

#[cfg(test)]
mod tests;
