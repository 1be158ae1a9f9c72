//! The parts that find devices, host vendors' device plugins and offer devices to a kubelet. Each follows the
//! configuration while the daemon runs.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use switchyard_config::{DeviceHost, DevicesConfig, KubeletDevices};
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_device_host::Hosted;
use switchyard_devices::Search;
use switchyard_operator::metrics::Metrics;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::layer::RpcLayer;
use crate::reports::DeviceReport;
use crate::shutdown::Shutdown;
use crate::wiring;

/// The configurations that the parts follow.
#[derive(Debug)]
pub(crate) struct DeviceParts {
    search: watch::Sender<Search>,
    hosted: Hosted,
    host: watch::Sender<DeviceHost>,
    kubelet: watch::Sender<KubeletDevices>,
}

/// Dependencies of the parts on the daemon.
pub(crate) struct DeviceContext<'d> {
    pub(crate) gateway: &'d Gateway,
    pub(crate) metrics: &'d Arc<Metrics>,
    pub(crate) report: &'d Arc<DeviceReport>,
    pub(crate) shutdown: &'d Shutdown,
    /// The tasks that the daemon waits for when it stops.
    pub(crate) tasks: &'d TaskTracker,
}

/// A layer around the services of a socket.
type Observe = Arc<dyn Fn(Routes) -> Routes + Send + Sync>;

impl DeviceParts {
    /// Gives the gateway the devices of the node, those of the configuration and those of vendors' plugins,
    /// and starts the parts. They run until the daemon ends, and a short time longer to close connections.
    pub(crate) fn start(config: &DevicesConfig, context: &DeviceContext<'_>) -> Self {
        let stop = context.shutdown.token();
        let hosted = wiring::hosted(config);
        let (search, searches) = watch::channel(wiring::search(config));
        context
            .gateway
            .devices()
            .watch(wiring::inventories(searches, &hosted, stop));
        let parts = Self {
            search,
            hosted,
            host: watch::Sender::new(config.host.clone()),
            kubelet: watch::Sender::new(config.kubelet.clone()),
        };
        parts.host_plugins(context);
        parts.offer_to_kubelet(context);
        parts
    }

    /// Puts another configuration in force. Parts whose directories change are started again; the others go
    /// on.
    pub(crate) fn reconfigure(&self, config: &DevicesConfig) {
        let search = wiring::search(config);
        self.search
            .send_if_modified(|present| replace(present, search, |old, new| old == new));
        self.hosted
            .reconfigure(config.reserved_names(), &config.host);
        // The quotas of resources are in force already.
        self.host.send_if_modified(|present| {
            replace(present, config.host.clone(), |old, new| {
                (old.enabled, &old.directory) == (new.enabled, &new.directory)
            })
        });
        self.kubelet.send_if_modified(|present| {
            replace(present, config.kubelet.clone(), |old, new| old == new)
        });
    }

    /// Serves the socket at which vendors' device plugins register.
    fn host_plugins(&self, context: &DeviceContext<'_>) {
        let observe = observe("device_host", context.metrics);
        let gateway = context.gateway.clone();
        let report = Arc::clone(context.report);
        let hosted = self.hosted.clone();
        let serve = move |config: DeviceHost, stop: CancellationToken| {
            let host = config.enabled.then(|| {
                gateway.devices().set_provider(Arc::new(hosted.clone()));
                wiring::device_host(hosted.clone(), config, Arc::clone(&observe))
            });
            report.set_hosted(host.is_some().then(|| hosted.clone()));
            async move {
                if let Some(host) = host {
                    host.serve(stop).await;
                }
            }
        };
        context.spawn(
            "the host of vendors' device plugins",
            self.host.subscribe(),
            serve,
        );
    }

    /// Offers devices to a kubelet, on sockets in the kubelet's directory, once recovery is done.
    fn offer_to_kubelet(&self, context: &DeviceContext<'_>) {
        let observe = observe("device_plugin", context.metrics);
        let scope = context.gateway.scope(Owner::Kubernetes);
        let report = Arc::clone(context.report);
        let serve = move |config: KubeletDevices, stop: CancellationToken| {
            let frontend = config
                .enabled
                .then(|| wiring::kubelet_devices(scope.clone(), config, Arc::clone(&observe)));
            report.set_kubelet(frontend.as_ref().map(|frontend| frontend.registrations()));
            async move {
                if let Some(frontend) = frontend {
                    frontend.serve(stop).await;
                }
            }
        };
        context.spawn(
            "the device plugin for kubelets",
            self.kubelet.subscribe(),
            serve,
        );
    }
}

impl DeviceContext<'_> {
    /// Runs a part, and starts it again with each new configuration. Unlike other parts it continues for a
    /// short time after the daemon was asked to end, so that its sockets are removed.
    fn spawn<C, S>(
        &self,
        name: &'static str,
        configs: watch::Receiver<C>,
        serve: impl FnMut(C, CancellationToken) -> S + Send + 'static,
    ) where
        C: Clone + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let following = follow(configs, shutdown.token().clone(), serve);
            if AssertUnwindSafe(following).catch_unwind().await.is_err() {
                shutdown.fail(format!("{name} panicked; the log says where"));
            }
        });
    }
}

/// Runs `serve` with the newest configuration until `stop`. With a new one it is asked to end, and is started
/// again when it has ended.
async fn follow<C, S>(
    mut configs: watch::Receiver<C>,
    stop: CancellationToken,
    mut serve: impl FnMut(C, CancellationToken) -> S,
) where
    C: Clone,
    S: Future<Output = ()>,
{
    while !stop.is_cancelled() {
        let config = configs.borrow_and_update().clone();
        let until = stop.child_token();
        let serving = serve(config, until.clone());
        let replaced = async {
            // The sender may be gone: then there will be no new configuration.
            if stop
                .run_until_cancelled(configs.changed())
                .await
                .is_some_and(|changed| changed.is_err())
            {
                stop.cancelled().await;
            }
            until.cancel();
        };
        tokio::join!(serving, replaced);
    }
}

fn observe(protocol: &'static str, metrics: &Metrics) -> Observe {
    let layer = RpcLayer::new(protocol, metrics, None);
    Arc::new(move |routes| Routes::from(routes.into_axum_router().layer(layer.clone())))
}

/// Replaces a value, and returns whether it differs in what a part needs to be started again for.
fn replace<T>(present: &mut T, new: T, is_same: impl Fn(&T, &T) -> bool) -> bool {
    let is_new = !is_same(present, &new);
    *present = new;
    is_new
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_is_started_again_with_each_configuration_after_it_has_ended() {
        let configs = watch::Sender::new(1);
        let stop = CancellationToken::new();
        let record = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&record);
        let serve = move |config: i32, stop: CancellationToken| {
            let log = Arc::clone(&log);
            async move {
                log.lock().push(format!("{config} begins"));
                if config != 2 {
                    stop.cancelled().await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                log.lock().push(format!("{config} ends"));
            }
        };
        let following = tokio::spawn(follow(configs.subscribe(), stop.clone(), serve));
        for config in [2, 3] {
            tokio::time::sleep(Duration::from_secs(5)).await;
            configs.send(config).unwrap();
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(configs);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!following.is_finished(), "it runs until it is stopped");
        stop.cancel();
        following.await.unwrap();
        let expected = [
            "1 begins", "1 ends", "2 begins", "2 ends", "3 begins", "3 ends",
        ];
        assert_eq!(*record.lock(), expected);
    }
}
