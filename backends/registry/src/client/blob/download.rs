//! The download of one range, in a task of its own.

use std::ops::Range;

use bytes::Bytes;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::super::pull::{Pull, Target};
use super::ahead::RangeAhead;
use super::length;
use crate::error::UnexpectedStatus;
use crate::transport::{RangeRequest, next_piece};
use crate::{Error, Result};

/// Source of the ranges of a blob.
pub(super) struct RangeSource<'a> {
    pub(super) pull: &'a Pull,
    /// Index of the host among those that may pull.
    pub(super) host: usize,
    pub(super) what: &'a str,
    pub(super) path: &'a str,
    /// The size of the blob.
    pub(super) size: u64,
}

/// A download of one range, which owns what it needs.
struct RangeDownload {
    pull: Pull,
    host: usize,
    what: String,
    path: String,
    size: u64,
    range: Range<u64>,
    pieces: mpsc::UnboundedSender<Result<Bytes>>,
}

impl RangeSource<'_> {
    /// Begins the download of a range, once: it is the reader that repeats what has failed.
    pub(super) fn download(&self, range: Range<u64>, permit: OwnedSemaphorePermit) -> RangeAhead {
        let (sender, pieces) = mpsc::unbounded_channel();
        let download = RangeDownload {
            pull: self.pull.clone(),
            host: self.host,
            what: self.what.to_owned(),
            path: self.path.to_owned(),
            size: self.size,
            range: range.clone(),
            pieces: sender,
        };
        let task = tokio::spawn(async move {
            if let Err(error) = download.run().await {
                // The reader may be gone.
                let _ = download.pieces.send(Err(error));
            }
        });
        RangeAhead::new(range, pieces, AbortOnDropHandle::new(task), permit)
    }
}

impl RangeDownload {
    /// Sends the pieces of the range, and not more. A response that ends too early is no error here: the reader sees it.
    async fn run(&self) -> Result<()> {
        let hosts = self.pull.capable(|host| host.pull, &self.what)?;
        let asked = hosts[self.host.min(hosts.len() - 1)];
        let target = Target {
            path: &self.path,
            what: &self.what,
            accept: None,
            range: RangeRequest {
                from: self.range.start,
                to: Some(self.range.end),
                own_connection: true,
            },
            has_digest: true,
        };
        let reply = self.pull.get(asked, target).await?;
        let mut response = reply.response;
        let host = reply.host;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            let reason = format!(
                "{host} answered {} to the request of a range",
                response.status().as_u16()
            );
            return Err(Error::protocol(&self.what, reason));
        }
        let wanted = (self.range.start, self.size);
        sent_range(&self.what, &response, &host, wanted)?;
        let idle_timeout = self.pull.shared().config.idle_timeout;
        let mut rest = self.range.end - self.range.start;
        while rest > 0 {
            let next = next_piece(&mut response, idle_timeout).await;
            let unavailable = |source| Error::Unavailable {
                what: self.what.clone(),
                host: host.clone(),
                source,
            };
            let Some(mut piece) = next.map_err(unavailable)? else {
                return Ok(());
            };
            piece.truncate(usize::try_from(rest).unwrap_or(usize::MAX));
            rest -= length(&piece);
            if !piece.is_empty() && self.pieces.send(Ok(piece)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns whether a request has failed because its connection broke or fell silent, which says nothing about further ones.
pub(super) fn is_interruption(error: &Error) -> bool {
    if let Error::Unavailable { source, .. } = error {
        source.downcast_ref::<UnexpectedStatus>().is_none()
    } else {
        false
    }
}

/// Returns whether a host has answered that it does not serve ranges, as by 416 or 400, or that it has too many requests, as
/// by 429 or 503.
pub(super) fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Protocol { .. } | Error::RateLimited { .. } => true,
        Error::Unavailable { .. } => !is_interruption(error),
        Error::InvalidReference(_)
        | Error::InvalidConfig { .. }
        | Error::NotFound { .. }
        | Error::Unauthorized { .. }
        | Error::Denied { .. }
        | Error::DigestMismatch { .. }
        | Error::SizeMismatch { .. }
        | Error::TooLarge { .. }
        | Error::UnsupportedMediaType { .. }
        | Error::NoMatchingPlatform { .. } => false,
    }
}

/// The range of a response with a part of a blob, which has to begin at `from`, of a blob of this size.
///
/// # Errors
/// [`Error::Protocol`] if the response does not say so; [`Error::SizeMismatch`].
pub(super) fn sent_range(
    what: &str,
    response: &Response,
    host: &str,
    (from, size): (u64, u64),
) -> Result<Range<u64>> {
    let header = response
        .headers()
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok());
    let Some((sent, total)) = header.and_then(parse_content_range) else {
        let reason = format!("{host} sent a part without saying which");
        return Err(Error::protocol(what, reason));
    };
    if sent.start != from {
        let start = sent.start;
        let reason = format!("{host} sent a part from byte {start} instead of {from}");
        return Err(Error::protocol(what, reason));
    }
    match total {
        Some(total) if total != size => Err(Error::SizeMismatch {
            what: what.to_owned(),
            expected: size,
            actual: total,
        }),
        Some(_) | None => Ok(sent),
    }
}

/// `bytes 5-9/10` or `bytes 5-9/*`: the range and the total.
fn parse_content_range(text: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.trim().split_once('-')?;
    let start: u64 = start.trim().parse().ok()?;
    let last: u64 = last.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    let range = start..last.checked_add(1)?;
    (!range.is_empty()).then_some((range, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_parse_strictly() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5..10, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5..10, None)));
        let last = u64::MAX.to_string();
        for wrong in [
            "",
            "bytes",
            "bytes */10",
            "bytes 9-5/10",
            "items 5-9/10",
            "bytes 5-9",
            "bytes -9/10",
            &format!("bytes 5-{last}/10"),
        ] {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
