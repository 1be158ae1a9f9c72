//! The sandbox store that containerd has since 1.7, as far as its clients can observe it: records by id.
//!
//! Messages are decoded by hand: only the id of each is needed, and a stored record is returned as it was
//! received.

use std::collections::BTreeMap;

/// Prefix of its calls.
pub(super) const SERVICE: &str = "/containerd.services.sandbox.v1.Store/";
/// The gRPC status of an object that exists already.
const ALREADY_EXISTS: &str = "6";
/// The gRPC status of a missing object.
const NOT_FOUND: &str = "5";
/// The gRPC status of a call that makes no sense.
const INVALID: &str = "3";
/// The gRPC status of a call that is not served.
const UNIMPLEMENTED: &str = "12";

/// The stored message of each sandbox, by its id.
#[derive(Debug, Default)]
pub(super) struct Sandboxes(BTreeMap<String, Vec<u8>>);

impl Sandboxes {
    /// The ids, sorted.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> {
        self.0.keys().cloned()
    }

    /// Answers a call: its message, or the status that refuses it.
    pub(super) fn answer(&mut self, path: &str, request: &[u8]) -> Result<Vec<u8>, &'static str> {
        match path.strip_prefix(SERVICE) {
            // `sandbox` is the first field of the request and of the answer, `sandbox_id` that of a sandbox.
            Some("Create") => {
                let sandbox = field(request, 1).ok_or(INVALID)?;
                let id = id(sandbox)?;
                if self.0.contains_key(&id) {
                    return Err(ALREADY_EXISTS);
                }
                self.0.insert(id, sandbox.to_vec());
                Ok(bytes(1, sandbox))
            }
            Some("Delete") => self
                .0
                .remove(&id(request)?)
                .map(|_| Vec::new())
                .ok_or(NOT_FOUND),
            // All are of one gateway, so every filter holds.
            Some("List") => Ok(self
                .0
                .values()
                .flat_map(|sandbox| bytes(1, sandbox))
                .collect()),
            Some(_) | None => Err(UNIMPLEMENTED),
        }
    }
}

/// `PluginsResponse` with the plugin that says that there is a store.
pub(super) fn plugin() -> Vec<u8> {
    bytes(
        1,
        &[text(1, "io.containerd.sandbox.store.v1"), text(2, "local")].concat(),
    )
}

/// A field with a text.
pub(super) fn text(number: u8, text: &str) -> Vec<u8> {
    bytes(number, text.as_bytes())
}

/// A field with bytes, or with a message.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut field = vec![(number << 3) | 2];
    let mut length = content.len();
    while length > 0x7f {
        field.push(u8::try_from(length & 0x7f).expect("seven bits are left") | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).expect("seven bits are left"));
    field.extend_from_slice(content);
    field
}

fn id(message: &[u8]) -> Result<String, &'static str> {
    let id = field(message, 1).ok_or(INVALID)?;
    String::from_utf8(id.to_vec()).map_err(|_| INVALID)
}

/// The first field of this number in a message whose preceding fields are length-delimited as well.
fn field(mut message: &[u8], number: u8) -> Option<&[u8]> {
    loop {
        let (key, rest) = message.split_first()?;
        if key & 7 != 2 {
            return None;
        }
        let (length, rest) = length(rest)?;
        let (content, rest) = rest.split_at_checked(length)?;
        if key >> 3 == number {
            return Some(content);
        }
        message = rest;
    }
}

fn length(mut bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut length = 0;
    let mut shift = 0;
    loop {
        let (byte, rest) = bytes.split_first()?;
        length |= usize::from(byte & 0x7f) << shift;
        bytes = rest;
        if byte & 0x80 == 0 {
            return Some((length, bytes));
        }
        shift += 7;
        if shift > 21 {
            return None;
        }
    }
}
