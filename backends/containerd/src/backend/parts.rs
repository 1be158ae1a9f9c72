//! The components of the backend and how they are connected: each is given those below it.
//!
//! Longer than 500 lines because all components of the backend are connected here.

use std::fmt;
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use switchyard_cgroup as cgroup;
use switchyard_core::backend::BackendObserver;
use switchyard_core::blocking_pool::{self, BlockingPool, OwnerPools};
use switchyard_core::keyed_lock::KeyedLock;
use switchyard_core::{Result, threads};
use switchyard_logkeeper as logkeeper;
use tokio::sync::{Notify, RwLock, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::setup::{
    check_default_runtime, cni_plugins, context, image_policy, image_store, registry_client,
};
use crate::base::config::{PodNetworkChoice, Settings};
use crate::base::crash_points::Faults;
use crate::base::disks::Disks;
use crate::base::instance::Instance;
use crate::base::null_device;
use crate::base::trees::Trees;
use crate::blockers::Blockers;
use crate::cgroups::Cgroups;
use crate::cgroups::busy::BusyCgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::client::features::ContainerdFeatures;
use crate::client::health::{Health, LOGKEEPER_SILENCE};
use crate::client::lifeline::SharedSocket;
use crate::context::Context;
use crate::exec::predecessor_fifos::PredecessorFifos;
use crate::exec::{Execs, StartPlaces};
use crate::image::ContainerdImageStore;
use crate::image::layer_sync::LayerSync;
use crate::image::layer_usage::LayerUsageCache;
use crate::image::lease::Leases;
use crate::image::reader::ImageReader;
use crate::live::LiveContainers;
use crate::network::Network;
use crate::network::bridge::BridgeNetwork;
use crate::network::cluster_bridges::{ClusterBridges, OwnBridge};
use crate::network::kept_ports::KeptPorts;
use crate::network::native::NativeBridges;
use crate::network::node_networks::NodeNetworks;
use crate::network::own_ipv6::with_own_ipv6;
use crate::network::pod_bridge::PodBridge;
use crate::network::ranges::Ranges;
use crate::node::Node;
use crate::node::apparmor::FailedLoad;
use crate::node::apparmor::ProfilePeers;
use crate::node::runtime_probes::RuntimeProbes;
use crate::predecessor_calls::PredecessorCalls;
use crate::processes::Processes;
use crate::recover::Recovery;
use crate::sandbox::table::SandboxTable;
use crate::sandbox::{HostFiles, Levels, Sandboxes, Unreleased, infra_rootfs};
use crate::shims::creates_in_flight::CreatesInFlight;
use crate::shims::direct::Lifelines;
use crate::shims::pod_shims::PodShims;
use crate::shims::predecessor_call_ids::PredecessorCallIds;
use crate::shims::process_scans::SharedScans;
use crate::shims::unresponsive::UnresponsiveShims;
use crate::shims::{Shims, bundle};
use crate::stats::Stats;
use crate::task::Tasks;
use crate::task::attach::Attachments;
use crate::task::cgroups::TaskCgroups;
use crate::task::checkpoint::Checkpoints;
use crate::task::exit::Exits;
use crate::task::storage::Storage;
use crate::task::storage::projects::Projects;
use crate::task::storage::volumes::Volumes;
use crate::task::table::{Tables, TaskTable};

/// The handles that components on every level share.
struct Handles {
    context: Arc<Context>,
    client: Client,
    health: Health,
    features: ContainerdFeatures,
    /// One for all: it bounds how many calls run at once, and how long they wait for a restart together.
    logkeeper: Arc<logkeeper::Client>,
    cleanup: Arc<CleanupQueue>,
    tracker: TaskTracker,
    trees: Arc<Trees>,
    tables: Arc<Tables>,
    layer_usage: Arc<LayerUsageCache>,
    /// Cancelled when recovery is done.
    recovered: CancellationToken,
}

/// The components from cgroups to sandboxes, on which those of tasks are built.
struct LowerParts {
    cgroups: Arc<Cgroups>,
    shims: Arc<Shims>,
    blockers: Arc<Blockers>,
    predecessor_calls: Arc<PredecessorCalls>,
    processes: Arc<Processes>,
    node: Arc<Node>,
    network: Arc<Network>,
    sandboxes: Arc<Sandboxes>,
}

/// The components that the backend's operations are forwarded to.
pub(super) struct Parts {
    pub(super) context: Arc<Context>,
    pub(super) client: Client,
    pub(super) health: Health,
    pub(super) trees: Arc<Trees>,
    pub(super) node: Arc<Node>,
    pub(super) network: Arc<Network>,
    pub(super) cgroups: Arc<Cgroups>,
    pub(super) shims: Arc<Shims>,
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) storage: Arc<Storage>,
    pub(super) exits: Arc<Exits>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) attachments: Arc<Attachments>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) execs: Arc<Execs>,
    pub(super) stats: Arc<Stats>,
    pub(super) recovery: Arc<Recovery>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the tasks: their specs have the environment of clients.
        f.debug_struct("Parts")
            .field("address", &self.client.address())
            .finish_non_exhaustive()
    }
}

impl Parts {
    /// The components with these settings. Their background tasks run until `stop` is cancelled.
    pub(super) fn new(
        settings: Settings,
        faults: Faults,
        observer: Arc<dyn BackendObserver>,
        stop: &CancellationToken,
    ) -> Result<Self> {
        check_default_runtime(&settings.containerd)?;
        // A predecessor may have been killed between the step of a runtime and this.
        null_device::give_back();
        let health = Health::new(settings.containerd.answer_timeout());
        let instance = Arc::new(Instance::load(&settings.state)?);
        let shared_socket = SharedSocket::new();
        let client = Client::new(
            &settings.address,
            &settings.containerd.namespace,
            instance,
            health.subscribe(),
            shared_socket.clone(),
            &observer,
        )?;
        let context = Arc::new(context(settings, faults, Arc::clone(&observer))?);
        let handles = Handles {
            trees: Arc::new(Trees::new(context.layout.state(), context.layout.run())),
            tables: Arc::new(Tables {
                sandboxes: Arc::default(),
                tasks: Arc::default(),
            }),
            logkeeper: Arc::new(logkeeper::Client::with_limit(
                &context.settings().logkeeper,
                LOGKEEPER_SILENCE,
            )),
            context,
            client,
            health,
            features: ContainerdFeatures::default(),
            cleanup: Arc::new(CleanupQueue::new(observer)),
            tracker: TaskTracker::new(),
            layer_usage: Arc::default(),
            recovered: CancellationToken::new(),
        };
        let parts = Self::on(&handles, &handles.lower_parts()?);
        parts.spawn_background(&handles, shared_socket, stop);
        Ok(parts)
    }

    /// The components on top of these.
    fn on(handles: &Handles, lower: &LowerParts) -> Self {
        let storage = handles.storage();
        let task_cgroups = Arc::new(TaskCgroups {
            reader: Arc::clone(&lower.cgroups.reader),
            tracker: handles.tracker.clone(),
            observer: Arc::clone(&handles.context.observer),
        });
        let exits = handles.exits(lower, &storage, &task_cgroups);
        let tasks = handles.tasks(lower, &exits);
        let attachments = handles.attachments(&exits);
        let checkpoints = handles.checkpoints(&exits);
        let execs = handles.execs(lower, &tasks);
        let recovery = Arc::new(Recovery {
            context: Arc::clone(&handles.context),
            client: handles.client.clone(),
            health: handles.health.clone(),
            features: handles.features.clone(),
            logkeeper: Arc::clone(&handles.logkeeper),
            network: Arc::clone(&lower.network),
            cgroups: Arc::clone(&lower.cgroups),
            shims: Arc::clone(&lower.shims),
            predecessor_calls: Arc::clone(&lower.predecessor_calls),
            processes: Arc::clone(&lower.processes),
            sandboxes: Arc::clone(&lower.sandboxes),
            storage: Arc::clone(&storage),
            task_cgroups,
            exits: Arc::clone(&exits),
            tasks: Arc::clone(&tasks),
            attachments: Arc::clone(&attachments),
            checkpoints: Arc::clone(&checkpoints),
            execs: Arc::clone(&execs),
            cleanup: Arc::clone(&handles.cleanup),
            tracker: handles.tracker.clone(),
            found_exits: Mutex::default(),
            recovered: handles.recovered.clone(),
        });
        Self {
            context: Arc::clone(&handles.context),
            client: handles.client.clone(),
            health: handles.health.clone(),
            trees: Arc::clone(&handles.trees),
            node: Arc::clone(&lower.node),
            network: Arc::clone(&lower.network),
            cgroups: Arc::clone(&lower.cgroups),
            shims: Arc::clone(&lower.shims),
            sandboxes: Arc::clone(&lower.sandboxes),
            storage,
            exits,
            tasks,
            attachments,
            checkpoints,
            execs,
            stats: handles.stats(lower),
            recovery,
        }
    }

    /// Starts the background tasks; they end when `stop` is cancelled.
    fn spawn_background(
        &self,
        handles: &Handles,
        shared_socket: SharedSocket,
        stop: &CancellationToken,
    ) {
        let Handles {
            client,
            health,
            tracker,
            cleanup,
            recovered,
            ..
        } = handles;
        let settings = self.context.settings();
        let keeper = &settings.logkeeper;
        tracker.spawn(
            health
                .clone()
                .watch(client.without_health_check(), stop.clone()),
        );
        tracker.spawn(health.clone().watch_logkeeper(keeper.clone(), stop.clone()));
        tracker.spawn(Arc::clone(&self.node).watch_disks(Arc::clone(&self.trees), stop.clone()));
        tracker.spawn(Arc::clone(cleanup).run(health.clone(), stop.clone()));
        tracker.spawn(Arc::clone(&self.node).watch_runtime_features(stop.clone()));
        tracker.spawn(Arc::clone(&self.shims).watch_orphans(stop.clone()));
        tracker.spawn(Arc::clone(&self.attachments).watch_unread(stop.clone()));
        tracker.spawn(shared_socket.share_with_logkeeper(keeper.clone(), stop.clone()));
        let kept = Arc::clone(&self.network.kept_ports);
        tracker.spawn(kept.store(keeper.clone(), recovered.clone(), stop.clone()));
        let native = Arc::clone(&self.network.native);
        tracker.spawn(native.watch(self.context.layout.clone(), stop.clone()));
    }
}

impl Parts {
    /// Replaces the settings, for operations from now on. What the components were set up with and keep, such
    /// as addresses, directories and the network, stays as it was.
    pub(super) fn reconfigure(&self, settings: Settings) -> Result<()> {
        check_default_runtime(&settings.containerd)?;
        let images = &self.storage.images;
        let registry = registry_client(&settings, &images.policy().registry);
        images.reconfigure(image_policy(&settings, registry));
        self.context.settings.set(settings);
        self.node.runtimes_changed.notify_one();
        Ok(())
    }
}

impl Handles {
    fn live(&self) -> Arc<dyn LiveContainers> {
        Arc::clone(&self.tables) as Arc<dyn LiveContainers>
    }

    fn sandbox_table(&self) -> Arc<SandboxTable> {
        Arc::clone(&self.tables.sandboxes)
    }

    fn task_table(&self) -> Arc<TaskTable> {
        Arc::clone(&self.tables.tasks)
    }

    /// The components from cgroups to sandboxes.
    fn lower_parts(&self) -> Result<LowerParts> {
        let label = self.context.host.readonly_label();
        if let Err(error) = infra_rootfs::install(&self.context.layout.infra(), label) {
            // Not fatal: it is tried again when a sandbox or task needs it.
            tracing::warn!(error = error.report(), "cannot install the infra program");
        }
        let reader = Arc::new(cgroup::Reader::detect()?);
        let cgroups = Arc::new_cyclic(|weak| Cgroups {
            weak: weak.clone(),
            context: Arc::clone(&self.context),
            moves: Arc::new(cgroup::Moves::new(reader.hierarchy().clone())),
            reader,
            busy: BusyCgroups::default(),
            pods: Arc::default(),
            live: self.live(),
            cleanup: Arc::clone(&self.cleanup),
            tracker: self.tracker.clone(),
        });
        let shims = Arc::new(Shims {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            health: self.health.clone(),
            trees: Arc::clone(&self.trees),
            cgroups: Arc::clone(&cgroups),
            live: self.live(),
            creates_in_flight: CreatesInFlight::default(),
            predecessor_calls: PredecessorCallIds::default(),
            unresponsive: UnresponsiveShims::default(),
            pods: PodShims::default(),
            recovered: self.recovered.clone(),
            ends: TaskTracker::new(),
            files: BlockingPool::new(threads::FILES_POOL, bundle::LIST_LIMIT),
            scans: Arc::new(SharedScans::default()),
            looks: SharedScans::default(),
        });
        let blockers = Arc::new(Blockers::new(
            Arc::clone(&cgroups.reader),
            Arc::clone(&shims),
        ));
        let predecessor_calls = Arc::new(PredecessorCalls {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            shims: Arc::clone(&shims),
        });
        let processes = Arc::new(Processes {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            features: self.features.clone(),
            shims: Arc::clone(&shims),
            predecessor_calls: Arc::clone(&predecessor_calls),
        });
        let node = self.node();
        let network = self.network()?;
        let sandboxes = Arc::new_cyclic(|weak| Sandboxes {
            weak: weak.clone(),
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            table: self.sandbox_table(),
            unreleased: Unreleased::default(),
            network: Arc::clone(&network),
            levels: Levels::default(),
            cgroups: Arc::clone(&cgroups),
            processes: Arc::clone(&processes),
            shims: Arc::clone(&shims),
            node: Arc::clone(&node),
            host_files: HostFiles::new(),
            cleanup: Arc::clone(&self.cleanup),
            tracker: self.tracker.clone(),
            releases: KeyedLock::default(),
        });
        Ok(LowerParts {
            cgroups,
            shims,
            blockers,
            predecessor_calls,
            processes,
            node,
            network,
            sandboxes,
        })
    }

    fn node(&self) -> Arc<Node> {
        Arc::new(Node {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            health: self.health.clone(),
            features: self.features.clone(),
            probes: RuntimeProbes::default(),
            runtimes_changed: Notify::new(),
            disks: Disks::default(),
            layer_usage: Arc::clone(&self.layer_usage),
            profile_lock: Semaphore::new(1),
            failed_load: FailedLoad::default(),
            profile_peers: ProfilePeers::default(),
            selinux_warned: Once::new(),
        })
    }

    fn network(&self) -> Result<Arc<Network>> {
        let all_settings = self.context.settings();
        let settings = &with_own_ipv6(&all_settings.network, &self.context.layout);
        let bridge = BridgeNetwork::new(&settings.bridge, &self.context.layout)?;
        let native = NativeBridges::new(settings, bridge.list())?;
        let mark = self.context.layout.pod_mark(&settings.pods.name);
        let native = Arc::new(match all_settings.pod_network {
            PodNetworkChoice::Cni => native.without_pods(mark),
            PodNetworkChoice::Bridge => native.with_pods(&mark),
        });
        let own = OwnBridge {
            name: settings.bridge.name.clone(),
            subnets: bridge.subnets().to_vec(),
            mtu: settings.bridge.mtu,
        };
        let run = self.context.layout.run();
        let plugins = || cni_plugins(settings, run, &self.context.observer);
        let ranges = Arc::new(Ranges::load(self.context.layout.ranges()));
        let pods = match all_settings.pod_network {
            PodNetworkChoice::Cni => None,
            PodNetworkChoice::Bridge => {
                let ranges = Arc::clone(&ranges);
                let native = Arc::clone(&native);
                Some(Arc::new(PodBridge::new(settings, ranges, native)))
            }
        };
        Ok(Arc::new(Network {
            context: Arc::clone(&self.context),
            of_node: NodeNetworks::new(&settings.conf_dir, plugins(), pods.clone()),
            plugins: plugins(),
            plugin_turn: RwLock::default(),
            bridge,
            native: Arc::clone(&native),
            cluster_bridges: Arc::new(ClusterBridges::new(
                self.context.layout.cluster_bridges(),
                own,
                native,
                pods,
            )),
            ranges,
            kept_ports: Arc::new(KeptPorts::new()),
            predecessor_plugins: Mutex::default(),
        }))
    }

    fn images(&self) -> ContainerdImageStore {
        let leases = Leases::new(
            self.client.clone(),
            self.tracker.clone(),
            Arc::clone(&self.cleanup),
        );
        let layer_sync = LayerSync::new(
            self.client.clone(),
            &self.context.boot,
            self.tracker.clone(),
        );
        image_store(
            &self.client,
            &self.context.settings(),
            self.features.clone(),
            leases,
            layer_sync,
            self.context.layout.state().to_path_buf(),
        )
    }

    fn storage(&self) -> Arc<Storage> {
        let layout = &self.context.layout;
        let max_account_file = self.context.settings().images.max_account_file_bytes;
        Arc::new(Storage {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            images: self.images(),
            image_reader: ImageReader::new(self.client.clone(), layout.views(), max_account_file),
            volumes: Arc::new(Volumes::new(layout.volumes())),
            trees: Arc::clone(&self.trees),
            projects: Projects::default(),
            blocking_pools: OwnerPools::new(threads::BACKEND_POOL, blocking_pool::LIMIT),
        })
    }

    fn exits(
        &self,
        lower: &LowerParts,
        storage: &Arc<Storage>,
        task_cgroups: &Arc<TaskCgroups>,
    ) -> Arc<Exits> {
        Arc::new_cyclic(|weak| Exits {
            weak: weak.clone(),
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            health: self.health.clone(),
            logkeeper: Arc::clone(&self.logkeeper),
            table: self.task_table(),
            sandboxes: Arc::clone(&lower.sandboxes),
            storage: Arc::clone(storage),
            task_cgroups: Arc::clone(task_cgroups),
            processes: Arc::clone(&lower.processes),
            shims: Arc::clone(&lower.shims),
            cleanup: Arc::clone(&self.cleanup),
            reapers: TaskTracker::new(),
        })
    }

    fn tasks(&self, lower: &LowerParts, exits: &Arc<Exits>) -> Arc<Tasks> {
        Arc::new_cyclic(|weak| Tasks {
            weak: weak.clone(),
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            table: self.task_table(),
            sandboxes: Arc::clone(&lower.sandboxes),
            exits: Arc::clone(exits),
            storage: Arc::clone(&exits.storage),
            task_cgroups: Arc::clone(&exits.task_cgroups),
            cgroups: Arc::clone(&lower.cgroups),
            processes: Arc::clone(&lower.processes),
            shims: Arc::clone(&lower.shims),
            node: Arc::clone(&lower.node),
            blockers: Arc::clone(&lower.blockers),
            cleanup: Arc::clone(&self.cleanup),
        })
    }

    fn attachments(&self, exits: &Arc<Exits>) -> Arc<Attachments> {
        Arc::new(Attachments {
            client: self.client.clone(),
            health: self.health.clone(),
            logkeeper: Arc::clone(&self.logkeeper),
            table: self.task_table(),
            exits: Arc::clone(exits),
            tracker: self.tracker.clone(),
        })
    }

    fn checkpoints(&self, exits: &Arc<Exits>) -> Arc<Checkpoints> {
        Arc::new_cyclic(|weak| Checkpoints {
            weak: weak.clone(),
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            table: self.task_table(),
            sandboxes: Arc::clone(&exits.sandboxes),
            storage: Arc::clone(&exits.storage),
            task_cgroups: Arc::clone(&exits.task_cgroups),
            shims: Arc::clone(&exits.shims),
            cleanup: Arc::clone(&self.cleanup),
        })
    }

    fn execs(&self, lower: &LowerParts, tasks: &Arc<Tasks>) -> Arc<Execs> {
        Arc::new(Execs {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            health: self.health.clone(),
            tasks: Arc::clone(tasks),
            task_cgroups: Arc::clone(&tasks.task_cgroups),
            cgroups: Arc::clone(&lower.cgroups),
            shims: Arc::clone(&lower.shims),
            lifelines: Lifelines::new(&self.context.settings().logkeeper, self.tracker.clone()),
            places: StartPlaces::default(),
            predecessor_fifos: PredecessorFifos::open(&self.context.layout.all_task_run()),
            cleanup: Arc::clone(&self.cleanup),
            tracker: self.tracker.clone(),
        })
    }

    fn stats(&self, lower: &LowerParts) -> Arc<Stats> {
        Arc::new(Stats {
            context: Arc::clone(&self.context),
            client: self.client.clone(),
            sandboxes: self.sandbox_table(),
            tasks: self.task_table(),
            reader: Arc::clone(&lower.cgroups.reader),
            layer_usage: Arc::clone(&self.layer_usage),
            blockers: Arc::clone(&lower.blockers),
            failures: Arc::default(),
        })
    }
}
