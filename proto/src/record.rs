//! The encoding of records: what a frontend stores with an object of the gateway, to read it again after a
//! restart. A record is one byte with the version, followed by a protobuf message.

use prost::Message;

/// The version of new records.
const VERSION: u8 = 1;

/// Encodes a record.
#[must_use]
pub fn encode(record: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + record.encoded_len());
    bytes.push(VERSION);
    record
        .encode(&mut bytes)
        .expect("a vector grows as it must");
    bytes
}

/// Decodes a record; `None` if it has another version, or is no such message.
#[must_use]
pub fn decode<R: Message + Default>(bytes: &[u8]) -> Option<R> {
    let (version, message) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    R::decode(message).ok()
}

/// Checks that a record can be decoded, if there is one.
///
/// # Errors
/// The defect, for people.
pub fn check<R: Message + Default>(bytes: &[u8]) -> Result<(), String> {
    match bytes.split_first() {
        None => Ok(()),
        Some((&VERSION, message)) => R::decode(message)
            .map(drop)
            .map_err(|fault| fault.to_string()),
        Some((version, _)) => Err(format!("it is of version {version}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::v1::ContainerMetadata;

    #[test]
    fn record_is_a_byte_with_the_version_and_a_message() {
        let record = ContainerMetadata {
            name: "web".into(),
            attempt: 3,
        };
        let bytes = encode(&record);
        assert_eq!(bytes, [1, 0x0a, 3, b'w', b'e', b'b', 0x10, 3]);
        assert_eq!(decode(&bytes), Some(record));
    }

    #[test]
    fn record_of_another_version_and_other_bytes_are_none() {
        for bytes in [
            &[][..],
            &[2, 0x0a, 3, b'w', b'e', b'b'],
            &[1, 0x0a, 3, b'w'],
        ] {
            assert_eq!(decode::<ContainerMetadata>(bytes), None, "{bytes:?}");
        }
    }
}
