//! Operations: what each request that changes something does at the moment, for whom, and how it ends.
//!
//! An operation is registered when [`Scope`](crate::gateway::Scope) begins to execute it, and runs to its end
//! whether its caller waits or not. A caller that joins an execution in flight, or is answered from the table,
//! changes nothing and is no operation. Access to the inside of a task counts as a change: a command in it, its
//! streams, and its environment (`ShowSecrets`). Work that the gateway does inside an operation, such as the stop that
//! is a part of a removal, belongs to that operation.
//!
//! While it runs, an operation has *steps*: what it works on or waits for ([`step`]). Steps of one operation may
//! overlap. Both are reported to one [`OperationObserver`], from which the daemon makes the audit log and the
//! metrics. With a tracer, each operation and each step is a span too, and so is work that is a part of an operation.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::error::{Error, ErrorKind, Result};
use crate::id::Owner;
use crate::image::PullProgress;
use crate::trace::{InSpan, Span, TraceId, Tracer};

mod caller;
mod context;
mod id;
mod kind;
mod progress;
mod span;
mod step;
mod subject;

pub use caller::Caller;
pub use context::{ContextField, Inherited, inherit, log_context};
pub use id::OperationId;
pub use kind::OperationKind;
pub use step::{StepFuture, plain_step, step};
pub use subject::{ARGUMENT_MAX, Subject};

use id::Run;
use progress::ProgressReader;
use step::{ActiveStep, StepKey};

tokio::task_local! {
    /// The operation that the current asynchronous task works for.
    static CURRENT: Arc<ActiveOperation>;
}

/// The longest text of an operation's error in a record or a list, in bytes.
pub const ERROR_TEXT_MAX: usize = 512;

/// The operations in flight. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Operations(Arc<Registry>);

/// The number and the greatest age of operations in flight, by owner and kind.
pub type OperationAges = BTreeMap<(Option<Owner>, OperationKind), (u64, Duration)>;

/// Learns of the ends of operations and steps. Its methods are called by the asynchronous task that executes
/// the operation and must not block.
pub trait OperationObserver: Send + Sync {
    /// An operation has ended.
    fn operation_ended(&self, operation: &EndedOperation<'_>);

    /// A step of an operation has ended; ignored by default.
    fn step_ended(&self, _step: EndedStep) {}

    /// Returns the names of the objects for the log, under which their orchestrator knows them; none by default.
    fn names(&self, _subject: &Subject) -> Vec<ContextField> {
        Vec::new()
    }

    /// Returns what a span says of the objects besides their ids; nothing by default. It is asked for recorded spans alone.
    fn span_attributes(&self, _subject: &Subject) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A step that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedStep {
    /// The kind of its operation.
    pub operation: OperationKind,
    /// Its name.
    pub name: &'static str,
    /// Its duration.
    pub took: Duration,
    /// The kind of its error, `Cancelled` if it was dropped before its end; `None` if it succeeded, or its failure is
    /// not for others to read.
    pub failure: Option<ErrorKind>,
}

/// An operation that has ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedOperation<'a> {
    /// Its id.
    pub id: OperationId,
    /// The trace that it belongs to, if there is one.
    pub trace: Option<TraceId>,
    /// Its kind.
    pub kind: OperationKind,
    /// Owner of the objects that it changed; `None` for the daemon's own operations.
    pub owner: Option<Owner>,
    /// The objects that it changed.
    pub subject: &'a Subject,
    /// The caller that requested it; `None` if nobody did, as for a removal that recovery continues.
    pub caller: Option<&'a Caller>,
    /// Time at which it began.
    pub began_at: SystemTime,
    /// Its duration.
    pub took: Duration,
    /// Its outcome.
    pub outcome: Outcome<'a>,
}

/// The outcome of an operation.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed(&'a Error),
    /// It was dropped before its end: it panicked, or its caller cancelled an operation that does not outlive
    /// its caller.
    Dropped,
}

/// An operation in flight, at one moment.
#[derive(Debug, Clone)]
pub struct OperationInFlight {
    /// Its number, in the order of the beginnings.
    pub number: u64,
    /// Its kind.
    pub kind: OperationKind,
    /// Owner of the objects that it changes; `None` for the daemon's own operations.
    pub owner: Option<Owner>,
    /// The objects that it changes.
    pub subject: Subject,
    /// The caller that requested it.
    pub caller: Option<Caller>,
    /// Time at which it began.
    pub began_at: SystemTime,
    /// For how long it has run.
    pub age: Duration,
    /// The steps it is in, by their beginning, each with the time for which it has been in it.
    pub steps: Vec<(&'static str, Duration)>,
    /// The progress of a pull; `None` of other operations, and while its size is not known.
    pub pull: Option<PullProgress>,
}

/// An operation that is registered and whose work has not begun.
#[derive(Debug)]
#[must_use = "an operation that is not run counts as dropped"]
pub struct PendingOperation(Registration);

#[derive(Debug)]
enum Registration {
    /// An operation of its own.
    Own(OperationGuard),
    /// A part of the operation that began it, with its span.
    Part(Arc<ActiveOperation>, Option<Span>),
}

#[derive(Default)]
struct Registry {
    run: Run,
    next: AtomicU64,
    in_flight: Mutex<BTreeMap<u64, Arc<ActiveOperation>>>,
    observer: OnceLock<Arc<dyn OperationObserver>>,
    tracer: OnceLock<Tracer>,
}

/// An operation in flight.
#[derive(Debug)]
struct ActiveOperation {
    number: u64,
    /// The trace that it belongs to.
    trace: Option<TraceId>,
    kind: OperationKind,
    owner: Option<Owner>,
    caller: Option<Caller>,
    subject: Subject,
    began_at: SystemTime,
    began: Instant,
    steps: Mutex<BTreeMap<StepKey, ActiveStep>>,
    /// Set for a pull.
    progress: OnceLock<ProgressReader>,
    registry: Arc<Registry>,
}

/// Reports the end of an operation, at the latest when it is dropped.
#[derive(Debug)]
struct OperationGuard {
    operation: Arc<ActiveOperation>,
    ended: bool,
    span: Option<Span>,
}

/// The operation that the current asynchronous task works for.
#[derive(Debug)]
pub(crate) struct CurrentOperation {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) caller: Option<Caller>,
}

/// Returns the operation that the current asynchronous task works for.
pub(crate) fn current() -> Option<CurrentOperation> {
    let current = |operation: &Arc<ActiveOperation>| CurrentOperation {
        id: operation.id(),
        kind: operation.kind,
        caller: operation.caller.clone(),
    };
    CURRENT.try_with(current).ok()
}

// === impl Operations ===

impl EndedOperation<'_> {
    /// The text of its error in at most `max` bytes, for the log, records and views; `None` if it has not failed. The
    /// middle of a longer text is cut out: its beginning names the object and its end gives the reason.
    #[must_use]
    pub fn error_text(&self, max: usize) -> Option<String> {
        match self.outcome {
            Outcome::Failed(error) => Some(error.text_within(max)),
            Outcome::Succeeded | Outcome::Dropped => None,
        }
    }
}

impl Operations {
    /// Registers an operation; if the current asynchronous task works for an operation already, it is a part of
    /// that one.
    pub fn begin(
        &self,
        kind: OperationKind,
        owner: Option<Owner>,
        caller: Option<Caller>,
        subject: Subject,
    ) -> PendingOperation {
        let span = span::of_operation(
            self.0.tracer.get(),
            self.0.observer.get(),
            kind,
            owner,
            &subject,
        );
        if let Ok(parent) = CURRENT.try_with(Arc::clone) {
            let span = span::with_id(span, parent.id());
            return PendingOperation(Registration::Part(parent, span));
        }
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let span = span::with_id(span, OperationId::new(self.0.run, number));
        let operation = Arc::new(ActiveOperation {
            number,
            trace: span.as_ref().map(|span| span.context().trace),
            kind,
            owner,
            caller,
            subject,
            began_at: SystemTime::now(),
            began: Instant::now(),
            steps: Mutex::default(),
            progress: OnceLock::new(),
            registry: Arc::clone(&self.0),
        });
        self.0
            .in_flight
            .lock()
            .insert(number, Arc::clone(&operation));
        PendingOperation(Registration::Own(OperationGuard {
            operation,
            ended: false,
            span,
        }))
    }

    /// The operations in flight, the oldest first.
    #[must_use]
    pub fn in_flight(&self) -> Vec<OperationInFlight> {
        let active: Vec<_> = self.0.in_flight.lock().values().cloned().collect();
        active.iter().map(|operation| operation.view()).collect()
    }

    /// The number and the greatest age of operations in flight.
    #[must_use]
    pub fn ages(&self) -> OperationAges {
        let mut ages = OperationAges::new();
        for operation in self.0.in_flight.lock().values() {
            let (count, oldest) = ages
                .entry((operation.owner, operation.kind))
                .or_insert((0, Duration::ZERO));
            *count += 1;
            *oldest = operation.began.elapsed().max(*oldest);
        }
        ages
    }

    /// Sets the observer, once.
    pub fn observe(&self, observer: Arc<dyn OperationObserver>) {
        // A gateway has one observer.
        let _ = self.0.observer.set(observer);
    }

    /// Sets the tracer, once. Operations that nobody's span began are then trees of their own.
    pub fn trace(&self, tracer: Tracer) {
        // A gateway has one tracer.
        let _ = self.0.tracer.set(tracer);
    }

    /// The tracer, if there is one.
    #[must_use]
    pub fn tracer(&self) -> Option<&Tracer> {
        self.0.tracer.get()
    }
}

// === impl PendingOperation ===

impl PendingOperation {
    /// Lets those who look at operations in flight read the progress of a pull, unless it is a part of another operation.
    /// `read` does not block.
    pub fn with_progress(
        self,
        read: impl Fn() -> Option<PullProgress> + Send + Sync + 'static,
    ) -> Self {
        if let Registration::Own(guard) = &self.0 {
            // An operation is made with one reader.
            let _ = guard.operation.progress.set(ProgressReader::new(read));
        }
        self
    }

    /// Does the work of the operation; its end is that of the operation. As cancel-safe as `work`.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn run<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.run_with(work, Error::clone).await
    }

    /// As [`PendingOperation::run`], for work whose error is of another type.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn run_with<T, E>(
        self,
        work: impl Future<Output = std::result::Result<T, E>>,
        describe: impl FnOnce(&E) -> Error,
    ) -> std::result::Result<T, E> {
        match self.0 {
            Registration::Part(parent, span) => {
                let result = InSpan::of(span.as_ref(), CURRENT.scope(parent, work)).await;
                if span.is_some() {
                    span::end(span, result.as_ref().err().map(describe).as_ref());
                }
                result
            }
            Registration::Own(mut guard) => {
                let work = CURRENT.scope(Arc::clone(&guard.operation), work);
                let result = InSpan::of(guard.span.as_ref(), work).await;
                let error = result.as_ref().err().map(describe);
                span::end(guard.span.take(), error.as_ref());
                guard.end(error.as_ref().map_or(Outcome::Succeeded, Outcome::Failed));
                result
            }
        }
    }
}

// === impl OperationGuard ===

impl OperationGuard {
    fn end(&mut self, outcome: Outcome<'_>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let ActiveOperation {
            number,
            trace,
            kind,
            owner,
            caller,
            subject,
            began_at,
            began,
            registry,
            steps: _,
            progress: _,
        } = &*self.operation;
        registry.in_flight.lock().remove(number);
        if let Some(observer) = registry.observer.get() {
            let ended = EndedOperation {
                id: self.operation.id(),
                trace: *trace,
                kind: *kind,
                owner: *owner,
                subject,
                caller: caller.as_ref(),
                began_at: *began_at,
                took: began.elapsed(),
                outcome,
            };
            self.operation
                .name_in_log(|| observer.operation_ended(&ended));
        }
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        self.end(Outcome::Dropped);
    }
}

// === impl ActiveOperation ===

impl ActiveOperation {
    fn id(&self) -> OperationId {
        OperationId::new(self.registry.run, self.number)
    }

    fn view(&self) -> OperationInFlight {
        OperationInFlight {
            number: self.number,
            kind: self.kind,
            owner: self.owner,
            subject: self.subject.clone(),
            caller: self.caller.clone(),
            began_at: self.began_at,
            age: self.began.elapsed(),
            steps: self
                .steps
                .lock()
                .values()
                .map(|step| (step.name, step.began.elapsed()))
                .collect(),
            pull: self.progress.get().and_then(ProgressReader::read),
        }
    }
}

// === impl Registry ===

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("in_flight", &self.in_flight.lock().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
