//! One record of the history: an event as a line of JSON, bounded in size.

use std::collections::BTreeMap;

use switchyard_operator_api::EventView;

/// The longest line that is read, in bytes. Those that are written are shorter.
pub(crate) const LINE_MAX: usize = 64 << 10;

/// The longest detail of an event, in bytes.
const DETAIL_MAX: usize = 1024;

/// The longest name, in bytes.
const NAME_MAX: usize = 512;

/// Maximum number of an object's names, and the longest of them in bytes.
const NAMES_MAX: (usize, usize) = (16, 256);

/// The event with texts of bounded length: names and reasons come from clients.
pub(super) fn bounded(event: EventView) -> EventView {
    let (count, length) = NAMES_MAX;
    let names: BTreeMap<_, _> = event
        .names
        .into_iter()
        .take(count)
        .map(|(label, value)| (label, cut(value, length)))
        .collect();
    EventView {
        name: cut(event.name, NAME_MAX),
        detail: cut(event.detail, DETAIL_MAX),
        names,
        ..event
    }
}

fn cut(mut text: String, length: usize) -> String {
    text.truncate(text.floor_char_boundary(length));
    text.shrink_to_fit();
    text
}

/// The line of an event, with its line feed. JSON escapes those in texts.
pub(crate) fn encode(event: &EventView) -> String {
    let mut line = serde_json::to_string(event).expect("the fields are texts and whole numbers");
    line.push('\n');
    line
}

/// The event of a line without its line feed; `None` if it is none, as what a full disk or a kill has cut off. Texts are
/// bounded: the line need not be one of ours.
pub(crate) fn decode(line: &[u8]) -> Option<EventView> {
    if line.len() > LINE_MAX {
        return None;
    }
    let event: EventView = serde_json::from_slice(line).ok()?;
    Some(bounded(event))
}

#[cfg(test)]
mod tests {
    use switchyard_operator_api::ExitView;

    use super::*;

    const GOLDEN: &str = include_str!("golden/events-1.jsonl");

    #[test]
    fn records_of_the_first_version_are_read_and_written() {
        let events: Vec<_> = GOLDEN
            .lines()
            .map(|line| decode(line.as_bytes()).unwrap())
            .collect();
        let [started, exited, refused] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(started.event, "daemon_started");
        let exit = exited.exit.as_deref().unwrap();
        let expected = ExitView {
            code: 137,
            cause: "stopped".to_owned(),
            ran_ms: Some(11_520_000),
            operation: Some("stop_task".to_owned()),
            operation_id: None,
            listener: Some("cri".to_owned()),
            uid: Some(0),
            pid: Some(812),
            is_found: false,
        };
        assert_eq!(*exit, expected);
        assert_eq!(exited.names["pod"], "web-1");
        assert_eq!(refused.owner, "nomad");
        let written: String = events.iter().map(encode).collect();
        assert_eq!(written, GOLDEN);
    }

    #[test]
    fn field_of_a_later_version_is_ignored() {
        let line = br#"{"at":"","owner":"nomad","event":"x","later":[1]}"#;
        assert_eq!(decode(line).unwrap().owner, "nomad");
    }

    #[test]
    fn record_is_one_short_line_whatever_a_client_has_put_into_it() {
        let hostile = "\u{1b}\n\0".repeat(100_000);
        let names = (0..1000).map(|label| (format!("label{label}"), hostile.clone()));
        let event = EventView {
            name: hostile.clone(),
            detail: hostile.clone(),
            names: names.collect(),
            ..EventView::default()
        };
        let line = encode(&bounded(event));
        assert!(line.len() < LINE_MAX, "{}", line.len());
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        let read = decode(line.trim_end().as_bytes()).unwrap();
        assert_eq!(encode(&read), line);
    }

    #[test]
    fn other_lines_are_no_records() {
        for line in [
            "",
            "{",
            "[]",
            "null",
            "{}",
            "\0\0\0",
            "\u{fffd}",
            r#"{"at":1}"#,
        ] {
            assert_eq!(decode(line.as_bytes()), None, "{line:?}");
        }
        let long = format!(
            r#"{{"at":"","owner":"","event":"{}"}}"#,
            "x".repeat(LINE_MAX)
        );
        assert_eq!(decode(long.as_bytes()), None);
    }
}
