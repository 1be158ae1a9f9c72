//! A kubelet's device manager as a model, for tests of device plugins.
//!
//! It does what kubelets 1.32 to 1.36 were seen to do, their faults included:
//! - When it starts it deletes all sockets in its directory, and then makes `kubelet.sock`. What its pods have it knows from its checkpoint; its
//!   devices it knows only when their plugins register again.
//! - Within Register it connects to the plugin, for which it waits up to 10 s. It never opens a ListAndWatch anew.
//! - Of several plugins for one resource the last message wins, and the end of any of them disconnects the newest.
//! - One pod is admitted after the other, Allocate has no deadline, and a failure is final.
//! - It crashes if an id is missing from ListAndWatch while it is being allocated.
//! - What a pod had is free as soon as the pod is no more, although its containers may run on.
//! - A resource that nobody has registered is left out: the container starts without it.
//!
//! Its plugin watcher calls plugins with an `:authority` that is a percent-encoded path.
//!
//! Beside it is a model of what registers with kubelets: [`vendor`].

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use switchyard_proto::kubelet::device_plugin::v1beta1::registration_server::RegistrationServer;
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

/// How a kubelet is set up.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What its predecessor has left.
    pub checkpoint: Checkpoint,
    /// Where it serves PodResources, if it does.
    pub pod_resources_socket: Option<PathBuf>,
    /// Where its plugin watcher looks for plugins, if it does.
    pub plugins_registry: Option<PathBuf>,
    /// It takes calls, and never answers one.
    pub hangs: bool,
    /// The processors that its CPU manager has given to single containers.
    pub exclusive_cpus: Vec<i64>,
}

/// A kubelet that runs, until it is dropped. Its sockets stay.
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
    began: Instant,
    state: Mutex<ManagerState>,
    /// Something of the state has changed.
    changed: Notify,
    /// One pod is admitted after the other.
    admission: tokio::sync::Mutex<()>,
    stop: CancellationToken,
}

// === impl Kubelet ===

impl Kubelet {
    /// Starts one in a directory, which is made if it is not there.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start(directory: &Path, options: Options) -> Self {
        let Options { checkpoint, pod_resources_socket, plugins_registry, hangs, exclusive_cpus } = options;
        fs::create_dir_all(directory).expect("the directory can be made");
        remove_sockets(directory);
        let shared = Arc::new_cyclic(|this| KubeletInner {
            this: this.clone(),
            directory: directory.to_owned(),
            hangs,
            exclusive_cpus,
            began: Instant::now(),
            state: Mutex::new(ManagerState::restored(checkpoint)),
            changed: Notify::new(),
            admission: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
        });
        let registration = RegistrationServer::from_arc(Arc::clone(&shared));
        shared.serve(&directory.join("kubelet.sock"), Routes::new(registration));
        if let Some(socket) = pod_resources_socket {
            fs::create_dir_all(socket.parent().expect("it is in a directory")).expect("it can be made");
            let _ = fs::remove_file(&socket);
            shared.serve(&socket, Routes::new(PodResourcesListerServer::from_arc(Arc::clone(&shared))));
        }
        if let Some(registry) = plugins_registry {
            tokio::spawn(
                shared.stop.clone().run_until_cancelled_owned(watcher::follow(Arc::clone(&shared), registry)),
            );
        }
        Self { shared }
    }

    /// Ends it as SIGKILL does. What it leaves for its successor.
    #[must_use]
    pub fn kill(self) -> Checkpoint {
        self.shared.state().checkpoint()
    }

    /// When its socket was made.
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

    /// How many devices of a resource there are, and how many of them are healthy.
    #[must_use]
    pub fn capacity(&self, resource: &str) -> (usize, usize) {
        self.shared.state().capacity(resource)
    }

    /// What it has crashed over, if it has.
    #[must_use]
    pub fn crash(&self) -> Option<String> {
        self.shared.state().crash.clone()
    }

    /// Returns once this holds of it.
    ///
    /// # Panics
    /// If that takes too long; `what` says what it is.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let met = async {
            loop {
                let changed = self.shared.changed.notified();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        let met = tokio::time::timeout(Duration::from_secs(30), met).await;
        assert!(met.is_ok(), "{what}: not within 30 s; {:?}", self.shared.state());
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

/// Deletes all sockets of a directory, as a kubelet does that starts; other files stay.
///
/// # Panics
/// If they cannot be deleted.
pub fn remove_sockets(directory: &Path) {
    for entry in fs::read_dir(directory).expect("the directory can be read").flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            let deleted = fs::remove_file(entry.path());
            // Its plugin may delete it at the same time.
            let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
            assert!(deleted.as_ref().err().is_none_or(gone), "{deleted:?}");
        }
    }
}

// === impl Shared ===

impl KubeletInner {
    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and tells of it.
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

    /// Serves calls on a socket, which stays when the kubelet has ended.
    fn serve(&self, socket: &Path, routes: Routes) {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let serving =
            Server::builder().add_routes(routes).serve_with_incoming(UnixListenerStream::new(listener));
        let stop = self.stop.clone();
        tokio::spawn(async move {
            // Connections are served by tasks of their own, which end with this.
            if let Some(ended) = stop.run_until_cancelled(serving).await {
                ended.expect("the server serves");
            }
        });
    }

    /// Waits for ever, if this kubelet hangs.
    async fn hang(&self) {
        if self.hangs {
            self.stop.cancelled().await;
        }
    }
}
