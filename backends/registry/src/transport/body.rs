//! Bodies: read with limits and deadlines, and understood when they explain an error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;

use super::Reply;
use crate::error::{Idle, UnexpectedStatus};
use crate::{BoxError, Error, Result};

/// Bytes read of an error's body, and characters shown of it.
const ERROR_LIMIT: usize = 64 << 10;
const SHOWN_LIMIT: usize = 300;
/// How long an error's body is read.
const ERROR_DEADLINE: Duration = Duration::from_secs(5);

/// The next piece of a body.
///
/// # Errors
/// The connection's failure, or [`Idle`] after `idle_timeout` of silence. Cancel-safe.
pub(crate) async fn next_piece(
    response: &mut Response,
    idle_timeout: Duration,
) -> Result<Option<Bytes>, BoxError> {
    match timeout(idle_timeout, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(error.without_url().into()),
        Err(_) => Err(Idle { waited: idle_timeout }.into()),
    }
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn read_limited(
    reply: Reply,
    what: &str,
    limit: u64,
    idle_timeout: Duration,
) -> Result<Bytes> {
    let Reply { mut response, host, redirected_away: _ } = reply;
    let too_large = || Error::TooLarge { what: what.to_owned(), limit };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut body = BytesMut::new();
    loop {
        let piece = next_piece(&mut response, idle_timeout).await.map_err(|source| Error::Unavailable {
            what: what.to_owned(),
            host: host.clone(),
            source,
        })?;
        let Some(piece) = piece else { return Ok(body.freeze()) };
        if u64::try_from(body.len() + piece.len()).unwrap_or(u64::MAX) > limit {
            return Err(too_large());
        }
        body.extend_from_slice(&piece);
    }
}

/// The error that an unsuccessful response stands for, with what its body says.
pub(crate) async fn status_error(reply: Reply, what: &str, idle_timeout: Duration) -> Error {
    let Reply { mut response, host, redirected_away: _ } = reply;
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let mut body = Vec::new();
    let read = async {
        while body.len() < ERROR_LIMIT
            && let Ok(Some(piece)) = next_piece(&mut response, idle_timeout).await
        {
            body.extend_from_slice(&piece);
        }
    };
    // A body that cannot be read in full only makes the message poorer, so failures and the deadline end the reading.
    let _ = timeout(ERROR_DEADLINE, read).await;
    let reason = error_detail(status, &body);
    let what = what.to_owned();
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized { what, host, reason },
        StatusCode::FORBIDDEN => Error::Denied { what, host, reason },
        StatusCode::NOT_FOUND => Error::NotFound { what, host },
        StatusCode::TOO_MANY_REQUESTS => Error::RateLimited { what, host, retry_after },
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => Error::Unavailable {
            what,
            host,
            source: UnexpectedStatus { status: status.as_u16(), detail: reason, retry_after }.into(),
        },
        status => Error::protocol(what, format!("{host} answered {}: {reason}", status.as_u16())),
    }
}

/// Seconds to wait; the form with a date is rare on registries and treated as if it were missing.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// What the body of an error says: the messages of the distribution specification's error format, or its text.
fn error_detail(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        code: Option<String>,
        #[serde(default)]
        message: Option<String>,
    }
    #[derive(Deserialize)]
    struct Errors {
        #[serde(default)]
        errors: Vec<Entry>,
        /// What token services send instead.
        #[serde(default)]
        details: Option<String>,
    }
    let parsed: Option<Errors> = serde_json::from_slice(body).ok();
    let text = match parsed {
        Some(Errors { errors, details }) => {
            let list = errors.into_iter().map(|Entry { code, message }| match (code, message) {
                (Some(code), Some(message)) => format!("{code}: {message}"),
                (code, message) => code.or(message).unwrap_or_default(),
            });
            list.chain(details).filter(|entry| !entry.is_empty()).collect::<Vec<_>>().join("; ")
        }
        None => String::from_utf8_lossy(body).trim().to_owned(),
    };
    // Strangers write this, and it ends up in logs and on terminals.
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let shown: String = text.chars().take(SHOWN_LIMIT).map(clean).collect();
    if shown.trim().is_empty() {
        status.canonical_reason().unwrap_or("no reason given").to_ascii_lowercase()
    } else {
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_become_one_clean_line() {
        let detail = |body: &str| error_detail(StatusCode::FORBIDDEN, body.as_bytes());
        assert_eq!(detail(r#"{"errors":[{"code":"DENIED","message":"no\u001b[2J"}]}"#), "DENIED: no [2J");
        assert_eq!(detail(r#"{"details":"incorrect password"}"#), "incorrect password");
        assert_eq!(detail(""), "forbidden");
        assert_eq!(detail("<html>\n"), "<html>");
        assert_eq!(detail(&"x".repeat(1000)).len(), SHOWN_LIMIT);
    }
}
