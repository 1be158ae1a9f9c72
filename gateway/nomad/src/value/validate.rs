//! Checks whether bytes are exactly one MessagePack value, and describes the error.
//!
//! The decoder gives no descriptions, and accepts more than MessagePack: it decodes the byte 0xc1, which
//! begins no value, as nil, so that an option would silently be unset. Go's codec, with which the docker
//! driver decodes the same bytes, refuses that byte wherever a value or a key is expected, and so does this
//! check. It also refuses two things that Go accepts, since no agent sends them: bytes after the value, and
//! unlimited nesting.

/// The deepest nesting of lists and blocks; the schemas of this driver are far below it.
pub(super) const MAX_DEPTH: usize = 16;

/// The bytes that follow the first ones of a value.
enum Rest {
    /// This many bytes of content.
    Bytes(u64),
    /// This many values.
    Values(u64),
    /// Nothing: no value begins with this byte.
    Never,
}

/// Checks the structure of the value without decoding it.
///
/// # Errors
/// The error and its position.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let cut = || format!("it is cut short after {} bytes", bytes.len());
    let mut rest = bytes;
    // How many values are outstanding, for each open list and block.
    let mut due = vec![1_u64];
    while let Some(left) = due.last_mut() {
        if *left == 0 {
            due.pop();
            continue;
        }
        *left -= 1;
        let at = bytes.len() - rest.len();
        match begin(&mut rest).ok_or_else(cut)? {
            Rest::Never => return Err(format!("byte {at} is 0xc1, which begins no value")),
            Rest::Values(_) if due.len() > MAX_DEPTH => {
                return Err(format!(
                    "byte {at} is more than {MAX_DEPTH} lists and blocks deep"
                ));
            }
            Rest::Values(values) => due.push(values),
            Rest::Bytes(length) => {
                let own = usize::try_from(length)
                    .ok()
                    .and_then(|length| rest.split_at_checked(length));
                (_, rest) = own.ok_or_else(cut)?;
            }
        }
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "it ends after {} of {} bytes",
            bytes.len() - rest.len(),
            bytes.len()
        ))
    }
}

/// Consumes the first bytes of a value; `None` if they are incomplete.
fn begin(rest: &mut &[u8]) -> Option<Rest> {
    let (&first, after) = rest.split_first()?;
    *rest = after;
    Some(match first {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => Rest::Bytes(0),
        0x80..=0x8f => Rest::Values(2 * u64::from(first & 0x0f)),
        0x90..=0x9f => Rest::Values(u64::from(first & 0x0f)),
        0xa0..=0xbf => Rest::Bytes(u64::from(first & 0x1f)),
        0xc1 => Rest::Never,
        0xc4 | 0xd9 => Rest::Bytes(number(rest, 1)?),
        0xc5 | 0xda => Rest::Bytes(number(rest, 2)?),
        0xc6 | 0xdb => Rest::Bytes(number(rest, 4)?),
        // The type of an extension takes one more byte.
        0xc7 => Rest::Bytes(number(rest, 1)? + 1),
        0xc8 => Rest::Bytes(number(rest, 2)? + 1),
        0xc9 => Rest::Bytes(number(rest, 4)? + 1),
        0xd4..=0xd8 => Rest::Bytes((1 << (first - 0xd4)) + 1),
        0xcc | 0xd0 => Rest::Bytes(1),
        0xcd | 0xd1 => Rest::Bytes(2),
        0xca | 0xce | 0xd2 => Rest::Bytes(4),
        0xcb | 0xcf | 0xd3 => Rest::Bytes(8),
        0xdc => Rest::Values(number(rest, 2)?),
        0xdd => Rest::Values(number(rest, 4)?),
        0xde => Rest::Values(2 * number(rest, 2)?),
        0xdf => Rest::Values(2 * number(rest, 4)?),
    })
}

/// Consumes a big-endian number of this many bytes, at most four.
fn number(rest: &mut &[u8], bytes: usize) -> Option<u64> {
    let (digits, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(
        digits
            .iter()
            .fold(0, |number, digit| number << 8 | u64::from(*digit)),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rmpv::Value;

    use super::*;

    /// One value of each form, with the byte 0xc1 as content.
    const FORMS: [&[u8]; 24] = [
        b"\x7f",
        b"\xc0",
        b"\xc2",
        b"\xff",
        b"\xcc\xc1",
        b"\xcd\xc1\xc1",
        b"\xce\xc1\xc1\xc1\xc1",
        b"\xcf\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1",
        b"\xd0\xc1",
        b"\xd1\xc1\xc1",
        b"\xd2\xc1\xc1\xc1\xc1",
        b"\xd3\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1",
        b"\xca\xc1\xc1\xc1\xc1",
        b"\xcb\xc1\xc1\xc1\xc1\xc1\xc1\xc1\xc1",
        b"\xa2\xc1\xc1",
        b"\xd9\x01\xc1",
        b"\xc4\x01\xc1",
        b"\xda\x00\x01\xc1",
        b"\xc5\x00\x01\xc1",
        b"\xc6\x00\x00\x00\x01\xc1",
        b"\xd6\xc1\xc1\xc1\xc1\xc1",
        b"\xc7\x02\xc1\xc1\xc1",
        b"\xc8\x00\x01\xc1\xc1",
        b"\xc9\x00\x00\x00\x01\xc1\xc1",
    ];

    #[track_caller]
    fn unsound(bytes: &[u8], why: &str) {
        assert_eq!(check(bytes).expect_err("it is invalid"), why, "{bytes:?}");
    }

    #[test]
    fn every_form_validates_and_no_prefix_does() {
        for form in FORMS {
            assert_eq!(check(form), Ok(()), "{form:?}");
            for end in 0..form.len() {
                unsound(&form[..end], &format!("it is cut short after {end} bytes"));
            }
            let long = [form, b"\x00\x00"].concat();
            unsound(
                &long,
                &format!("it ends after {} of {} bytes", form.len(), long.len()),
            );
            // In a list of each form, as a key, and as the value of a key.
            for begin in [
                &b"\x92"[..],
                b"\xdc\x00\x02",
                b"\xdd\x00\x00\x00\x02",
                b"\x81",
                b"\xde\x00\x01",
            ] {
                assert_eq!(
                    check(&[begin, form, form].concat()),
                    Ok(()),
                    "{begin:?} {form:?}"
                );
            }
        }
    }

    #[test]
    fn reserved_byte_is_rejected_everywhere() {
        for (bytes, at) in [
            (&b"\xc1"[..], 0),
            (b"\x91\xc1", 1),
            (b"\x81\xc1\xa1x", 1),
            (b"\x81\xa1x\xc1", 3),
            (b"\x82\xa1x\xc0\xa1y\x92\xc0\xc1", 8),
        ] {
            unsound(bytes, &format!("byte {at} is 0xc1, which begins no value"));
        }
    }

    #[test]
    fn huge_or_deep_claims_cost_nothing() {
        for huge in [0xc6, 0xc9, 0xdb, 0xdd, 0xdf] {
            unsound(
                &[huge, 0xff, 0xff, 0xff, 0xff],
                "it is cut short after 5 bytes",
            );
        }
        let deep = |depth| [vec![0x91; depth], vec![0xc0]].concat();
        assert_eq!(check(&deep(MAX_DEPTH)), Ok(()));
        unsound(
            &deep(MAX_DEPTH + 1),
            "byte 16 is more than 16 lists and blocks deep",
        );
        unsound(
            &deep(1_000_000),
            "byte 16 is more than 16 lists and blocks deep",
        );
    }

    proptest! {
        #[test]
        fn valid_values_are_read_completely(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if check(&bytes).is_ok() {
                let mut rest = &bytes[..];
                prop_assert!(rmpv::decode::read_value(&mut rest).is_ok() && rest.is_empty());
            }
        }

        #[test]
        fn encoded_values_validate(texts in proptest::collection::vec(".{0,300}", 0..20), number in any::<i64>()) {
            let texts = texts.into_iter().map(|text| (Value::from(text), Value::from(number))).collect();
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &Value::Map(texts)).expect("a vector takes all");
            prop_assert_eq!(check(&bytes), Ok(()));
        }
    }
}
