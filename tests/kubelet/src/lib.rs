//! A model of a kubelet's device manager, for tests of device plugins.
//!
//! It behaves as kubelets 1.32 to 1.36 were observed to behave, with their bugs:
//! - When it starts it deletes all sockets in its directory, and then creates `kubelet.sock`. It knows the
//!   devices of its pods from its checkpoint; its own list of devices is empty until plugins register again.
//! - Within Register it connects to the plugin, trying for up to 10 s. It never reopens a ListAndWatch.
//! - Of several plugins for one resource the last message wins, and the exit of any of them disconnects the
//!   newest.
//! - Pods are admitted one after the other, Allocate has no deadline, and a failure is final.
//! - It crashes if an id disappears from ListAndWatch while it is being allocated.
//! - The devices of a pod are free as soon as the pod is deleted, although its containers may still run.
//! - A resource that no plugin has registered is ignored: the container starts without it.
//!
//! Its plugin watcher calls plugins with a percent-encoded path as `:authority`.
//!
//! [`vendor`] is a model of a device plugin that registers with kubelets.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::RegistrationServer;
use switchyard_proto::kubelet::pod_resources::v1::DynamicResource;
use switchyard_proto::kubelet::pod_resources::v1::pod_resources_lister_server::PodResourcesListerServer;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

mod admission;
mod manager;
mod pod_resources;
mod raw;
mod registration;
pub mod vendor;
mod watcher;

pub use admission::RunOptions;
pub use manager::{AcceptedRegistration, Checkpoint, ListedDevice};

use manager::ManagerState;

/// The settings of a kubelet.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The state that an earlier kubelet process left.
    pub checkpoint: Checkpoint,
    /// The socket of PodResources, if it serves that.
    pub pod_resources_socket: Option<PathBuf>,
    /// The directory of its plugin watcher, if it has one.
    pub plugins_registry: Option<PathBuf>,
    /// True if it accepts calls and never answers.
    pub hangs: bool,
    /// The processors that its CPU manager has assigned exclusively.
    pub exclusive_cpus: Vec<i64>,
    /// The claims of dynamic resource allocation that a container of one of its pods refers to.
    pub dynamic_resources: Vec<DynamicResource>,
}

/// A running kubelet. Dropping it stops it; its sockets stay.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<KubeletInner>,
}

#[derive(Debug)]
struct KubeletInner {
    this: Weak<Self>,
    directory: PathBuf,
    hangs: bool,
    exclusive_cpus: Vec<i64>,
    dynamic_resources: Vec<DynamicResource>,
    began: Instant,
    state: Mutex<ManagerState>,
    /// Notified when the state has changed.
    changed: Notify,
    /// Held during an admission: pods are admitted one after the other.
    admission: tokio::sync::Mutex<()>,
    stop: CancellationToken,
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts a kubelet in a directory, which is created if it does not exist.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start(directory: &Path, options: Options) -> Self {
        let Options {
            checkpoint,
            pod_resources_socket,
            plugins_registry,
            hangs,
            exclusive_cpus,
            dynamic_resources,
        } = options;
        fs::create_dir_all(directory).expect("the directory can be made");
        remove_sockets(directory);
        let shared = Arc::new_cyclic(|this| KubeletInner {
            this: this.clone(),
            directory: directory.to_owned(),
            hangs,
            exclusive_cpus,
            dynamic_resources,
            began: Instant::now(),
            state: Mutex::new(ManagerState::restored(checkpoint)),
            changed: Notify::new(),
            admission: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
        });
        let registration = RegistrationServer::from_arc(Arc::clone(&shared));
        shared.serve(&directory.join("kubelet.sock"), Routes::new(registration));
        if let Some(socket) = pod_resources_socket {
            fs::create_dir_all(socket.parent().expect("it is in a directory"))
                .expect("it can be made");
            let _ = fs::remove_file(&socket);
            shared.serve(
                &socket,
                Routes::new(PodResourcesListerServer::from_arc(Arc::clone(&shared))),
            );
        }
        if let Some(registry) = plugins_registry {
            tokio::spawn(
                shared
                    .stop
                    .clone()
                    .run_until_cancelled_owned(watcher::follow(Arc::clone(&shared), registry)),
            );
        }
        Self { shared }
    }

    /// Stops it as SIGKILL does. Returns the state that it leaves to the next kubelet process.
    #[must_use]
    pub fn kill(self) -> Checkpoint {
        self.shared.state().checkpoint()
    }

    /// Time at which its socket was created.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.shared.began
    }

    /// All registrations, in their order.
    #[must_use]
    pub fn registrations(&self) -> Vec<AcceptedRegistration> {
        self.shared.state().registered.clone()
    }

    /// The devices of a resource, as the last message said.
    #[must_use]
    pub fn devices(&self, resource: &str) -> BTreeMap<String, ListedDevice> {
        self.shared.state().devices(resource)
    }

    /// Number of devices of a resource, and number of healthy ones among them.
    #[must_use]
    pub fn capacity(&self, resource: &str) -> (usize, usize) {
        self.shared.state().capacity(resource)
    }

    /// The error it has crashed with, if any.
    #[must_use]
    pub fn crash(&self) -> Option<String> {
        self.shared.state().crash.clone()
    }

    /// Waits until this condition holds.
    ///
    /// # Panics
    /// If that takes too long; `what` describes the condition.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let condition = async {
            loop {
                let changed = self.shared.changed.notified();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        let condition = tokio::time::timeout(Duration::from_secs(30), condition).await;
        assert!(
            condition.is_ok(),
            "{what}: not within 30 s; {:?}",
            self.shared.state()
        );
    }

    /// Breaks the connections to all plugins, as a fault within the kubelet does.
    pub fn disconnect_all(&self) {
        self.shared.state().disconnect_all();
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        self.shared.state().disconnect_all();
    }
}

/// Deletes all sockets of a directory, as a kubelet does when it starts; other files stay.
///
/// # Panics
/// If they cannot be deleted.
pub fn remove_sockets(directory: &Path) {
    for entry in fs::read_dir(directory)
        .expect("the directory can be read")
        .flatten()
    {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let deleted = fs::remove_file(entry.path());
            // The plugin may delete it at the same time.
            let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
            assert!(deleted.as_ref().err().is_none_or(gone), "{deleted:?}");
        }
    }
}

// === impl KubeletInner ===

impl KubeletInner {
    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock()
    }

    /// Changes the state, and notifies waiters.
    fn change<T>(&self, change: impl FnOnce(&mut ManagerState) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        if state.crash.is_some() {
            self.stop.cancel();
        }
        drop(state);
        self.changed.notify_waiters();
        changed
    }

    /// Serves calls on a socket, whose file stays when the kubelet has stopped.
    fn serve(&self, socket: &Path, routes: Routes) {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let serving = Server::builder()
            .add_routes(routes)
            .serve_with_incoming(UnixListenerStream::new(listener));
        let stop = self.stop.clone();
        tokio::spawn(async move {
            // Connections are served by tasks of their own, which are aborted with this one.
            if let Some(ended) = stop.run_until_cancelled(serving).await {
                ended.expect("the server serves");
            }
        });
    }

    /// Waits for ever if this kubelet hangs.
    async fn hang(&self) {
        if self.hangs {
            self.stop.cancelled().await;
        }
    }
}
