//! A blob being streamed: resumed when its connection breaks, checked while it passes.
//!
//! A large blob of a registry that is far away comes in ranges, of which several are downloaded ahead ([`ahead`]). The first
//! range, and whatever is missing because the download of a range has failed, is requested like a blob that comes in one
//! response, with the same retries. A host that refuses ranges, ignores them, limits the rate of requests, or serves nothing over
//! further connections, gets no more of them in this pull.

mod ahead;
mod download;

use std::sync::Arc;

pub(super) use ahead::MAX_RANGES;
pub use ahead::RangeConfig;
use ahead::RangesAhead;
use bytes::Bytes;
use download::RangeSource;
use futures::stream::{self, BoxStream, StreamExt as _};
use reqwest::{Response, StatusCode};

use super::pull::{Pull, Target};
use super::range_use::RangeUse;
use super::skipped::SkippedHosts;
use crate::transport::{RangeRequest, next_piece};
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
    /// Ranges that are downloaded behind the body, or behind the offset if there is none.
    ahead: RangesAhead,
    /// Index of the host in use, among those that may pull.
    host: usize,
    /// Those before it, until it has sent something.
    skipped: SkippedHosts,
    /// True if the last host refuses to send the rest alone: it is asked for all.
    whole: bool,
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
    /// The offset at which it is left: the end of the blob, or of the range that was requested.
    end: u64,
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
            ahead: RangesAhead::default(),
            host: 0,
            skipped: SkippedHosts::default(),
            whole: false,
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
            self.ahead.clear();
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
                if self.ahead.start() != Some(self.offset) {
                    self.connect().await?;
                } else if let Some(piece) = self.next_ahead().await? {
                    return Ok(Some(piece));
                }
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
            if body.end < self.descriptor.size {
                // Of a longer response the rest is not needed.
                let room = usize::try_from(body.end - self.offset).unwrap_or(usize::MAX);
                piece.truncate(room);
            }
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
        let is_over = |body: &Body| body.end == end && end < self.descriptor.size;
        if self.body.as_ref().is_some_and(is_over) {
            self.body = None;
        }
        Ok(Some(piece))
    }

    /// The next piece of the first range that was downloaded ahead; `None` if there is none and the rest of the range has to
    /// be requested.
    async fn next_ahead(&mut self) -> Result<Option<Bytes>> {
        let had_begun = self.ahead.has_begun();
        match self.ahead.next_piece().await {
            Some(Ok(piece)) => {
                let piece = self.take(piece)?;
                self.fill_ahead();
                Ok(piece)
            }
            Some(Err(error)) => {
                // One of which nothing came shows that the host, or what is before it, takes no more connections.
                if !had_begun || !download::is_interruption(&error) {
                    self.forbid_ranges();
                    if !error.is_transient() {
                        tracing::debug!(what = self.what, %error, "no range of this blob can be downloaded ahead");
                        return Ok(None);
                    }
                }
                self.fail(error).await.map(|()| None)
            }
            None => {
                let error = self.size_mismatch(self.offset);
                self.fail(error).await.map(|()| None)
            }
        }
    }

    /// Downloads as many ranges ahead as there may be.
    fn fill_ahead(&mut self) {
        let from = self.body.as_ref().map_or(self.offset, |body| body.end);
        let is_allowed = self.range_use().is_some_and(RangeUse::is_allowed);
        if from >= self.descriptor.size || !is_allowed {
            return;
        }
        let shared = self.pull.shared();
        let config = shared.config.ranges;
        let most = config
            .at_once
            .saturating_sub(usize::from(self.body.is_some()));
        let source = RangeSource {
            pull: &self.pull,
            host: self.host,
            what: &self.what,
            path: &self.path,
            size: self.descriptor.size,
        };
        let permits = &shared.range_permits;
        let start = |range| {
            let permit = Arc::clone(permits).try_acquire_owned().ok()?;
            Some(source.download(range, permit))
        };
        self.ahead
            .fill(&config, from, (self.descriptor.size, most), start);
    }

    /// From now on nothing of this pull is downloaded in ranges from the host in use.
    fn forbid_ranges(&mut self) {
        if let Some(range_use) = self.range_use() {
            range_use.forbid();
        }
        self.ahead.clear();
    }

    /// Returns what the host in use has answered so far; `None` if there is no host.
    fn range_use(&self) -> Option<&RangeUse> {
        let hosts = self.pull.capable(|host| host.pull, &self.what).ok()?;
        let asked = hosts.get(self.host.min(hosts.len() - 1))?;
        Some(&asked.range_use)
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

    /// The end of what is requested next: the first range that is downloaded ahead, or of a new one behind which others can be
    /// downloaded ahead; `None` for all that follows.
    fn requested_end(&self) -> Option<u64> {
        if let Some(start) = self.ahead.start() {
            return Some(start);
        }
        let shared = self.pull.shared();
        let range_use = self.range_use()?;
        if !range_use.is_allowed() || shared.range_permits.available_permits() == 0 {
            return None;
        }
        let rest = self.offset..self.descriptor.size;
        let first = shared.config.ranges.first(rest, range_use.latency());
        first.map(|range| range.end)
    }

    /// Requests the body from the current offset on from the current host, or else from the next ones.
    async fn connect(&mut self) -> Result<()> {
        let pull = self.pull.clone();
        let hosts = pull.capable(|host| host.pull, &self.what)?;
        let index = self.host.min(hosts.len() - 1);
        let to = self.requested_end();
        let target = Target {
            path: &self.path,
            what: &self.what,
            accept: None,
            range: RangeRequest {
                from: if self.whole { 0 } else { self.offset },
                to,
                own_connection: false,
            },
            has_digest: true,
        };
        let opened = match pull.get(hosts[index], target).await {
            Ok(reply) => self.begin(reply.response, reply.host, to),
            Err(error) => Err(error),
        };
        if opened.as_ref().is_err_and(download::is_refusal) {
            self.forbid_ranges();
        }
        match opened {
            Ok(body) => {
                if to.is_some_and(|to| to < body.end) {
                    self.forbid_ranges();
                }
                self.body = Some(body);
                self.skipped = SkippedHosts::default();
                self.fill_ahead();
                Ok(())
            }
            // The host may serve the blob as a whole: it is asked once more, without a range that was not needed.
            Err(error @ Error::Protocol { .. }) if to.is_some() => {
                tracing::debug!(what = self.what, %error, "a range is refused, requesting the whole rest");
                Ok(())
            }
            Err(error) if index + 1 < hosts.len() => {
                self.skipped.add(&hosts[index].host, error);
                self.host = index + 1;
                // What this one may still send ahead says nothing about the next one.
                self.ahead.clear();
                Ok(())
            }
            // As by stores behind a registry that do not resume: the bytes that are known already are skipped.
            Err(error @ Error::Protocol { .. }) if self.offset > 0 && !self.whole => {
                tracing::debug!(what = self.what, %error, "the rest is refused, requesting the whole blob");
                self.whole = true;
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

    /// Checks that a successful response has the requested range, which ends before `to`, if that is known.
    fn begin(&self, response: Response, host: String, to: Option<u64>) -> Result<Body> {
        let size = self.descriptor.size;
        let length = response.content_length();
        let mut end = size;
        let skip = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let sent = download::sent_range(&self.what, &response, &host, (self.offset, size))?;
                // A response that goes beyond what was requested is read to its end.
                end = to.filter(|to| sent.end <= *to).unwrap_or(size);
                0
            }
            // The host ignores ranges, or was asked for none: the bytes that are known already are skipped.
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
            end,
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
