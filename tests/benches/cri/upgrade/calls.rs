//! The count of calls: how many there were of each operation, and how tries of them failed.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::{Code, Status, TimeoutExpired};

/// Between two tries of a call.
const TRY_PAUSE: Duration = Duration::from_millis(10);
/// Limit for a call that is repeated until it succeeds: it covers several restarts amid plugins that take long.
const REPEAT_LIMIT: Duration = Duration::from_secs(120);

/// The reason why a try of a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// Nobody accepted the connection.
    Refused,
    /// The connection ended before the answer: the drain of the daemon was over.
    CutOff,
    /// There was no answer in time.
    TimedOut,
    /// The answer was an error.
    Answered,
}

/// A try of a call that failed.
#[derive(Debug)]
pub(super) struct FailedTry {
    kind: FailureKind,
    text: String,
}

/// The count of one operation.
#[derive(Clone, Copy, Debug, Default)]
struct OperationCount {
    calls: u32,
    /// Calls of which a try failed.
    failed: u32,
    /// Those of them that succeeded after it.
    repeated: u32,
    /// Tries that failed, in the order of [`FailureKind::ALL`].
    tries: [u32; 4],
}

/// The calls of all clients.
#[derive(Debug, Default)]
pub(super) struct CallCounts {
    operations: Mutex<BTreeMap<&'static str, OperationCount>>,
    /// The first call that did not succeed although it was repeated.
    failure: Mutex<Option<String>>,
    over: AtomicBool,
}

// === impl FailureKind ===

impl FailureKind {
    const ALL: [Self; 4] = [Self::Refused, Self::CutOff, Self::TimedOut, Self::Answered];

    const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::CutOff => "cut off",
            Self::TimedOut => "timed out",
            Self::Answered => "error",
        }
    }

    /// The kind of a gRPC call's status. What the server answers has no source.
    pub(super) fn of_status(status: &Status) -> Self {
        if status.code() == Code::DeadlineExceeded {
            return Self::TimedOut;
        }
        let mut source = status.source();
        if source.is_none() {
            return Self::Answered;
        }
        while let Some(error) = source {
            if error.is::<TimeoutExpired>() {
                return Self::TimedOut;
            }
            if let Some(error) = error.downcast_ref::<io::Error>() {
                // A connection for which there is no place is refused where it must not block.
                return Self::of_io(error.kind(), Self::Refused);
            }
            source = error.source();
        }
        Self::CutOff
    }

    fn of_io(kind: io::ErrorKind, would_block: Self) -> Self {
        if matches!(
            kind,
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        ) {
            Self::Refused
        } else if kind == io::ErrorKind::TimedOut {
            Self::TimedOut
        } else if kind == io::ErrorKind::WouldBlock {
            would_block
        } else {
            Self::CutOff
        }
    }
}

// === impl FailedTry ===

impl FailedTry {
    pub(super) fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    /// The reason why it failed.
    pub(super) const fn kind(&self) -> FailureKind {
        self.kind
    }
}

impl From<Status> for FailedTry {
    fn from(status: Status) -> Self {
        Self::new(FailureKind::of_status(&status), status.to_string())
    }
}

impl From<io::Error> for FailedTry {
    /// An error of a client that blocks.
    fn from(error: io::Error) -> Self {
        let kind = FailureKind::of_io(error.kind(), FailureKind::TimedOut);
        Self::new(kind, error.to_string())
    }
}

// === impl CallCounts ===

impl CallCounts {
    /// The flag that ends the clients.
    pub(super) const fn over(&self) -> &AtomicBool {
        &self.over
    }

    /// Returns whether the clients end.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The first call that did not succeed although it was repeated.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Repeats a call until it succeeds, as kubelets do, and counts it. Returns nothing if it does not.
    pub(super) fn repeat<T, E: Into<FailedTry>>(
        &self,
        operation: &'static str,
        mut call: impl FnMut() -> Result<T, E>,
    ) -> Option<T> {
        let end = Instant::now() + REPEAT_LIMIT;
        let mut failed = Vec::new();
        loop {
            let error: FailedTry = match call() {
                Ok(answer) => {
                    self.count(operation, &failed, true);
                    return Some(answer);
                }
                Err(error) => error.into(),
            };
            failed.push(error.kind);
            if Instant::now() > end {
                self.count(operation, &failed, false);
                self.failure
                    .lock()
                    .get_or_insert_with(|| format!("{operation} failed for good: {}", error.text));
                return None;
            }
            thread::sleep(TRY_PAUSE);
        }
    }

    /// Counts a call with the tries of it that failed.
    pub(super) fn count(&self, operation: &'static str, failed: &[FailureKind], succeeded: bool) {
        let mut operations = self.operations.lock();
        let count = operations.entry(operation).or_default();
        count.calls += 1;
        count.failed += u32::from(!failed.is_empty());
        count.repeated += u32::from(!failed.is_empty() && succeeded);
        for (kind, tries) in FailureKind::ALL.into_iter().zip(&mut count.tries) {
            for _ in failed.iter().filter(|failed| **failed == kind) {
                *tries += 1;
            }
        }
    }

    /// The number of calls of an operation.
    pub(super) fn calls(&self, operation: &str) -> u32 {
        self.operations
            .lock()
            .get(operation)
            .map_or(0, |count| count.calls)
    }
}

impl fmt::Display for CallCounts {
    /// One line for each operation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<42}{:>10}{:>10}{:>10}",
            "operation", "calls", "failed", "repeated"
        )?;
        for kind in FailureKind::ALL {
            write!(f, "{:>11}", kind.name())?;
        }
        writeln!(f)?;
        let operations = self.operations.lock().clone();
        for (operation, count) in operations {
            let OperationCount {
                calls,
                failed,
                repeated,
                tries,
            } = count;
            write!(f, "{operation:<42}{calls:>10}{failed:>10}{repeated:>10}")?;
            for tries in tries {
                write!(f, "{tries:>11}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
