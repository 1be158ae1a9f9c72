//! Reads what the kernel sends: messages of a datagram, attributes of a message, and what an answer says. Pure, and bounded by the bytes.

use nix::errno::Errno;

use super::uapi::{
    NLA_HDRLEN, NLA_TYPE_MASK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_HDRLEN, NLMSGERR_ATTR_MSG,
};

/// The most of a text of the kernel that is kept, in characters.
const TEXT_MAX: usize = 200;

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// Content after its header.
    pub(crate) body: &'a [u8],
}

/// A refusal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    /// Text of the kernel beside the number.
    pub(crate) text: Option<String>,
}

/// A part of a datagram that is no message: its length leads beyond the end, or into its own header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Torn;

/// The messages of a datagram, in order. After one that is torn there are no others.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Torn>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((message, after)) = split_message(rest) else {
            rest = &[];
            return Some(Err(Torn));
        };
        rest = after;
        Some(Ok(message))
    })
}

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let message = Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        body: bytes.get(NLMSG_HDRLEN..length)?,
    };
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((message, after))
}

/// The attributes in these bytes: their types without flags, and their values. What is no attribute ends them.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & NLA_TYPE_MASK;
        let value = rest.get(NLA_HDRLEN..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this type.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// A text, up to its NUL.
pub(crate) fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]).into_owned()
}

/// Reads the body of `NLMSG_ERROR`: success, or a refusal. `None` if it is too short for either.
pub(crate) fn acknowledgement(message: &Message<'_>) -> Option<Result<(), Refusal>> {
    let code = i32_at(message.body, 0)?;
    // struct nlmsgerr: the number, and the header of the request, whose own body follows unless the answer says that it is left out.
    let header = NLMSG_HDRLEN + 4;
    let request = usize::try_from(u32_at(message.body, 4).unwrap_or_default()).ok()?;
    let attributes_at = if message.flags & NLM_F_CAPPED == 0 {
        header.saturating_add(
            request
                .saturating_sub(NLMSG_HDRLEN)
                .div_ceil(4)
                .saturating_mul(4),
        )
    } else {
        header
    };
    Some(outcome(code, message, attributes_at))
}

/// Reads the body of `NLMSG_DONE`, the end of a dump: success, or what has ended it early. The kernel leaves the number out where it is 0.
pub(crate) fn end_of_dump(message: &Message<'_>) -> Result<(), Refusal> {
    outcome(i32_at(message.body, 0).unwrap_or_default(), message, 4)
}

fn outcome(code: i32, message: &Message<'_>, attributes_at: usize) -> Result<(), Refusal> {
    if code == 0 {
        return Ok(());
    }
    let has_text = message.flags & NLM_F_ACK_TLVS != 0;
    let said = message.body.get(attributes_at..).filter(|_| has_text);
    Err(Refusal {
        errno: Errno::from_raw(code.wrapping_neg()),
        text: said
            .and_then(|all| attribute(all, NLMSGERR_ATTR_MSG))
            .map(printable)
            .filter(|text| !text.is_empty()),
    })
}

/// A text of the kernel for an error: it may quote a name that somebody else has given.
fn printable(value: &[u8]) -> String {
    let shown = text(value);
    shown
        .chars()
        .filter(|one| !one.is_control())
        .take(TEXT_MAX)
        .collect()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_ne_bytes)
}

pub(crate) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    array_at(bytes, at).map(i32::from_ne_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::super::uapi::{NLMSG_DONE, NLMSG_ERROR};
    use super::*;

    /// An answer with these flags to a request of `request` bytes after its header.
    fn answer(flags: u16, code: i32, request: &[u8], said: Option<&str>) -> (u16, Vec<u8>) {
        let mut body = code.to_ne_bytes().to_vec();
        let length = NLMSG_HDRLEN + request.len();
        body.extend(u32::try_from(length).unwrap().to_ne_bytes());
        body.extend([0; 12]);
        if flags & NLM_F_CAPPED == 0 {
            body.extend(request);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        if let Some(said) = said {
            let length = u16::try_from(NLA_HDRLEN + said.len() + 1).unwrap();
            body.extend([length, NLMSGERR_ATTR_MSG].map(u16::to_ne_bytes).concat());
            body.extend(said.bytes());
            body.push(0);
        }
        (flags, body)
    }

    #[test]
    fn answer_is_read_with_what_the_kernel_says() {
        let texts = NLM_F_ACK_TLVS;
        for (case, (flags, body), expected) in [
            ("success", answer(NLM_F_CAPPED, 0, &[], None), Ok(())),
            (
                "refusal",
                answer(NLM_F_CAPPED, -17, &[], None),
                Err((Errno::EEXIST, None)),
            ),
            (
                "with a text",
                answer(NLM_F_CAPPED | texts, -22, &[], Some("MTU too small")),
                Err((Errno::EINVAL, Some("MTU too small"))),
            ),
            (
                "with the request",
                answer(texts, -95, &[7; 21], Some("no such operation")),
                Err((Errno::EOPNOTSUPP, Some("no such operation"))),
            ),
            (
                "with the request alone",
                answer(0, -1, &[7; 21], Some("it is not asked for")),
                Err((Errno::EPERM, None)),
            ),
            (
                "with a text that is none",
                answer(NLM_F_CAPPED | texts, -1, &[], Some("\n\u{1b}")),
                Err((Errno::EPERM, None)),
            ),
        ] {
            let message = Message {
                kind: NLMSG_ERROR,
                flags,
                sequence: 1,
                body: &body,
            };
            let read = acknowledgement(&message).unwrap();
            let expected = expected.map_err(|(errno, text)| Refusal {
                errno,
                text: text.map(str::to_owned),
            });
            assert_eq!(read, expected, "{case}");
        }
    }

    #[test]
    fn answer_that_is_too_short_is_none() {
        let message = Message {
            kind: NLMSG_ERROR,
            flags: 0,
            sequence: 1,
            body: &[0; 3],
        };
        assert_eq!(acknowledgement(&message), None);
        let end = Message {
            kind: NLMSG_DONE,
            body: &[],
            ..message
        };
        assert_eq!(end_of_dump(&end), Ok(()));
        let code = (-4_i32).to_ne_bytes();
        let end = Message { body: &code, ..end };
        assert_eq!(end_of_dump(&end).unwrap_err().errno, Errno::EINTR);
    }

    #[test]
    fn message_that_leads_beyond_the_datagram_or_into_its_header_ends_it() {
        let mut whole = [20_u32, 0, 5, 0, 9].map(u32::to_ne_bytes).concat();
        let read: Vec<_> = messages(&whole).collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].unwrap().sequence, 5);
        for length in [0_u32, 15, 21, u32::MAX] {
            whole[..4].copy_from_slice(&length.to_ne_bytes());
            let read: Vec<_> = messages(&whole).collect();
            assert_eq!(read, [Err(Torn)], "{length}");
        }
        assert_eq!(messages(&whole[..7]).count(), 1);
    }
}
