//! Starts the parts of the frontend: one plugin for each resource of the inventory, and what the plugins
//! share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::Inventory;
use switchyard_core::gateway::Scope;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::directory::{self, Kubelets};
use crate::endpoint;
use crate::listing::{Groups, Listing, Offer, RESOURCES_MAX, resources};
use crate::outage::Outage;
use crate::pod_resources;
use crate::registration::Resource;
use crate::shared::{Observe, Registrations, Shared};

/// Limit for the servers of the endpoints to shut down.
const CLOSE: Duration = Duration::from_secs(3);

/// The label with which kubelets mark all attempts of one container of a pod.
const CONTAINER_LABEL: &str = "io.kubernetes.container.name";

/// Offers the devices of a scope to the kubelet.
pub struct Frontend {
    scope: Scope,
    config: Config,
    observe: Observe,
    registrations: Registrations,
    listing_each: Duration,
}

/// The resources that are offered, and the tasks that offer them.
struct OfferedResources {
    scope: Scope,
    shared: Arc<Shared>,
    published: BTreeMap<String, PublishedResource>,
    names: watch::Sender<BTreeSet<String>>,
    /// Sent by the task that watches the kubelet's directory; it is started with the first resource.
    kubelets: Option<Kubelets>,
    tasks: JoinSet<()>,
    /// Number of slots that were left out of the listings in the last update.
    left_out: usize,
}

/// The last published listing of a resource.
struct PublishedResource {
    listing: watch::Sender<Arc<Listing>>,
    /// The groups that the listing was made from.
    groups: Groups,
    /// The slots that did not fit into the listing.
    left_out: Vec<String>,
}

// === impl Frontend ===

impl Frontend {
    /// Offers the devices of `scope`, which ought to be that of
    /// [`Owner::Kubernetes`](switchyard_core::id::Owner::Kubernetes).
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

    /// Wraps the services of all endpoints in layers.
    #[must_use]
    pub fn observed(self, observe: Observe) -> Self {
        Self { observe, ..self }
    }

    /// Sets the pause between two List calls to the kubelet's pod resources API.
    #[must_use]
    pub fn listing_each(self, listing_each: Duration) -> Self {
        Self {
            listing_each,
            ..self
        }
    }

    /// Returns the numbers of offered resources, and of those for which a kubelet has an open stream.
    #[must_use]
    pub fn registrations(&self) -> Registrations {
        self.registrations.clone()
    }

    /// Offers the devices of the inventory, once the gateway has recovered which device belongs to which
    /// lease, until `stop`. Then streams end, and calls in flight get 3 s to finish.
    ///
    /// # Panics
    /// If one of its tasks panics.
    pub async fn serve(self, stop: CancellationToken) {
        let Self {
            scope,
            config,
            observe,
            registrations,
            listing_each,
        } = self;
        let tasks = TaskTracker::new();
        let shared = Arc::new(Shared {
            config,
            observe,
            registrations,
            outage: Outage::default(),
            listing_each,
            tasks: tasks.clone(),
        });
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
            tracing::debug!(
                left = tasks.len(),
                "device plugin servers did not shut down in time and are aborted"
            );
        }
    }
}

impl fmt::Debug for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frontend")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

// === impl OfferedResources ===

impl OfferedResources {
    /// Follows the inventory. Cancel-safe; the tasks that it has spawned end with the future.
    async fn run(mut self) {
        // Before recovery it is unknown who has which device. A first list in which a device of another owner
        // is healthy would give it out twice; a list in which all devices are unhealthy would make a starting
        // kubelet reject its pods.
        self.scope.recovered().await;
        // Also without a resource of ours: pods may have devices by dynamic resource allocation.
        self.tasks.spawn(pod_resources::follow(
            self.shared.config.pod_resources_socket.clone(),
            self.names.subscribe(),
            self.scope.clone(),
            self.shared.listing_each,
        ));
        let mut devices = self.scope.devices().subscribe();
        loop {
            let seen = devices.borrow_and_update().clone();
            if let Some(inventory) = seen {
                self.update(&inventory).await;
            }
            tokio::select! {
                changed = devices.changed() => if changed.is_err() {
                    // The gateway updates the inventory no longer: the listings stay as they are.
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
        for (name, published) in &mut self.published {
            published.update(resources.remove(name.as_str()).unwrap_or_default());
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
            let mut published = PublishedResource::new();
            published.update(groups);
            new.push((name, published.listing.subscribe()));
            self.published.insert(name.to_owned(), published);
        }
        let left_out: Vec<&String> = self
            .published
            .values()
            .flat_map(|published| &published.left_out)
            .collect();
        if left_out.len() > self.left_out {
            tracing::warn!(
                devices = left_out.len(),
                first = left_out[0],
                "devices are not offered to the kubelet: their ids are longer than it accepts, or they do not fit into one message"
            );
        }
        self.left_out = left_out.len();
        self.shared
            .registrations
            .set_resources(self.published.len());
        let names = self.published.keys().cloned().collect();
        self.names.send_if_modified(|known| {
            let is_new = *known != names;
            *known = names;
            is_new
        });
        // Resources are added after all are known: which ones are registered first is decided when the
        // kubelet is seen.
        for (name, listing) in new {
            self.add(name, listing).await;
        }
    }

    /// Starts to offer a resource.
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
            Some(directory) => self
                .tasks
                .spawn(async move { resource.serve_plugin_watcher(&directory).await }),
            None => self.tasks.spawn(resource.register(kubelets)),
        };
    }

    /// Starts the task that watches for the kubelet.
    async fn begin(&mut self) -> Kubelets {
        let Config {
            enabled: _,
            directory,
            plugin_watcher_directory,
            pod_resources_socket: _,
        } = self.shared.config.clone();
        endpoint::remove_stale(plugin_watcher_directory.as_ref().unwrap_or(&directory)).await;
        let (sender, kubelets) = watch::channel(None);
        if plugin_watcher_directory.is_none() {
            let scope = self.scope.clone();
            let names = self.names.subscribe();
            // Resources in use that are no longer offered cannot be registered, so only the intersection is
            // urgent.
            let urgent = move || {
                let offered = names.borrow();
                let mut in_use = scope.devices().resources_in_use(CONTAINER_LABEL);
                in_use.retain(|resource, _| offered.contains(resource));
                in_use
            };
            self.tasks
                .spawn(directory::follow(directory, sender, urgent));
        }
        self.kubelets = Some(kubelets.clone());
        kubelets
    }
}

// === impl PublishedResource ===

impl PublishedResource {
    fn new() -> Self {
        Self {
            listing: watch::Sender::new(Arc::default()),
            groups: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Publishes the current slots of the resource. If all groups are the same `Arc`s as before, nothing is
    /// computed.
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

/// Propagates the panic of a task.
fn check(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(cause) = error.try_into_panic()
    {
        panic::resume_unwind(cause);
    }
}
