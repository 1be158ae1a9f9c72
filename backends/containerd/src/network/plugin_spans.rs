//! A span for each run of a CNI plugin.

use switchyard_cni::{Error, PluginObserver, RunEnd, Verb};
use switchyard_core::trace::{self, SpanKind};

/// Begins a span for each plugin that runs below a span.
#[derive(Debug)]
pub(crate) struct PluginSpans;

impl PluginObserver for PluginSpans {
    fn began(&self, plugin: &str, verb: Verb) -> Option<RunEnd> {
        let mut span = trace::begin(SpanKind::Internal, "cni_plugin")?;
        span.set_with("switchyard.cni.plugin", || plugin.to_owned());
        span.set("switchyard.cni.command", verb.as_str());
        Some(Box::new(|failure: Option<&Error>| match failure {
            None => span.end(),
            Some(error) => span.fail(error.report()),
        }))
    }
}
