//! The frontends that have sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use switchyard_nomad::Launchers;
use switchyard_operator::control::Reporter;
use switchyard_operator::metrics::ReportedFigures;
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::VERSION;
use switchyard_streaming::Sessions;

/// State of a server: whether it serves. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Serving(Arc<AtomicBool>);

/// CRI with its streaming server.
#[derive(Debug)]
pub(crate) struct CriReport {
    pub(crate) is_serving: Serving,
    pub(crate) is_streaming: Serving,
    /// The address of the streaming server.
    pub(crate) address: SocketAddr,
    pub(crate) sessions: Sessions,
}

/// Nomad.
#[derive(Debug)]
pub(crate) struct NomadReport {
    pub(crate) is_serving: Serving,
    pub(crate) launchers: Launchers,
}

// === impl Serving ===

impl Serving {
    pub(crate) fn set(&self, is_serving: bool) {
        self.0.store(is_serving, Ordering::Release);
    }

    /// The condition of the server, which is up with this description.
    fn condition(&self, up: impl FnOnce() -> String) -> Condition {
        if self.0.load(Ordering::Acquire) {
            Condition::Up(up())
        } else {
            Condition::Down("is not served yet, or not any more".to_owned())
        }
    }
}

// === impl CriReport ===

impl Reporter for CriReport {
    fn parts(&self) -> Vec<Part> {
        let streaming = || format!("serving on {}", self.address);
        vec![
            Part::needed("cri", self.is_serving.condition(|| "serving".to_owned())),
            Part::needed("streaming", self.is_streaming.condition(streaming)),
        ]
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.streaming = self.sessions.open().to_vec();
    }
}

// === impl NomadReport ===

impl Reporter for NomadReport {
    fn parts(&self) -> Vec<Part> {
        let launchers = || serving(&self.launchers.versions());
        vec![Part::needed("nomad", self.is_serving.condition(launchers))]
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.launchers = u64::try_from(self.launchers.drivers()).ok();
        figures.launcher_versions = self.launchers.versions();
    }
}

/// The description of the launchers: their number, and those of another version than the daemon. Pure.
fn serving(versions: &BTreeMap<String, u64>) -> String {
    let mut text = format!("serving {} launchers", versions.values().sum::<u64>());
    for (version, count) in versions.iter().filter(|(version, _)| *version != VERSION) {
        let version = match version.as_str() {
            "" => "unknown",
            version => version,
        };
        text.push_str(&format!(", {count} of version {version}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_of_other_versions_are_named() {
        let mut versions = BTreeMap::new();
        assert_eq!(serving(&versions), "serving 0 launchers");
        versions.insert(VERSION.to_owned(), 2);
        assert_eq!(serving(&versions), "serving 2 launchers");
        versions.insert(String::new(), 1);
        versions.insert("99.0.0".to_owned(), 3);
        assert_eq!(
            serving(&versions),
            "serving 6 launchers, 1 of version unknown, 3 of version 99.0.0"
        );
    }
}
