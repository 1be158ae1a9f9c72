//! Requests as the kernel reads them: a header, the fixed part of the family, and attributes, which may hold attributes.

use nix::errno::Errno;

use super::error::NetlinkError;
use super::netns::NetNs;
use super::uapi::{NLA_F_NESTED, NLA_HDRLEN, NLM_F_ACK, NLM_F_REQUEST, NLMSG_HDRLEN};

/// Attributes of a request, in the order in which they are added. Numbers are in the machine's byte order, as rtnetlink has them;
/// nf_tables wants big-endian ones, as `bytes`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    bytes: Vec<u8>,
    /// True if an attribute is longer than its length can say: 65,535 bytes with its header.
    is_too_long: bool,
}

/// One request to the kernel.
#[derive(Debug, Clone)]
pub struct Request {
    kind: u16,
    flags: u16,
    /// Description for errors of what was asked, such as `make the bridge sw0`.
    doing: String,
    /// The fixed part of the family, and the attributes.
    body: Attributes,
    /// The refusals that say that it is so already.
    done_by: &'static [Errno],
    /// The namespace whose descriptor is in the request: open until the request has been sent.
    _names: Option<NetNs>,
}

// === impl Attributes ===

impl Attributes {
    /// Adds an attribute with these bytes.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.put(kind, |all| all.bytes.extend_from_slice(value));
    }

    /// Adds a byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Adds a number in the machine's byte order.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Adds a number in the machine's byte order.
    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Adds a text, which the kernel ends at the first NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.put(kind, |all| {
            all.bytes.extend_from_slice(value.as_bytes());
            all.bytes.push(0);
        });
    }

    /// Adds an attribute that holds what `write` adds.
    pub fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        self.put(kind | NLA_F_NESTED, write);
    }

    /// Adds bytes that are no attribute: the fixed part before attributes. They are padded to four.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn put(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; NLA_HDRLEN]);
        write(self);
        match u16::try_from(self.bytes.len() - start) {
            Ok(length) => {
                self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
                self.bytes[start + 2..start + NLA_HDRLEN].copy_from_slice(&kind.to_ne_bytes());
            }
            Err(_) => self.is_too_long = true,
        }
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

// === impl Request ===

impl Request {
    /// A request of this type and with these flags, to which `NLM_F_REQUEST` is added. `header` is the fixed part of the family,
    /// such as `struct ifinfomsg`. `doing` says in errors what was asked, after "cannot".
    ///
    /// The kernel answers one without `NLM_F_ACK` only if it refuses it: see [`Request::acknowledged`].
    #[must_use]
    pub fn new(kind: u16, flags: u16, header: &[u8], doing: String) -> Self {
        let mut body = Attributes::default();
        body.fixed(header);
        Self {
            kind,
            flags: flags | NLM_F_REQUEST,
            doing,
            body,
            done_by: &[],
            _names: None,
        }
    }

    /// The same, answered by the kernel also if it succeeds.
    #[must_use]
    pub fn acknowledged(mut self) -> Self {
        self.flags |= NLM_F_ACK;
        self
    }

    /// The same, with these refusals taken for success: `EEXIST` where what is there already is wanted, `ENODEV` where it is to go.
    #[must_use]
    pub fn done_by(mut self, refusals: &'static [Errno]) -> Self {
        self.done_by = refusals;
        self
    }

    /// The same, with the attributes that `write` adds.
    #[must_use]
    pub fn with(mut self, write: impl FnOnce(&mut Attributes)) -> Self {
        write(&mut self.body);
        self
    }

    /// The same, keeping this namespace open: its descriptor is among the attributes.
    #[must_use]
    pub(crate) fn naming(mut self, namespace: &NetNs) -> Self {
        self._names = Some(namespace.clone());
        self
    }

    /// Returns what was asked, for errors.
    #[must_use]
    pub fn doing(&self) -> &str {
        &self.doing
    }

    pub(crate) const fn flags(&self) -> u16 {
        self.flags
    }

    pub(crate) fn is_done_by(&self, refusal: Errno) -> bool {
        self.done_by.contains(&refusal)
    }

    /// Appends it as the kernel reads it.
    pub(crate) fn encode(&self, sequence: u32, into: &mut Vec<u8>) -> Result<(), NetlinkError> {
        let too_long = || NetlinkError::TooLong {
            doing: self.doing.clone(),
        };
        if self.body.is_too_long {
            return Err(too_long());
        }
        let length = u32::try_from(NLMSG_HDRLEN + self.body.bytes.len()).map_err(|_| too_long())?;
        // struct nlmsghdr: length, type, flags, sequence, port; the kernel fills in the port.
        into.extend(length.to_ne_bytes());
        into.extend(self.kind.to_ne_bytes());
        into.extend(self.flags.to_ne_bytes());
        into.extend(sequence.to_ne_bytes());
        into.extend(0_u32.to_ne_bytes());
        into.extend_from_slice(&self.body.bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::decode::attributes;
    use super::*;

    fn body(write: impl FnOnce(&mut Attributes)) -> Vec<u8> {
        let mut all = Attributes::default();
        write(&mut all);
        all.bytes
    }

    #[test]
    fn attributes_are_padded_and_their_lengths_are_not() {
        let text = body(|all| all.text(3, "lo"));
        assert_eq!(text[..4], [7_u16, 3].map(u16::to_ne_bytes).concat());
        assert_eq!(text[4..], *b"lo\0\0");
        let nested = body(|all| all.nest(18, |inner| inner.u8(1, 9)));
        assert_eq!(
            nested[..4],
            [12_u16, 18 | NLA_F_NESTED].map(u16::to_ne_bytes).concat()
        );
        assert_eq!(nested.len(), 12);
    }

    #[test]
    fn attribute_that_its_length_cannot_say_is_an_error_wherever_it_is() {
        let most = vec![0; usize::from(u16::MAX) - NLA_HDRLEN];
        let more = vec![0; most.len() + 1];
        type Write<'a> = &'a dyn Fn(&mut Attributes);
        let cases: [(&str, bool, Write<'_>); 4] = [
            ("the longest", true, &|all| all.bytes(1, &most)),
            ("longer", false, &|all| all.bytes(1, &more)),
            ("one with its content", false, &|all| {
                all.nest(1, |inner| inner.bytes(1, &most));
            }),
            ("one of many", false, &|all| {
                all.u8(1, 1);
                all.nest(2, |inner| {
                    (0..3).for_each(|_| inner.bytes(1, &most[..30_000]))
                });
            }),
        ];
        for (case, is_sent, write) in cases {
            let request = Request::new(16, 0, &[0; 16], "try it".to_owned()).with(write);
            let sent = request.encode(1, &mut Vec::new());
            assert_eq!(sent.is_ok(), is_sent, "{case}: {sent:?}");
        }
    }

    #[test]
    fn request_has_the_length_of_all() {
        let request = Request::new(16, 0x600, &[0; 16], "make it".to_owned())
            .acknowledged()
            .with(|all| all.u32(4, 1_500));
        let mut bytes = Vec::new();
        request.encode(7, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..4], 40_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [16_u16, 0x605].map(u16::to_ne_bytes).concat());
        assert_eq!(bytes[8..12], 7_u32.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(values in prop::collection::vec((0_u16..=0x3fff, prop::collection::vec(any::<u8>(), 0..64)), 0..16)) {
            let bytes = body(|all| values.iter().for_each(|(kind, value)| all.bytes(*kind, value)));
            let read: Vec<_> = attributes(&bytes).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, values);
        }
    }
}
