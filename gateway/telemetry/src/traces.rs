//! Distributed tracing: the spans of calls and operations, sent to a collector by OTLP.
//!
//! The environment variables of OpenTelemetry configure it ([`TraceSettings`]); without an endpoint there is neither a
//! tracer nor a task. Spans that have ended wait in a bounded queue for the exporter, which sends them in batches. What
//! does not find room, or is not accepted in time, is lost, counted and logged once: nothing waits for a collector.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::trace::Tracer;
use tokio::task::JoinHandle;

mod collector;
mod exporter;
mod settings;
mod to_proto;

pub use exporter::TraceCounts;
pub use settings::{TraceSettings, TraceSettingsError};

use collector::Collector;
use exporter::{SpanCounters, SpanQueue};
use to_proto::SpanSource;

/// Time for the last spans to be sent when the daemon ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The traces of this daemon. It has to be ended by [`Traces::end`], which sends what is left.
#[derive(Debug)]
pub struct Traces {
    tracer: Tracer,
    queue: Arc<SpanQueue>,
    counts: Arc<SpanCounters>,
    exporter: Mutex<Option<JoinHandle<()>>>,
}

impl Traces {
    /// Begins to trace. It must be called within a runtime.
    ///
    /// # Errors
    /// [`TraceSettingsError`] if no connection can be made with the settings.
    pub fn start(settings: &TraceSettings) -> Result<Self, TraceSettingsError> {
        let collector = Collector::new(settings)?;
        let source = SpanSource::new(&settings.resource);
        let counts = Arc::new(SpanCounters::default());
        let (queue, waiting) = SpanQueue::new(Arc::clone(&counts));
        let queue = Arc::new(queue);
        let exporter = tokio::spawn(exporter::run(
            waiting,
            source,
            collector,
            Arc::clone(&counts),
        ));
        let tracer = Tracer::new(settings.sampler, Arc::clone(&queue) as _);
        tracing::info!(endpoint = %settings.endpoint, "traces are exported");
        Ok(Self {
            tracer,
            queue,
            counts,
            exporter: Mutex::new(Some(exporter)),
        })
    }

    /// The tracer, which begins traces.
    #[must_use]
    pub const fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// The spans since the daemon started.
    #[must_use]
    pub fn counts(&self) -> TraceCounts {
        self.counts.get()
    }

    /// Sends what is left, for a bounded time, and ends the exporter. Spans that end later are lost.
    pub async fn end(&self) {
        let exporter = self.exporter.lock().take();
        let Some(mut exporter) = exporter else { return };
        self.queue.close();
        if tokio::time::timeout(FLUSH, &mut exporter).await.is_err() {
            exporter.abort();
            tracing::warn!(
                "the last spans are lost: the collector did not accept them within {FLUSH:?}"
            );
        }
    }
}

impl TraceSettings {
    /// Checks that traces can be exported with them, without a connection. Blocks on the file system.
    ///
    /// # Errors
    /// The file with the authorities, or the endpoint, is unusable.
    pub fn check(&self) -> Result<(), TraceSettingsError> {
        collector::endpoint(self).map(drop)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(exporter) = self.exporter.get_mut().take() {
            exporter.abort();
        }
    }
}

#[cfg(test)]
mod tests;
