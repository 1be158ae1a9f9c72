//! Lines on a control connection, with a limit on their length.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::protocol::MAX_LINE;

/// Reads one line into `line`; `false` at the end of the connection. Not cancel-safe: a part of a line may be
/// lost.
///
/// # Errors
/// `InvalidData` for a line that is too long or incomplete; the connection must be closed then.
pub(crate) async fn read_line(
    reader: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> io::Result<bool> {
    line.clear();
    reader.take(MAX_LINE as u64).read_until(b'\n', line).await?;
    if line.is_empty() {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        return Ok(true);
    }
    let message = if line.len() == MAX_LINE {
        "line is too long"
    } else {
        "connection ended within a line"
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// Encodes a message as a line; `InvalidData` if it is too long.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > MAX_LINE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "message is too long",
        ));
    }
    Ok(line)
}

/// Decodes a line.
pub(crate) fn decode<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(line)?)
}

/// Writes an encoded line. Not cancel-safe: a part of the line may have been written.
pub(crate) async fn write_line(
    writer: &mut (impl AsyncWrite + Unpin),
    line: &[u8],
) -> io::Result<()> {
    writer.write_all(line).await?;
    writer.flush().await
}
