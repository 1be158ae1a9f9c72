//! The entry points of fuzz targets: each takes any bytes, and panics if a property does not hold.
//!
//! The same checks run in `cargo test`, on bytes that proptest generates.

use crate::descriptor_store::check as check_descriptor;
use crate::format;
use crate::keeper::check;
use crate::position::check_record;
use crate::protocol::{
    Attached, Descriptors, Done, Entry, Finished, MAX_LINE, Page, Reply, Request, Stats, Taken,
    Welcome,
};
use crate::{reader, state_dir, wire};

/// A line from a client: a decoded request can be encoded again and then decodes to the same, and validating
/// it does not panic.
///
/// # Panics
/// If a property does not hold.
pub fn request(data: &[u8]) {
    let Ok(request) = wire::decode::<Request>(data) else {
        return;
    };
    if let Request::Open(spec) = &request
        && check(spec).is_ok()
    {
        assert!(
            !spec.id.contains('/') && !spec.id.starts_with('.'),
            "{:?} leads out of the directory",
            spec.id
        );
    }
    if let Request::Put { name, note } = &request
        && check_descriptor(name, note).is_ok()
    {
        let control = |text: &str| text.chars().any(char::is_control);
        assert!(
            !control(name) && !control(note) && !name.contains('/'),
            "{name:?} {note:?}"
        );
    }
    let Ok(line) = wire::encode(&request) else {
        // Escapes can make the encoded line longer than the decoded one.
        return assert!(
            data.len() * 6 + 256 > MAX_LINE,
            "{request:?} cannot be said again"
        );
    };
    assert_eq!(
        wire::decode::<Request>(&line).expect("what was encoded is understood"),
        request
    );
}

/// A line from a logkeeper, as the client reads it: as [`request`].
///
/// # Panics
/// If a property does not hold.
pub fn reply(data: &[u8]) {
    fn same<T>(data: &[u8])
    where
        T: serde::de::DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug,
    {
        let Ok(reply) = wire::decode::<Reply<T>>(data) else {
            return;
        };
        let Ok(line) = wire::encode(&reply) else {
            return;
        };
        assert_eq!(
            wire::decode::<Reply<T>>(&line).expect("what was encoded is understood"),
            reply
        );
    }
    same::<Attached>(data);
    same::<Descriptors>(data);
    same::<Done>(data);
    same::<Entry>(data);
    same::<Finished>(data);
    same::<Page>(data);
    same::<Stats>(data);
    same::<Taken>(data);
    same::<Welcome>(data);
}

/// A position record: a record that decodes contains nothing but its fields, also if its checksum was made to
/// fit.
///
/// # Panics
/// If a property does not hold.
pub fn position_record(data: &[u8]) {
    check_record(data);
}

/// The entry of a container in the state directory: one that decodes names a file of its container.
///
/// # Panics
/// If a property does not hold.
pub fn state_entry(data: &[u8]) {
    state_dir::check_entry(data);
}

/// The output of a container; the first byte is the line limit. Lines are no longer than the limit, and their
/// contents together are the output without line ends.
///
/// # Panics
/// If a property does not hold.
pub fn output(data: &[u8]) {
    let Some((first, input)) = data.split_first() else {
        return;
    };
    let max_line = usize::from(*first) + 1;
    let mut used = 0;
    let mut content = 0;
    while let Some(line) = format::next_line(&input[used..], max_line) {
        assert!(line.content.len() <= max_line && line.consumed > 0);
        content += line.content.len();
        used += line.consumed;
    }
    assert!(content <= used && used <= input.len());
    assert!(
        input.len() - used <= max_line + 1,
        "{} bytes are held back",
        input.len() - used
    );
}

/// A log file; the first byte says which part of it is read. Lines are found alike forward and backward, nothing is
/// passed on twice, and the last lines are the end of all.
///
/// # Panics
/// If a property does not hold.
pub fn log_file(data: &[u8]) {
    reader::check::log_file(data);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn all(data: &[u8]) {
        let bodies: [fn(&[u8]); 6] = [
            super::request,
            super::reply,
            super::position_record,
            super::state_entry,
            super::output,
            super::log_file,
        ];
        bodies.iter().for_each(|body| body(data));
    }

    #[test]
    fn protocol_messages_keep_their_invariants() {
        for text in [
            r#"{"op":"open","id":"c1","stdout":"/a","stderr":null,"log":"/b","tty":false,"max_line":1}"#,
            r#"{"op":"open","id":"../c1","stdout":"/a","stderr":"/\u0000","log":null,"tty":true,"max_line":0}"#,
            r#"{"op":"attach","id":"\ud83d\ude00","stream":"stderr","from":18446744073709551615}"#,
            r#"{"ok":{"containers":1,"recovered":2,"finished":3,"totals":{"lines":1,"bytes":1,"dropped_lines":0,"dropped_bytes":0}}}"#,
            r#"{"op":"put","name":"cri","note":"1:2"}"#,
            r#"{"op":"put","name":"a/b","note":"\u0000"}"#,
            r#"{"ok":{"entries":[{"name":"cri","note":"1:2","claimed":false}]}}"#,
            r#"{"error":{"kind":"busy","message":"\u001b"}}"#,
            r#"{"version":1,"container":{"id":"c1","stdout":"/a","stderr":null,"log":"/b","tty":false,"max_line":1}}"#,
        ] {
            all(text.as_bytes());
        }
        all(&b"[".repeat(60_000));
    }

    proptest! {
        #[test]
        fn any_bytes_keep_decoder_invariants(data in proptest::collection::vec(any::<u8>(), 0..300)) {
            all(&data);
        }

        #[test]
        fn near_messages_keep_decoder_invariants(
            op in "(hello|open|attach|finish|hold|list|put|stats|take)",
            field in "(id|stream|from|stdout|version|after|one_call|max_line|name|note)",
            value in "(-?[0-9]{1,22}|\"[^\"\\\\]{0,20}\"|null|true|\\{\\}|\\[\\])",
        ) {
            all(format!("{{\"op\":\"{op}\",\"id\":\"c\",\"{field}\":{value}}}").as_bytes());
        }
    }
}
