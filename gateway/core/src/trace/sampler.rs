//! Selection of the traces that are recorded.

use super::context::TraceId;

/// Decides which traces are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampler {
    /// All of them.
    All,
    /// None.
    Nothing,
    /// This share of them, from 0 to 1, chosen by their ids: other processes with the same share choose the same.
    Share(f64),
    /// Those that the caller records; of traces that begin here, all.
    CallerOrAll,
    /// Those that the caller records; of traces that begin here, none.
    CallerOrNothing,
    /// Those that the caller records; of traces that begin here, this share.
    CallerOrShare(f64),
}

impl Sampler {
    /// Returns whether the trace of a probe is recorded. There are thousands of probes for one start: without a caller that
    /// records them, only a sampler of all traces does.
    pub(super) fn samples_probe(self, trace: TraceId, caller: Option<bool>) -> bool {
        self == Self::All || (caller.is_some() && self.samples(trace, caller))
    }

    /// Returns whether a trace is recorded; its caller may have sent its own decision.
    pub(super) fn samples(self, trace: TraceId, caller: Option<bool>) -> bool {
        match self {
            Self::All => true,
            Self::Nothing => false,
            Self::Share(share) => is_within(share, trace),
            Self::CallerOrAll => caller.unwrap_or(true),
            Self::CallerOrNothing => caller.unwrap_or(false),
            Self::CallerOrShare(share) => caller.unwrap_or_else(|| is_within(share, trace)),
        }
    }
}

/// Returns whether an id is within the share, by its last 63 bits, as the SDKs of OpenTelemetry decide it.
fn is_within(share: f64, trace: TraceId) -> bool {
    let [.., a, b, c, d, e, f, g, h] = trace.to_bytes();
    let id = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
    // 2^63: exact as a float, as are the comparisons that matter.
    #[allow(
        clippy::cast_precision_loss,
        reason = "the share is no more precise than that"
    )]
    let place = id as f64 / 9_223_372_036_854_775_808.0;
    place < share
}
