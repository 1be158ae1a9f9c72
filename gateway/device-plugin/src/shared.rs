//! State that all resources share: the configuration, the counts, and the tasks that serve their endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::config::Config;
use crate::outage::Outage;

/// Wraps the services of a socket in layers.
pub type Observe = Arc<dyn Fn(Routes) -> Routes + Send + Sync>;

/// Counts the resources, and those for which a kubelet has an open stream. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct Registrations(Arc<[AtomicUsize; 2]>);

/// Counts a resource as followed by a kubelet until it is dropped.
#[derive(Debug)]
pub(crate) struct Registered(Registrations);

/// State that all resources share.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) observe: Observe,
    pub(crate) registrations: Registrations,
    pub(crate) outage: Outage,
    /// Pause between two List calls to the kubelet's pod resources API.
    pub(crate) listing_each: Duration,
    /// The tasks that serve endpoints.
    pub(crate) tasks: TaskTracker,
}

// === impl Registrations ===

impl Registrations {
    /// Returns the number of offered resources.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// For how many of them a kubelet has an open stream.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }

    /// Sets how many resources are offered.
    pub(crate) fn set_resources(&self, resources: usize) {
        self.0[0].store(resources, Ordering::Relaxed);
    }

    pub(crate) fn registered(&self) -> Registered {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        Registered(self.clone())
    }
}

// === impl Registered ===

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.0[1].fetch_sub(1, Ordering::Relaxed);
    }
}
