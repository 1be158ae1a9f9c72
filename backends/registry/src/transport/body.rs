//! Response bodies: read with limits and deadlines, and parsed if they explain an error.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use httpdate::parse_http_date;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;

use super::Reply;
use crate::error::{Idle, Slow, UnexpectedStatus, shown};
use crate::limits::Bound;
use crate::{BoxError, Error, Result};

/// Maximum size of an error's body that is read, in bytes.
const ERROR_LIMIT: usize = 64 << 10;
/// Time for a document to arrive in total.
const DOCUMENT_DEADLINE: Duration = Duration::from_secs(300);
/// Time for which an error's body is read.
const ERROR_DEADLINE: Duration = Duration::from_secs(5);

/// The next piece of a body.
///
/// # Errors
/// The connection's failure, or [`Idle`] if nothing is received for `idle_timeout`. Cancel-safe.
pub(crate) async fn next_piece(
    response: &mut Response,
    idle_timeout: Duration,
) -> Result<Option<Bytes>, BoxError> {
    match timeout(idle_timeout, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => Err(error.without_url().into()),
        Err(_) => Err(Idle {
            waited: idle_timeout,
        }
        .into()),
    }
}

/// Aborts the reading of a document from `host` if it takes too long in total.
///
/// # Errors
/// [`Error::Unavailable`], or the error of `reading`. Cancel-safe if `reading` is.
pub(crate) async fn in_time<T>(
    what: &str,
    host: &str,
    reading: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(DOCUMENT_DEADLINE, reading)
        .await
        .unwrap_or_else(|_| {
            let source = Slow {
                limit: DOCUMENT_DEADLINE,
            }
            .into();
            Err(Error::Unavailable {
                what: what.to_owned(),
                host: host.to_owned(),
                source,
            })
        })
}

/// Reads a whole body of a bounded size, within the deadline of a document.
pub(crate) async fn read_limited(
    reply: Reply,
    what: &str,
    bound: Bound,
    idle_timeout: Duration,
) -> Result<Bytes> {
    let Reply {
        mut response,
        host,
        redirected_away: _,
    } = reply;
    if let Some(length) = response
        .content_length()
        .filter(|length| *length > bound.most)
    {
        return Err(bound.exceeded(what, format!("{length} bytes")));
    }
    let reading = async {
        let mut body = BytesMut::new();
        while let Some(piece) = next_piece(&mut response, idle_timeout)
            .await
            .map_err(|source| Error::Unavailable {
                what: what.to_owned(),
                host: host.clone(),
                source,
            })?
        {
            let length = body.len() + piece.len();
            if u64::try_from(length).unwrap_or(u64::MAX) > bound.most {
                return Err(bound.exceeded(what, format!("{length} bytes or more")));
            }
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    };
    in_time(what, &host, reading).await
}

/// The error for an unsuccessful response to a request for `what`, for which credentials were `given` or not, with the
/// message in its body. The body of a redirect's target is not read: the one who chooses the target could otherwise read
/// what only this node can reach.
pub(crate) async fn status_error(
    reply: Reply,
    (what, given): (&str, bool),
    idle_timeout: Duration,
) -> Error {
    let Reply {
        mut response,
        host,
        redirected_away,
    } = reply;
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let mut body = Vec::new();
    if !redirected_away {
        let read = async {
            while body.len() < ERROR_LIMIT
                && let Ok(Some(piece)) = next_piece(&mut response, idle_timeout).await
            {
                body.extend_from_slice(&piece[..piece.len().min(ERROR_LIMIT - body.len())]);
            }
        };
        // An incomplete body only makes the message less precise, so failures and the deadline just end the
        // reading.
        let _ = timeout(ERROR_DEADLINE, read).await;
    }
    let reason = error_detail(status, &body);
    let what = what.to_owned();
    match status {
        StatusCode::UNAUTHORIZED => Error::Unauthorized {
            what,
            host,
            reason,
            given,
        },
        StatusCode::FORBIDDEN => Error::Denied { what, host, reason },
        StatusCode::NOT_FOUND => Error::NotFound { what, host },
        StatusCode::TOO_MANY_REQUESTS => Error::RateLimited {
            what,
            host,
            reason,
            retry_after,
        },
        status if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT => {
            Error::Unavailable {
                what,
                host,
                source: UnexpectedStatus {
                    status: status.as_u16(),
                    detail: reason,
                    retry_after,
                }
                .into(),
            }
        }
        status => Error::protocol(
            what,
            format!("{host} answered {}: {reason}", status.as_u16()),
        ),
    }
}

/// The wait that a server asks for. One with a date is counted from the server's own time, whose clock may differ from
/// this machine's, if it sends that.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let now = text(DATE).and_then(|date| parse_http_date(date).ok());
    wait_of(text(RETRY_AFTER)?, now.unwrap_or_else(SystemTime::now))
}

/// The wait by the value of a `Retry-After`: seconds, or a date, of which one in the past asks for none.
fn wait_of(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let until = || parse_http_date(value).ok();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => until().map(|until| until.duration_since(now).unwrap_or_default()),
    }
}

/// The message of an error's body: codes and messages of the distribution specification's error format, and
/// nothing else.
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
        errors: Vec<Entry>,
    }
    let entries =
        serde_json::from_slice::<Errors>(body).map_or_else(|_| Vec::new(), |parsed| parsed.errors);
    let texts = entries
        .into_iter()
        .map(|Entry { code, message }| match (code, message) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (code, message) => code.or(message).unwrap_or_default(),
        });
    let text = texts
        .filter(|text| !text.trim().is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    if text.is_empty() {
        return status
            .canonical_reason()
            .unwrap_or("no reason given")
            .to_ascii_lowercase();
    }
    shown(&text)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;
    use crate::error::SHOWN_LIMIT;

    #[test]
    fn error_body_codes_and_messages_are_shown_on_one_line() {
        let detail = |body: &str| error_detail(StatusCode::FORBIDDEN, body.as_bytes());
        assert_eq!(
            detail(r#"{"errors":[{"code":"DENIED","message":"no\u001b[2J","detail":"hidden"}]}"#),
            "DENIED: no\\u{1b}[2J"
        );
        assert_eq!(
            detail(r#"{"errors":[{"message":"a"},{"code":"B"},{}]}"#),
            "a; B"
        );
        let long = "x".repeat(1000);
        assert_eq!(
            detail(&format!(r#"{{"errors":[{{"message":"{long}"}}]}}"#)).len(),
            SHOWN_LIMIT
        );
    }

    #[test]
    fn wait_may_be_given_in_seconds_or_as_a_date() {
        let now = parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        for (value, seconds) in [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            // The two obsolete forms, which RFC 9110 wants to be read.
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10)),
            ("Sun Nov  6 09:49:37 1994", Some(3600)),
            ("Sun, 06 Nov 1994 08:49:36 GMT", Some(0)),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(wait_of(value, now), expected, "{value:?}");
        }
    }

    #[test]
    fn wait_until_a_date_is_counted_by_the_clock_of_the_server() {
        let mut headers = HeaderMap::new();
        let date = |text: &'static str| HeaderValue::from_static(text);
        headers.insert(RETRY_AFTER, date("Sun, 06 Nov 1994 08:50:07 GMT"));
        // Long past by the clock of this machine.
        assert_eq!(retry_after(&headers), Some(Duration::ZERO));
        headers.insert(DATE, date("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
        headers.remove(RETRY_AFTER);
        assert_eq!(retry_after(&headers), None);
    }

    #[test]
    fn non_error_body_is_not_shown() {
        let detail = |body: &str| error_detail(StatusCode::FORBIDDEN, body.as_bytes());
        for body in [
            "",
            "<html>\n",
            "AKIASECRET",
            r#"{"Token":"hidden"}"#,
            r#"{"errors":"hidden"}"#,
            "[]",
        ] {
            assert_eq!(detail(body), "forbidden", "{body}");
        }
    }
}
