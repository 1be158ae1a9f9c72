//! The node's own networks: the CNI configurations that others install, and replace at any time. That of pods may be a bridge of the gateway
//! instead.
//!
//! They are read on one thread. If the file system hangs, it costs that thread: who needs a network is refused in
//! time, and at once from then on, and the status is what was known before, until it is certain that it hangs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
    known: Arc<Mutex<KnownNetwork>>,
    /// What plugins last answered to STATUS.
    answer: Arc<Mutex<Option<StatusAnswer>>>,
    /// One call asks them at a time.
    asking: Semaphore,
}

/// The answer of the plugins of a network to STATUS.
#[derive(Clone, Debug)]
struct StatusAnswer {
    /// The configuration of the network, as JSON.
    config: String,
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
            return pods.list_if_free();
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
        // It needs neither the directory nor plugins, and so no thread on which these hang.
        if let Some(pods) = self.pods.as_ref().filter(|pods| pods.is_native()) {
            let found = KnownNetwork::of_pods(pods.list_if_free());
            *self.known.lock() = found.clone();
            return found;
        }
        let plugins = self.plugins.clone();
        let pods = self.pods.clone();
        let known = Arc::clone(&self.known);
        let answer = Arc::clone(&self.answer);
        let look = self.read(move |dir| {
            let (found, network) = match pods {
                Some(pods) => (KnownNetwork::of_pods(pods.look(plugins)), None),
                None => KnownNetwork::find(dir, plugins),
            };
            let found = found.answered(answer.lock().as_ref());
            *known.lock() = found;
            Ok(network)
        });
        match timeout(STATUS_LIMIT, look).await {
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
    /// asks them. What does not answer in time says nothing: what it said before counts. Cancel-safe.
    async fn ask(&self, network: &cni::Network) {
        let config = network.list().to_document().to_string();
        let is_recent =
            |answer: &StatusAnswer| answer.config == config && answer.at.elapsed() < STATUS_AGE;
        if self.answer.lock().as_ref().is_some_and(is_recent) {
            return;
        }
        let Ok(_turn) = self.asking.try_acquire() else {
            return;
        };
        let name = &network.list().name;
        let Ok(answered) = timeout(STATUS_LIMIT, network.status()).await else {
            tracing::debug!(
                network = name,
                "the plugins of the default network do not answer STATUS within {STATUS_LIMIT:?}"
            );
            return;
        };
        let fault = answered.err().map(|fault| {
            Error::unavailable(format!("the network {name:?} is not ready"))
                .with_source(fault)
                .report()
        });
        {
            let mut known = self.known.lock();
            if known.config == config {
                known.condition = fault.clone().map_or(Condition::True, not_ready);
            }
        }
        *self.answer.lock() = Some(StatusAnswer {
            config,
            at: Instant::now(),
            fault,
        });
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&cni::ConfDir) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let dir = Arc::clone(&self.dir);
        let object = format!("the CNI configuration in {}", self.dir().display());
        self.thread.run(object, move || job(&dir)).await
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

    /// This network, with what its plugins last answered.
    fn answered(self, answer: Option<&StatusAnswer>) -> Self {
        let of_this = answer.filter(|answer| answer.config == self.config);
        match of_this.and_then(|answer| answer.fault.clone()) {
            Some(fault) if self.condition == Condition::True => Self {
                condition: not_ready(fault),
                ..self
            },
            Some(_) | None => self,
        }
    }
}

fn not_ready(message: String) -> Condition {
    Condition::False {
        reason: "NetworkPluginNotReady".to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc;

    use futures::FutureExt as _;
    use switchyard_core::ErrorKind;
    use tokio::sync::oneshot;

    use super::*;

    /// A directory with the network "net" of the plugin "real", which is installed.
    fn networks(dir: &Path) -> NodeNetworks {
        fs::write(dir.join("real"), "").unwrap();
        let conf = dir.join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(
            conf.join("10-net.conf"),
            r#"{"cniVersion":"1.0.0","name":"net","type":"real"}"#,
        )
        .unwrap();
        NodeNetworks::new(
            &conf,
            cni::Plugins::new([dir.to_owned()], cni::Limits::default()),
            None,
        )
    }

    #[tokio::test]
    async fn look_finds_the_network_as_it_is_now() {
        let temp = tempfile::tempdir().unwrap();
        let networks = networks(temp.path());
        assert!(matches!(
            networks.known().condition,
            Condition::False { .. }
        ));
        let found = networks.look().await;
        assert_eq!(found.condition, Condition::True);
        assert!(found.config.contains(r#""name":"net""#), "{}", found.config);
        assert_eq!(networks.known(), found);
        fs::remove_file(temp.path().join("real")).unwrap();
        let Condition::False { reason, message } = networks.look().await.condition else {
            panic!("its plugin is gone")
        };
        assert_eq!(reason, "NetworkPluginNotReady");
        assert!(message.contains("plugin real"), "{message}");
        fs::remove_file(networks.dir().join("10-net.conf")).unwrap();
        let gone = networks.look().await;
        assert_eq!(gone.config, "");
        assert!(matches!(gone.condition, Condition::False { .. }));
        let error = networks.named("net").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
        assert_eq!(
            networks.default_network().await.unwrap_err().kind(),
            ErrorKind::Unavailable
        );
    }

    #[tokio::test]
    async fn plugins_that_have_status_say_whether_the_network_is_ready() {
        let refusal = |code: u32| format!("echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1");
        for (version, body, is_ready) in [
            ("1.1.0", "exit 0".to_owned(), true),
            ("1.1.0", refusal(50), false),
            ("1.1.0", refusal(51), false),
            ("1.1.0", refusal(11), false),
            ("1.1.0", "exit 1".to_owned(), false),
            // It does not have the command.
            ("1.1.0", refusal(4), true),
            // The version does not have it: the plugin is not run.
            ("1.0.0", refusal(50), true),
        ] {
            let temp = tempfile::tempdir().unwrap();
            let script = temp.path().join("real");
            fs::write(&script, format!("#!/bin/sh\ncat > /dev/null\n{body}\n")).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            let conf = temp.path().join("net.d");
            fs::create_dir(&conf).unwrap();
            let text = format!(r#"{{"cniVersion":"{version}","name":"net","type":"real"}}"#);
            fs::write(conf.join("10-net.conf"), text).unwrap();
            let plugins = cni::Plugins::new([temp.path().to_owned()], cni::Limits::default());
            let networks = NodeNetworks::new(&conf, plugins, None);
            let found = networks.look().await;
            assert_eq!(networks.known(), found);
            let is_found_ready = found.condition == Condition::True;
            assert_eq!(is_found_ready, is_ready, "{version} {body}: {found:?}");
            assert!(!found.config.is_empty(), "it is configured all the same");
            // Asked again at once, it is what the plugins have said.
            assert_eq!(networks.look().await, found);
        }
    }

    /// The clock stands still: nothing here waits for real time.
    #[tokio::test(start_paused = true)]
    async fn hung_directory_costs_one_thread_and_the_status_goes_on() {
        let temp = tempfile::tempdir().unwrap();
        let networks = networks(temp.path());
        let well = networks.look().await;
        let (began, begins) = oneshot::channel();
        let (answers, answer) = mpsc::channel::<()>();
        let mut first = Box::pin(networks.read(move |_| {
            began.send(()).expect("the test waits for it");
            let _ = answer.recv();
            Ok(())
        }));
        assert!((&mut first).now_or_never().is_none());
        begins.await.unwrap();
        // Nobody knows yet that it hangs.
        let mut waits = Box::pin(networks.default_network());
        let mut looks = Box::pin(networks.look());
        assert!((&mut waits).now_or_never().is_none() && (&mut looks).now_or_never().is_none());
        tokio::time::advance(STATUS_LIMIT).await;
        assert_eq!(looks.await, well, "the result of before is reported");
        assert!((&mut waits).now_or_never().is_none());

        tokio::time::advance(READ_LIMIT).await;
        let named = networks.dir().display().to_string();
        for error in [first.await.unwrap_err(), waits.await.unwrap_err()] {
            let text = error.report();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(text.contains(&named) && text.contains("hang"), "{text}");
        }
        // From now on nobody waits.
        let refused = networks
            .named("net")
            .now_or_never()
            .expect("it does not wait")
            .unwrap_err();
        assert!(refused.report().contains(&named), "{}", refused.report());
        let hung = networks.look().now_or_never().expect("it does not wait");
        let Condition::False { reason: _, message } = &hung.condition else {
            panic!("{hung:?}")
        };
        assert!(
            message.contains("still hangs") && message.contains(&named),
            "{message}"
        );
        assert_eq!(hung.config, well.config);

        drop(answers);
        let again = loop {
            match networks.look().await {
                back if back.condition == Condition::True => break back,
                // The thread returns in its own time.
                _ => tokio::task::yield_now().await,
            }
        };
        assert_eq!(again, well);
        assert_eq!(networks.default_network().await.unwrap().name, "net");
    }
}
