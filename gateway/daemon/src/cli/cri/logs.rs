//! Reads a container's log in the CRI log format; each line is an entry `TIME STREAM TAGS TEXT`.

use std::path::PathBuf;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;

use super::{Client, CriError, refused};
use crate::output::{Format, print, print_error, print_json};

/// A part of an entry's text, and the stream it belongs to.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    time: &'a str,
    stderr: bool,
    /// Whether the line continues in the stream's next entry.
    partial: bool,
    text: &'a [u8],
}

impl Client {
    /// Prints a container's log so far: its output to standard output, its errors to standard error.
    pub(super) async fn logs(&mut self, container: String) -> Result<(), CriError> {
        let request = self.request(cri::ContainerStatusRequest { container_id: container, verbose: false });
        let answer = self.runtime.container_status(request).await.map_err(refused("ContainerStatus"))?;
        let status = answer.into_inner().status;
        let status = status.ok_or(CriError::Incomplete { call: "ContainerStatus", what: "a status" })?;
        if status.log_path.is_empty() {
            return Err(CriError::NoLog(status.id));
        }
        let path = PathBuf::from(status.log_path);
        let log = tokio::fs::read(&path).await.map_err(|source| CriError::Log { path, source })?;
        let entries = log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse);
        match self.output {
            Format::Json => {
                let entries: Vec<_> = entries
                    .map(|entry| {
                        json!({
                            "time": entry.time,
                            "stream": if entry.stderr { "stderr" } else { "stdout" },
                            "partial": entry.partial,
                            "text": String::from_utf8_lossy(entry.text),
                        })
                    })
                    .collect();
                print_json(&entries)?;
            }
            Format::Text => {
                for entry in entries {
                    let mut text = entry.text.to_vec();
                    if !entry.partial {
                        text.push(b'\n');
                    }
                    if entry.stderr { print_error(&text) } else { print(&text) }?;
                }
            }
        }
        Ok(())
    }
}

/// Parses one line of a log. A malformed line is printed as it is.
fn parse(line: &[u8]) -> Entry<'_> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let field =
        |bytes: Option<&'_ [u8]>| bytes.and_then(|bytes| std::str::from_utf8(bytes).ok().map(str::len));
    let time = fields.next();
    let stream = fields.next();
    let tags = fields.next();
    let text = fields.next();
    let known = matches!(stream, Some(b"stdout" | b"stderr")) && field(time).is_some();
    match (known, time, tags) {
        (true, Some(time), Some(tags)) => Entry {
            time: std::str::from_utf8(time).unwrap_or_default(),
            stderr: stream == Some(b"stderr"),
            partial: tags.split(|byte| *byte == b':').any(|tag| tag == b"P"),
            text: text.unwrap_or_default(),
        },
        _ => Entry { time: "", stderr: false, partial: false, text: line },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, time: &str, stderr: bool, partial: bool, text: &str) {
        assert_eq!(parse(line.as_bytes()), Entry { time, stderr, partial, text: text.as_bytes() });
    }

    #[test]
    fn cri_log_entries_are_parsed() {
        check(
            "2024-01-01T00:00:00Z stdout F hello  world",
            "2024-01-01T00:00:00Z",
            false,
            false,
            "hello  world",
        );
        check("2024-01-01T00:00:00Z stderr P part", "2024-01-01T00:00:00Z", true, true, "part");
        check("2024-01-01T00:00:00Z stdout F ", "2024-01-01T00:00:00Z", false, false, "");
        check("something else", "", false, false, "something else");
    }
}
