//! Spans: the gateway's work for a request, as a tree that distributed tracing shows.
//!
//! A *span* is a piece of work with a beginning and an end, below the span that began it. The span that the
//! current asynchronous task works for is a task-local value: code that begins a span below it ([`begin`])
//! needs nothing but that, and work that is spawned keeps it by [`inherit`]. A tree begins at a [`Tracer`],
//! for a request whose caller may have sent the context of its own span. Without a tracer there is no current
//! span, and [`begin`] only looks.
//!
//! A tree that is not sampled has a context, which is passed on, and records nothing. The recorded spans go
//! to one [`SpanSink`], from which the daemon makes its exports.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::error::{ErrorKind, Result};

mod context;
mod ids;
mod sampler;
mod scope;
mod state;

pub use context::{SpanContext, SpanId, TraceId};
pub use sampler::Sampler;
pub(crate) use scope::current_id;
pub use scope::{InSpan, TracePlace, inherit, traced};
pub use state::TraceState;

use ids::Ids;
use scope::{CURRENT, current};

/// The longest text of an attribute or a failure, in bytes; the rest of a longer one is left out.
pub const TEXT_MAX: usize = 256;

/// The attribute with the class of a failure.
const ERROR_TYPE: &str = "error.type";

/// Receives the spans that have ended. It must not block.
pub trait SpanSink: Send + Sync + fmt::Debug {
    /// A span has ended.
    fn ended(&self, span: EndedSpan);
}

/// Begins trees of spans. Clones share everything.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<Origin>);

#[derive(Debug)]
struct Origin {
    sampler: Sampler,
    ids: Ids,
    sink: Arc<dyn SpanSink>,
}

/// The side from which a span sees a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A call that this process answers.
    Server,
    /// A call that this process makes.
    Client,
    /// Work of its own.
    Internal,
}

/// Something that a span says of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub key: &'static str,
    /// Its value.
    pub value: AttributeValue,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text of at most [`TEXT_MAX`] bytes.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct EndedSpan {
    /// Its identity.
    pub context: SpanContext,
    /// The span that it is below; `None` for the first of a trace.
    pub parent: Option<SpanId>,
    /// Its name: the kind of work, in a few words.
    pub name: Cow<'static, str>,
    /// The side from which it sees a call.
    pub kind: SpanKind,
    /// Time at which it began.
    pub began_at: SystemTime,
    /// Its duration.
    pub took: Duration,
    /// Attributes of its work.
    pub attributes: Vec<Attribute>,
    /// The reason for its failure, at most [`TEXT_MAX`] bytes; `None` if it did not fail.
    pub failure: Option<String>,
}

/// A span that has begun. When it is dropped before its end, its work was given up, which is a failure.
#[derive(Debug)]
#[must_use = "a span that is dropped has failed"]
pub struct Span {
    place: Arc<Place>,
    /// `None` if the tree is not sampled.
    record: Option<Box<Record>>,
}

/// A place in a tree, below which spans can begin.
#[derive(Debug)]
struct Place {
    tracer: Tracer,
    context: SpanContext,
    has_children: AtomicBool,
}

#[derive(Debug)]
struct Record {
    parent: Option<SpanId>,
    name: Cow<'static, str>,
    kind: SpanKind,
    began_at: SystemTime,
    began: Instant,
    attributes: Vec<Attribute>,
    /// True if it is left out if no span began below it.
    is_incidental: bool,
}

/// Begins a span below the current one; `None` without a current one.
pub fn begin(kind: SpanKind, name: &'static str) -> Option<Span> {
    let place = current()?;
    Some(place.child(kind, || name.into()))
}

/// As [`begin`], with a name that is made only for a span that is recorded.
pub fn begin_with(kind: SpanKind, name: impl FnOnce() -> String) -> Option<Span> {
    let place = current()?;
    Some(place.child(kind, || name().into()))
}

// === impl Tracer ===

impl Tracer {
    /// Makes a tracer whose trees `sampler` chooses, and whose spans go to `sink`.
    #[must_use]
    pub fn new(sampler: Sampler, sink: Arc<dyn SpanSink>) -> Self {
        Self(Arc::new(Origin {
            sampler,
            ids: Ids::default(),
            sink,
        }))
    }

    /// Begins a tree of this process: below the span of a caller if there is one.
    pub fn root(
        &self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        caller: Option<SpanContext>,
    ) -> Span {
        self.begin(Sampler::samples, kind, name.into(), caller)
    }

    /// As [`Tracer::root`], for a probe: a command in a task by which somebody looks again and again whether it is well.
    pub fn probe(
        &self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        caller: Option<SpanContext>,
    ) -> Span {
        self.begin(Sampler::samples_probe, kind, name.into(), caller)
    }

    fn begin(
        &self,
        samples: fn(Sampler, TraceId, Option<bool>) -> bool,
        kind: SpanKind,
        name: Cow<'static, str>,
        caller: Option<SpanContext>,
    ) -> Span {
        let Origin {
            sampler,
            ids,
            sink: _,
        } = &*self.0;
        let trace = caller
            .as_ref()
            .map_or_else(|| ids.trace(), |caller| caller.trace);
        let is_sampled = samples(
            *sampler,
            trace,
            caller.as_ref().map(|caller| caller.is_sampled),
        );
        let parent = caller.as_ref().map(|caller| caller.span);
        // A tree that records nothing has no span of its own: calls made below it get the caller's as their parent.
        let span = match parent {
            Some(parent) if !is_sampled => parent,
            Some(_) | None => ids.span(),
        };
        let state = caller.and_then(|caller| caller.state);
        let context = SpanContext {
            trace,
            span,
            is_sampled,
            state,
        };
        let place = Place {
            tracer: self.clone(),
            context,
            has_children: AtomicBool::new(false),
        };
        let record = is_sampled.then(|| Box::new(Record::begin(parent, kind, name)));
        Span {
            place: Arc::new(place),
            record,
        }
    }

    /// As [`Tracer::root`], but a span that no caller has sent a context for is left out if none began below it: a
    /// query that is answered from memory is worth no trace of its own.
    pub fn request(&self, name: impl Into<Cow<'static, str>>, caller: Option<SpanContext>) -> Span {
        let is_incidental = caller.is_none();
        let mut span = self.root(SpanKind::Server, name, caller);
        if let Some(record) = &mut span.record {
            record.is_incidental = is_incidental;
        }
        span
    }
}

// === impl Span ===

impl Span {
    /// Returns the identity of the span for others; of a tree that is not sampled, the received context.
    #[must_use]
    pub fn context(&self) -> &SpanContext {
        &self.place.context
    }

    /// Returns whether the span is recorded, so that somebody may read what it says.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// Says something of the work; a long text is cut.
    pub fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        if let Some(record) = &mut self.record {
            record.attributes.push(Attribute {
                key,
                value: value.into(),
            });
        }
    }

    /// As [`Span::set`], for a text that is made only if the span is recorded.
    pub fn set_with(&mut self, key: &'static str, value: impl FnOnce() -> String) {
        if self.record.is_some() {
            self.set(key, value());
        }
    }

    /// Runs work in this span: spans that begin in it are below.
    pub fn scope<F: Future>(&self, work: F) -> InSpan<F> {
        InSpan::at(Some(Arc::clone(&self.place)), work)
    }

    /// Does something in this span at once.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(Arc::clone(&self.place), work)
    }

    /// Ends the span: its work succeeded.
    pub fn end(mut self) {
        self.finish(None);
    }

    /// Ends the span: its work failed. `kind` is the class of the failure in one word.
    pub fn fail(mut self, kind: &'static str, why: impl fmt::Display) {
        if self.record.is_some() {
            self.set(ERROR_TYPE, kind);
            self.finish(Some(why.to_string()));
        }
    }

    /// Ends the span by the result of its work.
    pub fn end_with<T>(self, result: &Result<T>) {
        match result {
            Ok(_) => self.end(),
            Err(error) => self.fail(error.kind().as_str(), error.report()),
        }
    }

    fn finish(&mut self, failure: Option<String>) {
        let Some(record) = self.record.take() else {
            return;
        };
        let Record {
            parent,
            name,
            kind,
            began_at,
            began,
            attributes,
            is_incidental,
        } = *record;
        if is_incidental && !self.place.has_children.load(Ordering::Relaxed) {
            return;
        }
        let failure = failure.map(cut);
        let Place {
            tracer,
            context,
            has_children: _,
        } = &*self.place;
        let context = context.clone();
        let took = began.elapsed();
        tracer.0.sink.ended(EndedSpan {
            context,
            parent,
            name,
            kind,
            began_at,
            took,
            attributes,
            failure,
        });
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.set(ERROR_TYPE, ErrorKind::Cancelled.as_str());
        self.finish(Some("it was given up".to_owned()));
    }
}

// === impl Place ===

impl Place {
    fn child(self: &Arc<Self>, kind: SpanKind, name: impl FnOnce() -> Cow<'static, str>) -> Span {
        if !self.context.is_sampled {
            return Span {
                place: Arc::clone(self),
                record: None,
            };
        }
        self.has_children.store(true, Ordering::Relaxed);
        let context = SpanContext {
            span: self.tracer.0.ids.span(),
            ..self.context.clone()
        };
        let record = Some(Box::new(Record::begin(
            Some(self.context.span),
            kind,
            name(),
        )));
        let tracer = self.tracer.clone();
        Span {
            place: Arc::new(Self {
                tracer,
                context,
                has_children: AtomicBool::new(false),
            }),
            record,
        }
    }
}

// === impl Record ===

impl Record {
    fn begin(parent: Option<SpanId>, kind: SpanKind, name: Cow<'static, str>) -> Self {
        Self {
            parent,
            name: cut_cow(name),
            kind,
            began_at: SystemTime::now(),
            began: Instant::now(),
            attributes: Vec::new(),
            is_incidental: false,
        }
    }
}

// === impl AttributeValue ===

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(cut_cow(Cow::Borrowed(text)))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(cut(text)))
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

fn cut_cow(text: Cow<'static, str>) -> Cow<'static, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[..text.floor_char_boundary(TEXT_MAX)]),
        Cow::Owned(text) => Cow::Owned(cut(text)),
    }
}

#[cfg(test)]
mod tests;
