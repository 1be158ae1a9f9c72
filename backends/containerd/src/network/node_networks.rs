//! The node's own networks: the CNI configurations that others install, and replace at any time. That of pods may be a bridge of the gateway
//! instead.
//!
//! They are read on one thread. If the file system hangs, it costs that thread: who needs a network is refused in
//! time, and at once from then on, and the status is what was known before, until it is certain that it hangs. The bridge of
//! pods needs nothing of them, and has a thread of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_cni as cni;
use switchyard_core::backend::Condition;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Error, Result, threads};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::pod_bridge::PodBridge;
use crate::base::error::from_cni;

/// Limit for one reading.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Time for which the status waits for a reading. Clients that probe the daemon give up after a few seconds.
const STATUS_LIMIT: Duration = Duration::from_secs(2);

/// Time for which the answers of plugins to STATUS count. Each client that probes the daemon asks every few seconds.
const STATUS_AGE: Duration = Duration::from_secs(5);

/// The configuration directory of the node.
#[derive(Debug)]
pub(crate) struct NodeNetworks {
    dir: Arc<cni::ConfDir>,
    plugins: cni::Plugins,
    /// The bridge of pods, if they are attached to none of these networks.
    pods: Option<Arc<PodBridge>>,
    thread: BlockingPool,
    /// For that bridge.
    pod_thread: BlockingPool,
    /// [`STATUS_LIMIT`], unless a test has another one.
    status_limit: Duration,
    known: Arc<Mutex<KnownNetwork>>,
    /// Last answer of plugins to STATUS.
    answer: Arc<Mutex<Option<StatusAnswer>>>,
    /// One call asks them at a time.
    asking: Semaphore,
}

/// The answer of the plugins of a network to STATUS.
#[derive(Clone, Debug)]
struct StatusAnswer {
    /// The configuration of the network, as JSON.
    config: String,
    /// Time at which they answered, or were given up.
    at: Instant,
    /// The reason why it is not ready, if it is not.
    fault: Option<String>,
}

/// The default network, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownNetwork {
    /// The condition under which sandboxes can be attached to it.
    pub(crate) condition: Condition,
    /// Its configuration as JSON; empty if there is none.
    pub(crate) config: String,
}

// === impl NodeNetworks ===

impl NodeNetworks {
    pub(crate) fn new(dir: &Path, plugins: cni::Plugins, pods: Option<Arc<PodBridge>>) -> Self {
        let not_yet = match &pods {
            Some(_) => "the bridge of pods was not looked at yet".to_owned(),
            None => format!(
                "the CNI configuration in {} was not read yet",
                dir.display()
            ),
        };
        let known = KnownNetwork {
            condition: not_ready(not_yet),
            config: String::new(),
        };
        Self {
            dir: Arc::new(cni::ConfDir::new(dir)),
            plugins,
            pods,
            thread: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
            pod_thread: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
            status_limit: STATUS_LIMIT,
            known: Arc::new(Mutex::new(known)),
            answer: Arc::default(),
            asking: Semaphore::new(1),
        }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.dir()
    }

    /// The bridge of pods, if they are attached to none of the node's networks.
    pub(crate) fn pods(&self) -> Option<&Arc<PodBridge>> {
        self.pods.as_ref()
    }

    /// The network of pods: their bridge, or the default network by the present configuration. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if there is none, or its directory hangs.
    pub(crate) async fn default_network(&self) -> Result<Arc<cni::NetworkList>> {
        if let Some(pods) = &self.pods {
            return self.read_for(pods, PodBridge::list_if_free).await;
        }
        Ok(self.read(|dir| dir.load().map_err(from_cni)).await?.list)
    }

    /// The network of this name, by the present configuration. Cancel-safe.
    ///
    /// # Errors
    /// `FailedPrecondition` if there is none, `Unavailable` if its directory hangs.
    pub(crate) async fn named(&self, name: &str) -> Result<Arc<cni::NetworkList>> {
        let wanted = name.to_owned();
        let found = self
            .read(move |dir| dir.find(&wanted).map_err(from_cni))
            .await?;
        found.ok_or_else(|| {
            let dir = self.dir().display();
            Error::failed_precondition(format!(
                "no file in {dir} configures a CNI network with the name {name:?}"
            ))
        })
    }

    /// Returns the state of the default network when it was last [examined](Self::look).
    pub(crate) fn known(&self) -> KnownNetwork {
        self.known.lock().clone()
    }

    /// Looks at the default network, and asks its plugins whether it is ready if they have STATUS. If that takes long, the
    /// answer is what was known before; once it is certain that the directory hangs, it says so. Cancel-safe.
    pub(crate) async fn look(&self) -> KnownNetwork {
        let plugins = self.plugins.clone();
        let known = Arc::clone(&self.known);
        let look: BoxFuture<'_, Result<Option<cni::Network>>> = if let Some(pods) = &self.pods {
            Box::pin(self.read_for(pods, move |pods| {
                *known.lock() = KnownNetwork::of_pods(pods.look(plugins));
                Ok(None::<cni::Network>)
            }))
        } else {
            let answer = Arc::clone(&self.answer);
            Box::pin(self.read(move |dir| {
                let (found, network) = KnownNetwork::find(dir, plugins);
                let mut known = known.lock();
                let answer = answer.lock().clone();
                let before = known.condition.clone();
                *known = found.answered(network.is_some(), answer.as_ref(), before);
                Ok(network)
            }))
        };
        match timeout(self.status_limit, look).await {
            Ok(Err(hangs)) => KnownNetwork {
                condition: not_ready(hangs.report()),
                ..self.known()
            },
            Ok(Ok(network)) => {
                if let Some(network) = network {
                    self.ask(&network).await;
                }
                self.known()
            }
            Err(_) => self.known(),
        }
    }

    /// Asks the plugins of the default network whether it is ready, unless they were asked a moment ago, or another call
    /// asks them, which is waited for if they have never answered with this configuration. What does not answer in time says
    /// nothing: what it said before counts, or else that it is installed. Cancel-safe.
    async fn ask(&self, network: &cni::Network) {
        let config = network.list().to_document().to_string();
        let before = self.last_answer(&config);
        if before.as_ref().is_some_and(StatusAnswer::is_recent) {
            return;
        }
        let turn = match before {
            Some(_) => self.asking.try_acquire().ok(),
            // Who has the turn does not keep it that long.
            None => {
                let turn = timeout(self.status_limit * 2, self.asking.acquire()).await;
                turn.ok().and_then(|turn| turn.ok())
            }
        };
        let Some(_turn) = turn else {
            return;
        };
        let before = self.last_answer(&config);
        if before.as_ref().is_some_and(StatusAnswer::is_recent) {
            return;
        }
        let name = &network.list().name;
        let refusal = |fault: cni::Error| {
            Error::unavailable(format!("the network {name:?} is not ready"))
                .with_source(fault)
                .report()
        };
        let answered = timeout(self.status_limit, network.status()).await;
        let fault = match answered {
            Ok(answered) => answered.err().map(refusal),
            Err(_) => {
                tracing::debug!(
                    network = name,
                    "the plugins of the default network do not answer STATUS within {:?}",
                    self.status_limit
                );
                before.and_then(|answer| answer.fault)
            }
        };
        // Also without an answer: else each probe would start a plugin that hangs.
        let answer = StatusAnswer {
            config,
            at: Instant::now(),
            fault,
        };
        *self.answer.lock() = Some(answer.clone());
        let mut known = self.known.lock();
        if known.config == answer.config {
            known.condition = answer.condition();
        }
    }

    /// Returns what plugins last answered with this configuration.
    fn last_answer(&self, config: &str) -> Option<StatusAnswer> {
        let answer = self.answer.lock().clone();
        answer.filter(|answer| answer.config == config)
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&cni::ConfDir) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let dir = Arc::clone(&self.dir);
        let object = format!("the CNI configuration in {}", self.dir().display());
        self.thread.run(object, move || job(&dir)).await
    }

    /// The same for the bridge of pods.
    async fn read_for<T: Send + 'static>(
        &self,
        pods: &Arc<PodBridge>,
        job: impl FnOnce(&PodBridge) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let pods = Arc::clone(pods);
        let object = "the bridge of pods".to_owned();
        self.pod_thread.run(object, move || job(&pods)).await
    }
}

// === impl StatusAnswer ===

impl StatusAnswer {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < STATUS_AGE
    }

    fn condition(&self) -> Condition {
        self.fault.clone().map_or(Condition::True, not_ready)
    }
}

// === impl KnownNetwork ===

impl KnownNetwork {
    /// The network of pods that have a bridge.
    fn of_pods(list: Result<Arc<cni::NetworkList>>) -> Self {
        match list {
            Ok(list) => Self {
                condition: Condition::True,
                config: list.to_document().to_string(),
            },
            Err(error) => Self {
                condition: not_ready(error.report()),
                config: String::new(),
            },
        }
    }

    /// The default network, and whose plugins are to be asked whether it is ready, if there is nothing else against it.
    /// Blocks on the file system.
    fn find(dir: &cni::ConfDir, plugins: cni::Plugins) -> (Self, Option<cni::Network>) {
        let no_network =
            |fault| not_ready(Error::unavailable("no network").with_source(fault).report());
        match dir.load() {
            Err(fault) => {
                let found = Self {
                    condition: no_network(fault),
                    config: String::new(),
                };
                (found, None)
            }
            Ok(cni::Loaded { list, skipped: _ }) => {
                let config = list.to_document().to_string();
                let has_status = list.cni_version.has_status();
                let network = cni::Network::new(list, plugins);
                let installed = network.check_installed();
                let asked = (has_status && installed.is_ok()).then_some(network);
                let found = Self {
                    condition: installed.map_or_else(no_network, |()| Condition::True),
                    config,
                };
                (found, asked)
            }
        }
    }

    /// This network, with what its plugins last answered, if they are asked. Until they have answered with this configuration,
    /// what was known before counts: a network that refuses is not ready for a moment. Pure.
    fn answered(self, is_asked: bool, answer: Option<&StatusAnswer>, before: Condition) -> Self {
        if !is_asked {
            return self;
        }
        let of_this = answer.filter(|answer| answer.config == self.config);
        let condition = of_this.map_or(before, StatusAnswer::condition);
        Self { condition, ..self }
    }
}

fn not_ready(message: String) -> Condition {
    Condition::False {
        reason: "NetworkPluginNotReady".to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests;
