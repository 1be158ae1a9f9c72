//! Frames of netfilter's netlink messages: headers and attributes, written and read. Reading never fails and never goes beyond the
//! bytes: what is malformed ends an iteration, and a value that is needed is then missing.

use nix::errno::Errno;

/// Length of `struct nlmsghdr`.
const HEADER: usize = 16;
/// Length of `struct nfgenmsg`, which follows in each message of netfilter.
const FAMILY_HEADER: usize = 4;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`.
pub(super) const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: what is listed changed meanwhile.
pub(super) const INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`.
pub(super) const DUMP: u16 = 0x300;
/// `NLM_F_CREATE`.
pub(super) const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`.
pub(super) const APPEND: u16 = 0x800;
/// `NLMSG_ERROR`: an acknowledgement, or an error.
pub(super) const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
pub(super) const DONE: u16 = 3;
/// `NFNL_SUBSYS_CTNETLINK`, in the upper byte of a message's kind.
pub(super) const CONNTRACK: u16 = 1 << 8;
/// `NFNL_SUBSYS_NFTABLES`.
pub(super) const NFTABLES: u16 = 10 << 8;
/// `NLA_F_NESTED`: the attribute holds attributes.
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`.
const ATTRIBUTE_KIND: u16 = 0x3fff;

/// The headers of a message that is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct NfHead {
    /// Subsystem and operation.
    pub(super) kind: u16,
    /// Flags, to which the one of a request is added.
    pub(super) flags: u16,
    /// The number by which answers name this message.
    pub(super) sequence: u32,
    /// The family of addresses, or 0.
    pub(super) family: u8,
    /// `res_id` of `struct nfgenmsg`.
    pub(super) resource: u16,
}

/// Messages that are being written, one after the other.
#[derive(Debug, Default)]
pub(super) struct NfWriter {
    bytes: Vec<u8>,
    too_large: bool,
}

impl NfWriter {
    /// Adds a message with the attributes that `body` writes.
    pub(super) fn message(&mut self, head: NfHead, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend(head.kind.to_ne_bytes());
        self.bytes.extend((head.flags | REQUEST).to_ne_bytes());
        self.bytes.extend(head.sequence.to_ne_bytes());
        self.bytes.extend(0_u32.to_ne_bytes());
        self.bytes.extend([head.family, 0]);
        self.bytes.extend(head.resource.to_be_bytes());
        body(self);
        match u32::try_from(self.bytes.len() - start) {
            Ok(length) => self.write_at(start, &length.to_ne_bytes()),
            Err(_) => self.too_large = true,
        }
    }

    /// Adds an attribute.
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |to| {
            to.bytes.extend(value);
            let padded = aligned(to.bytes.len());
            to.bytes.resize(padded, 0);
            value.len()
        });
    }

    /// Adds an attribute that is a number, which netfilter has in network byte order.
    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// Adds an attribute that is a text, which ends with a NUL.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// Adds an attribute that holds those that `body` writes.
    pub(super) fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        self.attribute(kind | NESTED, |to| {
            let start = to.bytes.len();
            body(to);
            to.bytes.len() - start
        });
    }

    /// Returns the messages, or `None` if a part of them is longer than the format allows.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        (!self.too_large).then_some(self.bytes)
    }

    /// Adds an attribute; `value` writes what it holds, and returns the length of that without padding.
    fn attribute(&mut self, kind: u16, value: impl FnOnce(&mut Self) -> usize) {
        let start = self.bytes.len();
        self.bytes.extend(0_u16.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        let length = value(self) + 4;
        match u16::try_from(length) {
            Ok(length) => self.write_at(start, &length.to_ne_bytes()),
            Err(_) => self.too_large = true,
        }
    }

    fn write_at(&mut self, start: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(start..start + value.len()) {
            place.copy_from_slice(value);
        }
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct NfMessage<'a> {
    /// Subsystem and operation, or a kind of netlink itself.
    pub(super) kind: u16,
    pub(super) flags: u16,
    /// That of the request which it answers.
    pub(super) sequence: u32,
    /// The port id of the socket that caused it, or 0.
    pub(super) port: u32,
    /// The whole message with its header, up to the end of what was received.
    pub(super) raw: &'a [u8],
    /// True if all of it was received.
    pub(super) whole: bool,
}

impl<'a> NfMessage<'a> {
    /// Returns the family of addresses, or 0.
    pub(super) fn family(&self) -> u8 {
        self.raw.get(HEADER).copied().unwrap_or(0)
    }

    /// Returns the attributes.
    pub(super) fn body(&self) -> &'a [u8] {
        self.raw.get(HEADER + FAMILY_HEADER..).unwrap_or_default()
    }

    /// Returns what an answer reports: nothing for success. One without a number is malformed, and reported as EBADMSG.
    pub(super) fn outcome(&self) -> Result<(), Errno> {
        match self.raw.get(HEADER..).and_then(|rest| u32_at(rest, 0)) {
            Some(0) => Ok(()),
            Some(code) => Err(Errno::from_raw(code.cast_signed().wrapping_neg())),
            None => Err(Errno::EBADMSG),
        }
    }
}

/// Returns the messages of a datagram, up to the first malformed one.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = NfMessage<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)?).ok()?;
        let kind = u16_at(rest, 4)?;
        let flags = u16_at(rest, 6)?;
        let sequence = u32_at(rest, 8)?;
        let port = u32_at(rest, 12)?;
        if length < HEADER {
            return None;
        }
        let whole = length <= rest.len();
        let raw = rest.get(..length.min(rest.len()))?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(NfMessage {
            kind,
            flags,
            sequence,
            port,
            raw,
            whole,
        })
    })
}

/// Returns the attributes of a body with their kinds, up to the first malformed one.
pub(super) fn attributes(body: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & ATTRIBUTE_KIND;
        let value = rest.get(4..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the first attribute of this kind.
pub(super) fn attribute(body: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(body).find_map(|(found, value)| (found == kind).then_some(value))
}

/// Returns the first attribute of this kind as a number in network byte order.
pub(super) fn number(body: &[u8], kind: u16) -> Option<u32> {
    let bytes = attribute(body, kind)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Returns the first attribute of this kind as a text.
pub(super) fn text(body: &[u8], kind: u16) -> Option<&str> {
    let bytes = attribute(body, kind)?;
    std::str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()
}

/// Returns a length with the padding that follows it.
pub(super) fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], start: usize) -> Option<u16> {
    let part = bytes.get(start..start + 2)?;
    Some(u16::from_ne_bytes(part.try_into().ok()?))
}

fn u32_at(bytes: &[u8], start: usize) -> Option<u32> {
    let part = bytes.get(start..start + 4)?;
    Some(u32::from_ne_bytes(part.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> NfHead {
        NfHead {
            kind: NFTABLES,
            flags: ACK,
            sequence: 7,
            family: 2,
            resource: 10,
        }
    }

    #[test]
    fn what_is_malformed_ends_the_iteration() {
        let mut writer = NfWriter::default();
        writer.message(head(), |body| body.number(1, 5));
        let good = writer.finish().unwrap();
        let with_length = |length: u32| {
            let mut bytes = good.clone();
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes
        };
        for (name, bytes, count) in [
            ("whole", good.clone(), 1),
            ("nothing", Vec::new(), 0),
            ("half a header", good[..9].to_vec(), 0),
            ("length of nothing", with_length(0), 0),
            ("length below a header", with_length(15), 0),
            ("length beyond the end", with_length(400), 1),
            ("largest length", with_length(u32::MAX), 1),
            (
                "a second half",
                [good.clone(), good[..8].to_vec()].concat(),
                1,
            ),
        ] {
            assert_eq!(messages(&bytes).count(), count, "{name}");
        }
        let cut = with_length(400);
        assert!(!messages(&cut).next().unwrap().whole);
        let short = [3_u8, 0, 1, 0, 9, 9, 9, 9];
        assert_eq!(attributes(&short).count(), 0);
    }

    #[test]
    fn attribute_that_is_too_long_is_not_written() {
        for (length, fits) in [(65_000, true), (65_531, true), (65_532, false)] {
            let mut writer = NfWriter::default();
            writer.message(head(), |body| body.bytes(1, &vec![0; length]));
            assert_eq!(writer.finish().is_some(), fits, "{length}");
        }
        let mut writer = NfWriter::default();
        writer.message(head(), |body| {
            body.nest(1, |list| {
                list.bytes(1, &[0; 40_000]);
                list.bytes(2, &[0; 40_000]);
            });
        });
        assert!(writer.finish().is_none());
    }

    proptest! {
        #[test]
        fn written_attributes_are_read_again(values in proptest::collection::vec((1_u16..64, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut writer = NfWriter::default();
            writer.message(head(), |body| {
                body.nest(9, |list| values.iter().for_each(|(kind, value)| list.bytes(*kind, value)));
            });
            writer.message(head(), |body| body.text(3, "name"));
            let bytes = writer.finish().unwrap();
            let read: Vec<_> = messages(&bytes).collect();
            prop_assert_eq!(read.len(), 2);
            prop_assert!(read.iter().all(|message| message.whole && message.sequence == 7 && message.family() == 2));
            let list = attribute(read[0].body(), 9).unwrap();
            let again: Vec<_> = attributes(list).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(again, values);
            prop_assert_eq!(text(read[1].body(), 3), Some("name"));
        }
    }
}
