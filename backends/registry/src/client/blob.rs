//! A blob being streamed: resumed when its connection breaks, checked while it passes.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};

use super::pull::{Pull, Target};
use super::skipped::SkippedHosts;
use crate::transport::next_piece;
use crate::{Descriptor, Error, Hasher, Result};

/// The progress, in bytes, after which earlier failures are not counted any more: the connection is bad, but
/// the download advances.
const FORGIVING: u64 = 1 << 20;

/// A blob that is being downloaded. Dropping it closes the connection.
#[derive(Debug)]
pub struct Blob {
    pull: Pull,
    descriptor: Descriptor,
    what: String,
    path: String,
    /// The position of the next byte for the caller.
    offset: u64,
    /// Has hashed everything before `offset`. `None` if the caller has the beginning, or checks the digest
    /// itself.
    hasher: Option<Hasher>,
    body: Option<Body>,
    /// Index of the host in use, among those that may pull.
    host: usize,
    /// Those before it, until it has sent something.
    skipped: SkippedHosts,
    failures: u32,
    /// The offset of the last failure.
    failed_at: u64,
    finished: bool,
}

/// One response's body.
#[derive(Debug)]
struct Body {
    response: Response,
    host: String,
    /// The number of bytes before `Blob::offset` to skip, because the server does not support ranges.
    skip: u64,
}

impl Blob {
    pub(super) fn new(pull: Pull, descriptor: &Descriptor, offset: u64) -> Self {
        let mut what = format!("blob {}", pull.name(descriptor));
        if descriptor.is_foreign_layer() {
            what.push_str(" (a layer that may not be distributed; the addresses that its manifest has for it are not asked)");
        }
        let path = format!(
            "{}/blobs/{}",
            pull.reference().repository(),
            descriptor.digest
        );
        let hasher = (offset == 0).then(|| Hasher::new(descriptor.digest.algorithm()));
        Self {
            pull,
            descriptor: descriptor.clone(),
            what,
            path,
            offset,
            hasher,
            body: None,
            host: 0,
            skipped: SkippedHosts::default(),
            failures: 0,
            failed_at: offset,
            finished: false,
        }
    }

    /// Sets a hasher that has hashed the bytes before the offset, so that the digest of a resumed blob is
    /// checked too. It must use the algorithm of the descriptor's digest; another one is ignored.
    #[must_use]
    pub fn after(mut self, prefix: Hasher) -> Self {
        if prefix.algorithm() == self.descriptor.digest.algorithm() {
            self.hasher = Some(prefix);
        }
        self
    }

    /// Leaves the check of the digest to the caller; the size is checked here. Only for a caller that does
    /// not keep content with another digest.
    #[must_use]
    pub fn without_digest_check(mut self) -> Self {
        self.hasher = None;
        self
    }

    /// The position of the next chunk in the blob, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next chunk, or `None` at the end, which is reached only if the size is right, and the digest if it
    /// is checked here.
    ///
    /// # Errors
    /// [`Error::SizeMismatch`], [`Error::DigestMismatch`], or, after all attempts, the error of a host as for
    /// [`Pull::resolve`].
    /// After an error the blob has ended. Cancel-safe: a dropped call loses no bytes.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        if self.finished {
            return Ok(None);
        }
        let result = self.next().await;
        if !matches!(result, Ok(Some(_))) {
            self.finished = true;
            self.body = None;
        }
        result
    }

    /// The blob as a stream; its last item is the error if there is one.
    pub fn into_stream(self) -> BoxStream<'static, Result<Bytes>> {
        stream::unfold(self, async |mut blob| {
            blob.chunk().await.transpose().map(|item| (item, blob))
        })
        .boxed()
    }

    async fn next(&mut self) -> Result<Option<Bytes>> {
        let size = self.descriptor.size;
        if self.offset > size {
            return Err(self.size_mismatch(self.offset));
        }
        loop {
            // An empty blob needs no request, and for a complete one there is no range to request.
            if self.offset == size && self.body.is_none() {
                return self.finish().map(|()| None);
            }
            let idle_timeout = self.pull.shared().config.idle_timeout;
            let Some(body) = &mut self.body else {
                self.connect().await?;
                continue;
            };
            match next_piece(&mut body.response, idle_timeout).await {
                Ok(Some(piece)) => {
                    if let Some(piece) = self.take(piece)? {
                        return Ok(Some(piece));
                    }
                }
                Ok(None) if self.offset == size => return self.finish().map(|()| None),
                // Without a content length, a broken connection looks like the end.
                Ok(None) => {
                    let error = self.size_mismatch(self.offset);
                    self.fail(error).await?;
                }
                Err(source) => {
                    let error = Error::Unavailable {
                        what: self.what.clone(),
                        host: body.host.clone(),
                        source,
                    };
                    self.fail(error).await?;
                }
            }
        }
    }

    /// Processes a piece of the body: the part to skip is cut off; more bytes than the blob has are an error.
    fn take(&mut self, mut piece: Bytes) -> Result<Option<Bytes>> {
        if let Some(body) = &mut self.body {
            let skipped = usize::try_from(body.skip)
                .unwrap_or(usize::MAX)
                .min(piece.len());
            body.skip -= length(&piece.split_to(skipped));
        }
        if piece.is_empty() {
            return Ok(None);
        }
        let end = self.offset.saturating_add(length(&piece));
        if end > self.descriptor.size {
            return Err(self.size_mismatch(end));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&piece);
        }
        self.offset = end;
        Ok(Some(piece))
    }

    fn finish(&mut self) -> Result<()> {
        let Some(actual) = self.hasher.take().map(Hasher::finish) else {
            return Ok(());
        };
        if actual == self.descriptor.digest {
            return Ok(());
        }
        Err(Error::DigestMismatch {
            what: self.what.clone(),
            expected: self.descriptor.digest.clone(),
            actual,
        })
    }

    fn size_mismatch(&self, actual: u64) -> Error {
        Error::SizeMismatch {
            what: self.what.clone(),
            expected: self.descriptor.size,
            actual,
        }
    }

    /// Requests the body from the current offset on from the current host, or else from the next ones.
    async fn connect(&mut self) -> Result<()> {
        let pull = self.pull.clone();
        let hosts = pull.capable(|host| host.pull, &self.what)?;
        let index = self.host.min(hosts.len() - 1);
        let target = Target {
            path: &self.path,
            what: &self.what,
            accept: None,
            range_from: self.offset,
            has_digest: true,
        };
        let opened = match pull.get(hosts[index], target).await {
            Ok(reply) => self.begin(reply.response, reply.host),
            Err(error) => Err(error),
        };
        match opened {
            Ok(body) => {
                self.body = Some(body);
                self.skipped = SkippedHosts::default();
                Ok(())
            }
            Err(error) if index + 1 < hosts.len() => {
                self.skipped.add(hosts[index], error);
                self.host = index + 1;
                Ok(())
            }
            Err(error) if error.is_transient() => {
                let waited = self.fail(error).await;
                waited.map_err(|last| self.told(last))
            }
            Err(error) => Err(self.told(error)),
        }
    }

    /// The error to tell after that of the last host.
    fn told(&mut self, last: Error) -> Error {
        std::mem::take(&mut self.skipped).told(last)
    }

    /// Checks that a successful response has the requested range.
    fn begin(&self, response: Response, host: String) -> Result<Body> {
        let size = self.descriptor.size;
        let length = response.content_length();
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response
                    .headers()
                    .get(CONTENT_RANGE)
                    .and_then(|value| value.to_str().ok());
                let Some((start, total)) = range.and_then(parse_content_range) else {
                    return Err(Error::protocol(
                        &self.what,
                        format!("{host} sent a part without saying which"),
                    ));
                };
                if start != self.offset {
                    let reason = format!(
                        "{host} sent a part from byte {start} instead of {}",
                        self.offset
                    );
                    return Err(Error::protocol(&self.what, reason));
                }
                if let Some(total) = total.filter(|total| *total != size) {
                    return Err(self.size_mismatch(total));
                }
                0
            }
            // The host ignores ranges: the bytes that are known already are skipped.
            StatusCode::OK => {
                if let Some(length) = length.filter(|length| *length != size) {
                    return Err(self.size_mismatch(length));
                }
                self.offset
            }
            status => {
                let reason = format!("{host} answered {} instead of 200 or 206", status.as_u16());
                return Err(Error::protocol(&self.what, reason));
            }
        };
        Ok(Body {
            response,
            host,
            skip,
        })
    }

    /// Counts a failure and waits before the next attempt, or gives up with `error`. The failure is counted
    /// before the wait, so that a dropped call cannot avoid it.
    async fn fail(&mut self, error: Error) -> Result<()> {
        self.body = None;
        if self.offset.saturating_sub(self.failed_at) >= FORGIVING {
            self.failures = 0;
        }
        self.failed_at = self.offset;
        self.failures += 1;
        let config = &self.pull.shared().config;
        if self.failures > config.retries {
            return Err(error);
        }
        let pause = config.pause(self.failures, &error);
        tracing::debug!(what = self.what, offset = self.offset, %error, ?pause, "download interrupted, resuming");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

fn length(piece: &Bytes) -> u64 {
    u64::try_from(piece.len()).unwrap_or(u64::MAX)
}

/// `bytes 5-9/10` or `bytes 5-9/*`: the first byte and the total.
fn parse_content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.trim().split_once('-')?;
    let start: u64 = start.trim().parse().ok()?;
    let end: u64 = end.trim().parse().ok()?;
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    (start <= end).then_some((start, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_parse_strictly() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((5, None)));
        for wrong in [
            "",
            "bytes",
            "bytes */10",
            "bytes 9-5/10",
            "items 5-9/10",
            "bytes 5-9",
            "bytes -9/10",
        ] {
            assert_eq!(parse_content_range(wrong), None, "{wrong}");
        }
    }
}
