//! The services whose tasks this node was given and cannot begin, with what they wait for.
//!
//! Of tasks that the scheduler keeps away the node does not know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use switchyard_linux::beginning;
use tokio::time::Instant;

/// Maximum number of services. Further ones are not listed.
const SERVICES_MAX: usize = 256;

/// Maximum number of characters of a service's name.
pub(crate) const NAME_MAX: usize = 256;

/// Maximum number of characters of a reason: managers get no more of it either.
pub(crate) const REASON_MAX: usize = 1024;

/// The time after which a service is forgotten of which no task was tried again: its tasks are elsewhere, or it is gone.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// A service whose tasks cannot begin here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingService {
    /// Its name.
    pub service: String,
    /// Reason why its tasks cannot begin: what they wait for, or lack.
    pub reason: String,
    /// Since when, for this reason.
    pub since: SystemTime,
    /// True if the task was rejected, so that the managers place another one; false if this node tries again.
    pub is_rejected: bool,
}

/// The services whose tasks cannot begin here. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct WaitingServices {
    services: Arc<Mutex<BTreeMap<String, NotedService>>>,
}

/// A service, and when a task of it was last tried.
#[derive(Debug, Clone)]
struct NotedService {
    waiting: WaitingService,
    tried_at: Instant,
}

// === impl WaitingServices ===

impl WaitingServices {
    /// Notes that a task of a service cannot begin. Returns whether that is news.
    pub(crate) fn note(&self, service: &str, reason: &str, is_rejected: bool) -> bool {
        let now = Instant::now();
        let mut services = self.services.lock();
        services.retain(|_, noted| noted.is_current(now));
        let name = beginning(service, NAME_MAX);
        let reason = beginning(reason, REASON_MAX);
        if let Some(noted) = services.get_mut(name) {
            noted.tried_at = now;
            let waiting = &mut noted.waiting;
            if waiting.reason == reason && waiting.is_rejected == is_rejected {
                return false;
            }
            reason.clone_into(&mut waiting.reason);
            waiting.is_rejected = is_rejected;
            waiting.since = SystemTime::now();
            return true;
        }
        if services.len() >= SERVICES_MAX {
            return false;
        }
        let waiting = WaitingService {
            service: name.to_owned(),
            reason: reason.to_owned(),
            since: SystemTime::now(),
            is_rejected,
        };
        let noted = NotedService {
            waiting,
            tried_at: now,
        };
        services.insert(name.to_owned(), noted);
        true
    }

    /// A task of a service is prepared: it waits for nothing any more.
    pub(crate) fn forget(&self, service: &str) {
        let name = beginning(service, NAME_MAX);
        self.services.lock().remove(name);
    }

    /// The services, by name.
    #[must_use]
    pub fn list(&self) -> Vec<WaitingService> {
        let now = Instant::now();
        let services = self.services.lock();
        services
            .values()
            .filter(|noted| noted.is_current(now))
            .map(|noted| noted.waiting.clone())
            .collect()
    }
}

// === impl NotedService ===

impl NotedService {
    fn is_current(&self, now: Instant) -> bool {
        now.duration_since(self.tried_at) < FORGOTTEN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn names(waiting: &WaitingServices) -> Vec<String> {
        let list = waiting.list();
        list.into_iter().map(|waiting| waiting.service).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn service_waits_until_a_task_is_prepared_or_none_is_tried_any_more() {
        let waiting = WaitingServices::default();
        let network = "networks: there is no network \"storage\"";
        for (service, reason, is_rejected, is_news) in [
            ("web", network, true, true),
            ("web", network, true, false),
            ("web", network, false, true),
            ("web", "log_driver.name: \"syslog\"", false, true),
            ("db", network, true, true),
        ] {
            assert_eq!(
                waiting.note(service, reason, is_rejected),
                is_news,
                "{service} {reason}"
            );
        }
        assert_eq!(names(&waiting), ["db", "web"]);
        waiting.forget("db");
        waiting.forget("other");
        assert_eq!(names(&waiting), ["web"]);
        advance(FORGOTTEN_AFTER / 2).await;
        assert!(!waiting.note("web", "log_driver.name: \"syslog\"", false));
        advance(FORGOTTEN_AFTER / 2).await;
        assert_eq!(names(&waiting), ["web"], "it was tried since");
        advance(FORGOTTEN_AFTER / 2).await;
        assert_eq!(names(&waiting), Vec::<String>::new());
        assert!(waiting.note("web", network, true), "it is news again");
    }

    #[tokio::test(start_paused = true)]
    async fn services_are_few_and_their_texts_are_short() {
        let waiting = WaitingServices::default();
        let long = "x".repeat(10_000);
        assert!(waiting.note(&long, "no", true) && !waiting.note(&long, "no", true));
        assert!(names(&waiting)[0].len() < 300);
        waiting.note("web", &long, false);
        let longest = waiting.list().iter().map(|one| one.reason.len()).max();
        assert_eq!(longest, Some(REASON_MAX));
        assert!(!waiting.note("web", &long, false), "it is the same");
        for number in 0..1000 {
            waiting.note(&number.to_string(), "no", true);
        }
        assert_eq!(names(&waiting).len(), SERVICES_MAX);
    }
}
