//! Reports of the runs of CNI plugins: the end of each to the observer of the backend, and a span below a span.

use std::sync::Arc;
use std::time::Instant;

use switchyard_cni::{Error, PluginObserver, RunEnd, Verb};
use switchyard_core::backend::{BackendObserver, PluginResult, PluginRun};
use switchyard_core::trace::{self, SpanKind};

/// Reports each run of a plugin.
#[derive(Debug)]
pub(crate) struct PluginRuns {
    observer: Arc<dyn BackendObserver>,
}

/// A run that has begun. It is reported when this is dropped.
struct BegunRun {
    observer: Arc<dyn BackendObserver>,
    plugin: String,
    verb: Verb,
    began: Instant,
    /// Until the run has ended, it counts as dropped.
    result: PluginResult,
}

// === impl PluginRuns ===

impl PluginRuns {
    pub(crate) fn new(observer: Arc<dyn BackendObserver>) -> Self {
        Self { observer }
    }
}

impl PluginObserver for PluginRuns {
    fn began(&self, plugin: &str, verb: Verb) -> RunEnd {
        let run = BegunRun {
            observer: Arc::clone(&self.observer),
            plugin: plugin.to_owned(),
            verb,
            began: Instant::now(),
            result: PluginResult::Dropped,
        };
        let span = trace::begin(SpanKind::Internal, "cni_plugin").map(|mut span| {
            span.set_with("switchyard.cni.plugin", || plugin.to_owned());
            span.set("switchyard.cni.command", verb.as_str());
            span
        });
        Box::new(move |failure: Option<&Error>| {
            let failure = failure.filter(|error| !error.is_no_failure_of(verb));
            run.end(match failure {
                None => PluginResult::Succeeded,
                Some(_) => PluginResult::Failed,
            });
            match (span, failure) {
                (Some(span), Some(error)) => span.fail("cni_plugin", error.report()),
                (Some(span), None) => span.end(),
                (None, _) => {}
            }
        })
    }
}

// === impl BegunRun ===

impl BegunRun {
    fn end(mut self, result: PluginResult) {
        self.result = result;
    }
}

impl Drop for BegunRun {
    fn drop(&mut self) {
        self.observer.plugin_ended(PluginRun {
            plugin: &self.plugin,
            command: self.verb.as_str(),
            result: self.result,
            took: self.began.elapsed(),
        });
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct EndedRuns(Mutex<Vec<String>>);

    impl BackendObserver for EndedRuns {
        fn plugin_ended(&self, run: PluginRun<'_>) {
            let result = run.result.as_str();
            self.0
                .lock()
                .push(format!("{} {} {result}", run.command, run.plugin));
        }
    }

    fn refused(verb: Verb, code: u64) -> Error {
        Error::Refused {
            plugin: "bridge".to_owned(),
            verb,
            code,
            msg: "no".to_owned(),
            details: String::new(),
        }
    }

    #[test]
    fn each_run_is_reported_once_whatever_becomes_of_it() {
        let ended = Arc::new(EndedRuns::default());
        let runs = PluginRuns::new(Arc::clone(&ended) as Arc<dyn BackendObserver>);
        let begin = |verb| runs.began("bridge", verb);
        begin(Verb::Add)(None);
        begin(Verb::Add)(Some(&refused(Verb::Add, 11)));
        begin(Verb::Add)(Some(&refused(Verb::Add, 3)));
        // What is not known is detached.
        begin(Verb::Del)(Some(&refused(Verb::Del, 3)));
        drop(begin(Verb::Del));
        // What the plugin does not have says nothing.
        begin(Verb::Status)(Some(&refused(Verb::Status, 4)));
        begin(Verb::Status)(Some(&refused(Verb::Status, 50)));
        let expected = [
            "ADD bridge ok",
            "ADD bridge failed",
            "ADD bridge failed",
            "DEL bridge ok",
            "DEL bridge dropped",
            "STATUS bridge ok",
            "STATUS bridge failed",
        ];
        assert_eq!(*ended.0.lock(), expected);
    }
}
