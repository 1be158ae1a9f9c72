//! Brings the parts up: one plugin for each resource of the inventory, and what they have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use switchyard_core::device::Inventory;
use switchyard_core::gateway::Scope;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::config::Config;
use crate::directory::{self, Kubelets};
use crate::endpoint;
use crate::listing::{Groups, Listing, Offer, RESOURCES_MAX, resources};
use crate::pod_resources;
use crate::registration::Resource;

/// How long the servers may take to end.
const CLOSE: Duration = Duration::from_secs(3);

/// Puts layers around the services of a socket.
pub type Observe = Arc<dyn Fn(Routes) -> Routes + Send + Sync>;

/// Offers the devices of a scope to the kubelet.
pub struct Frontend {
    scope: Scope,
    config: Config,
    observe: Observe,
    registrations: Registrations,
    listing_each: Duration,
}

/// Counts the resources, and those that a kubelet follows. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Registrations(Arc<[AtomicUsize; 2]>);

/// A resource that a kubelet follows, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registered(Registrations);

/// What all resources have in common.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) observe: Observe,
    pub(crate) registrations: Registrations,
    /// Between two lists of what the kubelet's pods have.
    pub(crate) listing_each: Duration,
    /// The servers of endpoints.
    pub(crate) tasks: TaskTracker,
}

/// The resources that are offered, and the tasks that do it.
struct OfferedResources {
    scope: Scope,
    shared: Arc<Shared>,
    published: BTreeMap<String, PublishedResource>,
    names: watch::Sender<BTreeSet<String>>,
    /// Told by the watch of the directory, which begins with the first resource.
    kubelets: Option<Kubelets>,
    tasks: JoinSet<()>,
    /// How many slots had no place in the last update.
    left_out: usize,
}

/// What was told of a resource last.
struct PublishedResource {
    listing: watch::Sender<Arc<Listing>>,
    /// What that was made from.
    groups: Groups,
    /// The slots that have no place in it.
    left_out: Vec<String>,
}

// === impl Frontend ===

impl Frontend {
    /// Offers the devices of `scope`, which ought to be that of [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes).
    #[must_use]
    pub fn new(scope: Scope, config: Config) -> Self {
        Self {
            scope,
            config,
            observe: Arc::new(|routes| routes),
            registrations: Registrations::default(),
            listing_each: pod_resources::PAUSE,
        }
    }

    /// The same with layers around its services.
    #[must_use]
    pub fn observed(self, observe: Observe) -> Self {
        Self { observe, ..self }
    }

    /// The same, which asks the kubelet so often what its pods have.
    #[must_use]
    pub fn listing_each(self, listing_each: Duration) -> Self {
        Self { listing_each, ..self }
    }

    /// How many resources are offered, and are followed.
    #[must_use]
    pub fn registrations(&self) -> Registrations {
        self.registrations.clone()
    }

    /// Offers what there is as soon as it is known who has which device, until `stop`. Then streams end, and calls in flight are given a
    /// moment.
    ///
    /// # Panics
    /// If a part of it does.
    pub async fn serve(self, stop: CancellationToken) {
        let Self { scope, config, observe, registrations, listing_each } = self;
        let tasks = TaskTracker::new();
        let shared = Arc::new(Shared { config, observe, registrations, listing_each, tasks: tasks.clone() });
        let offered = OfferedResources {
            scope,
            shared,
            published: BTreeMap::new(),
            names: watch::Sender::default(),
            kubelets: None,
            tasks: JoinSet::new(),
            left_out: 0,
        };
        stop.run_until_cancelled(offered.run()).await;
        tasks.close();
        if timeout(CLOSE, tasks.wait()).await.is_err() {
            tracing::debug!(left = tasks.len(), "servers of device plugins are cut off");
        }
    }
}

impl fmt::Debug for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frontend").field("config", &self.config).finish_non_exhaustive()
    }
}

// === impl Registrations ===

impl Registrations {
    /// How many resources there are to offer.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.0[0].load(Ordering::Relaxed)
    }

    /// How many of them a kubelet follows.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.0[1].load(Ordering::Relaxed)
    }

    pub(crate) fn registered(&self) -> Registered {
        self.0[1].fetch_add(1, Ordering::Relaxed);
        Registered(self.clone())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.0[1].fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Offered ===

impl OfferedResources {
    /// Follows the inventory. Cancel-safe; its tasks end with it.
    async fn run(mut self) {
        // A first list in which a device of another owner is healthy would give it out twice; one in which all are unhealthy would have a
        // kubelet that starts reject its pods.
        self.scope.recovered().await;
        let mut devices = self.scope.devices();
        loop {
            let seen = devices.borrow_and_update().clone();
            if let Some(inventory) = seen {
                self.update(&inventory).await;
            }
            tokio::select! {
                changed = devices.changed() => if changed.is_err() {
                    // The gateway looks no more: it stays as it is.
                    while let Some(ended) = self.tasks.join_next().await {
                        check(ended);
                    }
                    return;
                },
                Some(ended) = self.tasks.join_next() => check(ended),
            }
        }
    }

    async fn update(&mut self, inventory: &Inventory) {
        let mut resources = resources(inventory);
        for (name, told) in &mut self.published {
            told.update(resources.remove(name.as_str()).unwrap_or_default());
        }
        let mut new = Vec::new();
        for (name, groups) in resources {
            if self.published.len() >= RESOURCES_MAX {
                tracing::warn!(
                    resource = name,
                    "more than {RESOURCES_MAX} resources: this one is not offered to the kubelet"
                );
                break;
            }
            let mut told = PublishedResource::new();
            told.update(groups);
            new.push((name, told.listing.subscribe()));
            self.published.insert(name.to_owned(), told);
        }
        let left_out: Vec<&String> = self.published.values().flat_map(|told| &told.left_out).collect();
        if left_out.len() > self.left_out {
            tracing::warn!(
                devices = left_out.len(),
                first = left_out[0],
                "devices are not offered to the kubelet: their ids are longer than it takes, or there are more than it takes in one message"
            );
        }
        self.left_out = left_out.len();
        self.shared.registrations.0[0].store(self.published.len(), Ordering::Relaxed);
        let names = self.published.keys().cloned().collect();
        self.names.send_if_modified(|known| {
            let is_new = *known != names;
            *known = names;
            is_new
        });
        // Only now: which of them a kubelet is registered with first is asked when it is seen.
        for (name, listing) in new {
            self.add(name, listing).await;
        }
    }

    /// Begins to offer a resource.
    async fn add(&mut self, name: &str, listing: watch::Receiver<Arc<Listing>>) {
        let resource = Resource {
            name: name.into(),
            scope: self.scope.clone(),
            listing,
            shared: Arc::clone(&self.shared),
        };
        let kubelets = match &self.kubelets {
            Some(kubelets) => kubelets.clone(),
            None => self.begin().await,
        };
        match self.shared.config.plugin_watcher_directory.clone() {
            Some(directory) => {
                self.tasks.spawn(async move { resource.serve_plugin_watcher(&directory).await })
            }
            None => self.tasks.spawn(resource.register(kubelets)),
        };
    }

    /// Begins to watch for the kubelet.
    async fn begin(&mut self) -> Kubelets {
        let Config { enabled: _, directory, plugin_watcher_directory, pod_resources_socket } =
            self.shared.config.clone();
        endpoint::remove_stale(plugin_watcher_directory.as_ref().unwrap_or(&directory)).await;
        let (told, kubelets) = watch::channel(None);
        if plugin_watcher_directory.is_none() {
            let scope = self.scope.clone();
            let names = self.names.subscribe();
            // Of what is offered no more, nothing is registered.
            let urgent = move || &*names.borrow() & &scope.resources_in_use();
            self.tasks.spawn(directory::follow(directory, told, urgent));
        }
        self.tasks.spawn(pod_resources::follow(
            pod_resources_socket,
            self.names.subscribe(),
            self.scope.clone(),
            self.shared.listing_each,
        ));
        self.kubelets = Some(kubelets.clone());
        kubelets
    }
}

// === impl Told ===

impl PublishedResource {
    fn new() -> Self {
        Self { listing: watch::Sender::new(Arc::default()), groups: Vec::new(), left_out: Vec::new() }
    }

    /// Tells who follows the resource what there is of it now. Groups that are shared with those of before are the same, and nothing of them
    /// is looked at.
    fn update(&mut self, groups: Groups) {
        let same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        if groups.len() == self.groups.len() && groups.iter().zip(&self.groups).all(same) {
            return;
        }
        let (next, left_out) = self.listing.borrow().after(&Offer::of(&groups));
        self.listing.send_if_modified(|last| {
            let is_new = **last != next;
            if is_new {
                *last = Arc::new(next);
            }
            is_new
        });
        (self.groups, self.left_out) = (groups, left_out);
    }
}

/// A part that panics ends all.
fn check(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(cause) = error.try_into_panic()
    {
        panic::resume_unwind(cause);
    }
}
