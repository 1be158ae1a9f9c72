//! The identity of a span for other processes, and its text forms, which are those of W3C Trace Context.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use super::state::TraceState;

/// The length of the text form.
const LEN: usize = 55;

/// The flag of a trace whose spans are recorded.
const SAMPLED: u8 = 1;

/// The id that all spans of one trace share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub(super) NonZeroU128);

/// The id of a span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub(super) NonZeroU64);

/// The identity of a span for other processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanContext {
    /// Its trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// True if the spans of the trace are recorded.
    pub is_sampled: bool,
    /// Additions of the systems on the way.
    pub state: Option<TraceState>,
}

// === impl SpanContext ===

impl SpanContext {
    /// The context that a `traceparent` names, without what the systems on the way have added; `None` if the text
    /// is not a valid one.
    #[must_use]
    pub fn parse(traceparent: &str) -> Option<Self> {
        if !traceparent.is_ascii() || traceparent.len() < LEN {
            return None;
        }
        let (known, rest) = traceparent.split_at(LEN);
        let mut fields = known.split('-');
        let mut field = |digits: usize| {
            fields
                .next()
                .filter(|text| text.len() == digits && is_hex(text))
        };
        let version = field(2)?;
        let trace = field(32)?;
        let span = field(16)?;
        let flags = field(2)?;
        let is_known = match version {
            "00" => rest.is_empty(),
            "ff" => false,
            // A later version may only add fields.
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        if !is_known {
            return None;
        }
        Some(Self {
            trace: TraceId(NonZeroU128::new(u128::from_str_radix(trace, 16).ok()?)?),
            span: SpanId(NonZeroU64::new(u64::from_str_radix(span, 16).ok()?)?),
            is_sampled: u8::from_str_radix(flags, 16).ok()? & SAMPLED != 0,
            state: None,
        })
    }

    /// The context as a `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        let Self {
            trace,
            span,
            is_sampled,
            state: _,
        } = self;
        format!("00-{trace}-{span}-{:02x}", u8::from(*is_sampled))
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

// === impl TraceId ===

impl TraceId {
    /// The 16 bytes of the id.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

// === impl SpanId ===

impl SpanId {
    /// The 8 bytes of the id.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
