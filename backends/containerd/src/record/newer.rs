//! Changes of formats as a later version could make them. A build with the feature `newer` writes and reads them beside what
//! this version does; tests run both, one after the other, on the same objects. Any other build has none of it.
//!
//! The label `newer` of an object says what its writer changes:
//!
//! | label | record | identity | phase of a stopped sandbox |
//! |---|---|---|---|
//! | none | of version 2, with a further field | a further field | |
//! | `claim` | likewise | a claim of a kind of its own too | |
//! | `fields` | of version 1, with a further field | a further field | |
//! | `phase` | likewise | likewise | `halted` |
//! | `request` | likewise, and the request of its frontend is of version 2 | likewise | |

#[cfg(not(feature = "newer"))]
pub(crate) use unchanged::phase_written;
#[cfg(not(feature = "newer"))]
pub(super) use unchanged::{phase_read, reads, request_read, written};

#[cfg(feature = "newer")]
pub(crate) use changed::phase_written;
#[cfg(feature = "newer")]
pub(super) use changed::{phase_read, reads, request_read, written};

/// The formats of this version.
#[cfg(not(feature = "newer"))]
mod unchanged {
    use std::collections::{BTreeMap, HashMap};

    use prost_types::Any;

    /// Returns the extensions of an object with these labels of its client as this build writes them. `_record` is the key of
    /// that with the record.
    pub(in crate::record) fn written(
        _labels: &BTreeMap<String, String>,
        extensions: HashMap<String, Any>,
        _record: &str,
    ) -> HashMap<String, Any> {
        extensions
    }

    /// Returns whether this build reads a type of records besides its own.
    pub(in crate::record) const fn reads(_type_url: &str) -> bool {
        false
    }

    /// Returns the request of a frontend as this version writes it.
    pub(in crate::record) const fn request_read(request: Vec<u8>) -> Vec<u8> {
        request
    }

    /// Returns the word that this build writes for a phase of a sandbox with these labels of its client.
    pub(crate) const fn phase_written(
        _labels: &BTreeMap<String, String>,
        word: &'static str,
    ) -> &'static str {
        word
    }

    /// Returns the word of this version for a phase.
    pub(in crate::record) const fn phase_read(word: &str) -> &str {
        word
    }
}

/// The formats of a later version.
#[cfg(feature = "newer")]
mod changed {
    use std::collections::{BTreeMap, HashMap};

    use prost_types::Any;
    use serde_json::{Map, Value, json};

    /// The type of records of a later version.
    const RECORD_TYPE: &str = "switchyard.io/record.v2+json";

    /// The words for a stopped sandbox, of this version and of a later one.
    const STOPPED: &str = "stopped";
    const HALTED: &str = "halted";

    /// The first byte of the request of a frontend, which is its version: in this version and in a later one.
    const REQUEST: u8 = 1;
    const LATER_REQUEST: u8 = 2;

    fn change_of(labels: &BTreeMap<String, String>) -> &str {
        labels.get("newer").map_or("", String::as_str)
    }

    pub(in crate::record) fn written(
        labels: &BTreeMap<String, String>,
        mut extensions: HashMap<String, Any>,
        record: &str,
    ) -> HashMap<String, Any> {
        let change = change_of(labels);
        for (key, extension) in &mut extensions {
            if key != record {
                edit(extension, |fields| change_identity(fields, change));
                continue;
            }
            if !matches!(change, "fields" | "phase" | "request") {
                extension.type_url = RECORD_TYPE.to_owned();
            }
            edit(extension, |fields| {
                fields.insert("fabric".to_owned(), json!({ "link": 3 }));
                if change == "request" {
                    change_request(fields);
                }
            });
        }
        extensions
    }

    fn change_identity(fields: &mut Map<String, Value>, change: &str) {
        fields.insert("region".to_owned(), json!("north"));
        if change != "claim" {
            return;
        }
        let claim = json!({ "kind": "fabric", "link": 3 });
        let claims = fields.get_mut("claims").and_then(Value::as_array_mut);
        let claims = claims.expect("an identity has a list of claims");
        // What was read before has it already.
        if !claims.contains(&claim) {
            claims.push(claim);
        }
    }

    fn change_request(fields: &mut Map<String, Value>) {
        let meta = fields.get_mut("meta");
        match meta.and_then(|meta| meta.get_mut("record")) {
            Some(Value::String(request)) => {
                request.replace_range(..2, &format!("{LATER_REQUEST:02x}"));
            }
            _ => panic!("a record has the request of its frontend"),
        }
    }

    fn edit(extension: &mut Any, change: impl FnOnce(&mut Map<String, Value>)) {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&extension.value).expect("it was just written");
        change(&mut fields);
        extension.value =
            serde_json::to_vec(&fields).expect("what was JSON is JSON with another field");
    }

    pub(in crate::record) fn reads(type_url: &str) -> bool {
        type_url == RECORD_TYPE
    }

    pub(in crate::record) fn request_read(mut request: Vec<u8>) -> Vec<u8> {
        if let Some(version) = request.first_mut()
            && *version == LATER_REQUEST
        {
            *version = REQUEST;
        }
        request
    }

    pub(crate) fn phase_written(
        labels: &BTreeMap<String, String>,
        word: &'static str,
    ) -> &'static str {
        if word == STOPPED && change_of(labels) == "phase" {
            HALTED
        } else {
            word
        }
    }

    pub(in crate::record) fn phase_read(word: &str) -> &str {
        if word == HALTED { STOPPED } else { word }
    }
}
