//! A backend's reports about its own work, for metrics, in words that fit any runtime.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::Owner;

/// Receives the events of a backend. The methods return at once, and may be called from any thread. An event whose method is
/// left out is ignored: an implementation that must have all denies `clippy::missing_trait_methods`.
pub trait BackendObserver: fmt::Debug + Send + Sync + 'static {
    /// A call to the runtime, or to one of its helper processes, has ended.
    fn call_ended(&self, _call: RuntimeCall<'_>) {}

    /// A connection to the runtime was made again after an earlier one was lost.
    fn reconnected(&self) {}

    /// Recovery has dealt with an object that a predecessor left. `kind` is one word of a closed set of the
    /// backend's.
    fn recovered(&self, _kind: &'static str, _result: RecoveryResult) {}

    /// The kernel has killed so many processes of a task because it was out of memory, its main process or others.
    fn oom_killed(&self, _owner: Owner, _processes: u64) {}

    /// An undo or a removal is left to do, and is tried until it succeeds.
    fn cleanup_added(&self) {}

    /// One try of a cleanup has failed; it stays to be done.
    fn cleanup_failed(&self) {}

    /// A cleanup is done, or was given up until the next start.
    fn cleanup_ended(&self) {}

    /// A run of a network plugin has ended.
    fn plugin_ended(&self, _run: PluginRun<'_>) {}

    /// Bytes of a layer have arrived for a pull from this registry, as the reference of the image names it.
    fn layer_received(&self, _registry: &str, _bytes: u64) {}
}

/// A call to the runtime that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuntimeCall<'a> {
    /// The method, as the runtime's protocol names it; one of the few that the backend uses.
    pub method: &'a str,
    /// The status of its end, as the runtime's protocol names it; `OK` if it succeeded.
    pub code: &'static str,
    /// Duration of the call; `None` if it is up to others, as for a wait or a transfer.
    pub took: Option<Duration>,
}

/// A run of a network plugin that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PluginRun<'a> {
    /// The plugin, as the configuration of the network names it.
    pub plugin: &'a str,
    /// The command that it was to carry out; one of a closed set of the backend's.
    pub command: &'static str,
    /// The result.
    pub result: PluginResult,
    /// Duration of the run.
    pub took: Duration,
}

/// The result of a run of a network plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginResult {
    /// It succeeded, or there was nothing to do.
    Succeeded,
    /// It failed, could not be started, or did not end in time.
    Failed,
    /// It was given up before its end.
    Dropped,
}

impl PluginResult {
    /// The result in one word, as a metric has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "ok",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// The result of recovery for an object that a predecessor left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryResult {
    /// It runs, and was taken over as it runs.
    Adopted,
    /// It does not run, and is known again.
    Recovered,
    /// It ran, or may have run, its process is gone, and its exit was not observed, as after a reboot of the node.
    Lost,
    /// It was incomplete or belonged to nothing, and has been removed.
    Cleaned,
    /// It could not be read, and was left alone.
    Unreadable,
}

impl RecoveryResult {
    /// The result in one word, as a metric has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Adopted => "adopted",
            Self::Recovered => "recovered",
            Self::Lost => "lost",
            Self::Cleaned => "cleaned",
            Self::Unreadable => "unreadable",
        }
    }
}

/// An observer that ignores everything.
#[must_use]
pub fn unobserved() -> Arc<dyn BackendObserver> {
    #[derive(Debug)]
    struct Unobserved;

    impl BackendObserver for Unobserved {}

    Arc::new(Unobserved)
}
