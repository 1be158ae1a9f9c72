//! `POST /v1/exec`: a command in a task, and the frames of its session.
//!
//! The body of the request is an [`ExecRequest`]. The answer is an error, or `101 Switching Protocols` to
//! [`EXEC_PROTOCOL`] once the command runs. From then on both sides send frames: a head of [`FRAME_HEAD`] bytes, which are the
//! kind and the length, most significant byte first, and so many bytes.
//!
//! | frame | from | content |
//! |---|---|---|
//! | `Input` | client | standard input; the next one only after `InputTaken` |
//! | `InputEnd` | client | nothing: the end of standard input |
//! | `Resize` | client | width and height of the terminal in characters, two bytes each |
//! | `InputTaken` | daemon | nothing: the last `Input` was passed on |
//! | `Stdout`, `Stderr` | daemon | output; that of a terminal is `Stdout` |
//! | `End` | daemon | an [`ExecEnd`] as JSON; the last frame |
//!
//! So a client that goes away is noticed at once, although the command does not read its input. Only root begins a session.

use serde::{Deserialize, Serialize};

/// The path of the page.
pub const EXEC_PATH: &str = "/v1/exec";

/// The protocol of the session, as headers name it.
pub const EXEC_PROTOCOL: &str = "switchyard-exec/1";

/// Size of the head of a frame, in bytes.
pub const FRAME_HEAD: usize = 5;

/// Maximum size of the content of a frame, in bytes.
pub const FRAME_MAX: usize = 64 << 10;

/// The command to run. It has no `Debug`: arguments may be secret.
#[derive(Clone, Serialize, Deserialize)]
#[expect(
    missing_debug_implementations,
    reason = "arguments of commands may be secret"
)]
pub struct ExecRequest {
    /// The task: its name, or the beginning of its id.
    pub task: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// True if the client sends standard input.
    #[serde(default)]
    pub stdin: bool,
    /// True for a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Width and height of the terminal, in characters.
    #[serde(default)]
    pub size: Option<(u16, u16)>,
}

/// The end of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// Its exit code, 128 plus the signal if a signal ended it; `None` if it is not known.
    #[serde(default)]
    pub code: Option<i32>,
    /// Reason why it is not known.
    #[serde(default)]
    pub error: Option<String>,
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Standard input.
    Input,
    /// The end of standard input.
    InputEnd,
    /// The size of the client's terminal.
    Resize,
    /// The last input was passed on.
    InputTaken,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The end of the command.
    End,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// The kind.
    pub kind: FrameKind,
    /// Size of the content, in bytes; [`FRAME_MAX`] at most.
    pub length: usize,
}

// === impl FrameKind ===

impl FrameKind {
    const ALL: [Self; 7] = [
        Self::Input,
        Self::InputEnd,
        Self::Resize,
        Self::InputTaken,
        Self::Stdout,
        Self::Stderr,
        Self::End,
    ];

    /// The byte in a head.
    const fn byte(self) -> u8 {
        match self {
            Self::Input => 0,
            Self::InputEnd => 1,
            Self::Resize => 2,
            Self::InputTaken => 3,
            Self::Stdout => 4,
            Self::Stderr => 5,
            Self::End => 6,
        }
    }
}

// === impl FrameHead ===

impl FrameHead {
    /// The bytes before a content of this size. Pure.
    ///
    /// # Errors
    /// The content is longer than [`FRAME_MAX`].
    pub fn write(kind: FrameKind, length: usize) -> Result<[u8; FRAME_HEAD], String> {
        let size = u32::try_from(length)
            .ok()
            .filter(|_| length <= FRAME_MAX)
            .ok_or_else(|| too_long(length))?;
        let [a, b, c, d] = size.to_be_bytes();
        Ok([kind.byte(), a, b, c, d])
    }

    /// Reads a head. Pure.
    ///
    /// # Errors
    /// There is no such kind, or the content would be longer than [`FRAME_MAX`].
    pub fn parse([kind, a, b, c, d]: [u8; FRAME_HEAD]) -> Result<Self, String> {
        let known = FrameKind::ALL.into_iter().find(|one| one.byte() == kind);
        let kind = known.ok_or_else(|| format!("a frame has the unknown kind {kind}"))?;
        let length = u32::from_be_bytes([a, b, c, d]);
        match usize::try_from(length) {
            Ok(length) if length <= FRAME_MAX => Ok(Self { kind, length }),
            Ok(length) => Err(too_long(length)),
            Err(_) => Err(too_long(usize::MAX)),
        }
    }
}

fn too_long(length: usize) -> String {
    format!("a frame has {length} bytes: {FRAME_MAX} are allowed")
}

/// The content of a `Resize` frame. Pure.
#[must_use]
pub const fn write_size((width, height): (u16, u16)) -> [u8; 4] {
    let [a, b] = width.to_be_bytes();
    let [c, d] = height.to_be_bytes();
    [a, b, c, d]
}

/// Reads the content of a `Resize` frame; `None` if it is none. Pure.
#[must_use]
pub fn parse_size(content: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *content else { return None };
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        for kind in FrameKind::ALL {
            for length in [0, 1, 255, 256, FRAME_MAX] {
                let written = FrameHead::write(kind, length).unwrap();
                assert_eq!(FrameHead::parse(written), Ok(FrameHead { kind, length }));
            }
        }
        assert_eq!(FrameKind::ALL.map(FrameKind::byte), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let length = u32::try_from(FRAME_MAX + 1).unwrap().to_be_bytes();
        let [a, b, c, d] = length;
        for wrong in [
            [7, 0, 0, 0, 0],
            [255; 5],
            [0, a, b, c, d],
            [4, 255, 255, 255, 255],
        ] {
            assert!(FrameHead::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(FrameHead::write(FrameKind::Input, FRAME_MAX + 1).is_err());
        for (size, content) in [
            ((80, 24), [0, 80, 0, 24]),
            ((65_535, 256), [255, 255, 1, 0]),
        ] {
            assert_eq!(write_size(size), content);
            assert_eq!(parse_size(&content), Some(size));
        }
        for wrong in [&[][..], &[1, 2, 3], &[1, 2, 3, 4, 5]] {
            assert_eq!(parse_size(wrong), None);
        }
    }

    #[test]
    fn request_of_another_version_is_read() {
        let text = r#"{"task":"web.1","command":["sh"],"later":true}"#;
        let request: ExecRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.task.as_str(), request.size), ("web.1", None));
        assert!(!request.stdin && !request.tty);
        assert_eq!(
            serde_json::from_str::<ExecEnd>("{}").unwrap(),
            ExecEnd::default()
        );
    }
}
