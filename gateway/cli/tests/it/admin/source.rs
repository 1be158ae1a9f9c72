//! A source of the admin pages that a test controls.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_core::Error;
use switchyard_core::backend::Advisory;
use switchyard_core::gateway::PullsByResult;
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::table::Counts;
use switchyard_daemon::node::plugins;
use switchyard_daemon::node::swarm::SwarmHandle;
use switchyard_logkeeper::protocol::Stats;
use switchyard_operator::container_metrics::ContainerReading;
use switchyard_operator::control::RestartError;
use switchyard_operator::control::SwarmControl;
use switchyard_operator::metrics::PluginFigures;
use switchyard_operator::status::{Part, StatusSource};
use switchyard_operator_api::RestartReport;
use switchyard_operator_api::programs::ProgramView;
use switchyard_operator_api::{
    DevicesView, Disclosure, ImageView, InspectionView, Objects, SandboxView, TaskLogView, VolumeView,
};

use super::{containers, devices, logs, objects, page, volumes};

#[derive(Default)]
pub(super) struct Fake {
    pub(super) parts: Mutex<Vec<Part>>,
    pub(super) containers: containers::Containers,
    /// The objects, in place of the only sandbox.
    pub(super) objects: Mutex<Option<Objects>>,
    /// The root directory of the log of a page's task.
    pub(super) log: Mutex<PathBuf>,
    pub(super) swarm: OnceLock<SwarmHandle>,
}

impl StatusSource for Fake {
    fn count_pulls(&self) -> PullsByResult {
        PullsByResult::new()
    }

    fn parts(&self) -> BoxFuture<'_, Vec<Part>> {
        Box::pin(std::future::ready(self.parts.lock().clone()))
    }

    fn advisories(&self) -> Vec<Advisory> {
        vec![Advisory { program: "runc".into(), version: "1.1.0".into(), ids: vec!["CVE-2024-21626".into()] }]
    }

    fn count_sandboxes(&self) -> Counts {
        BTreeMap::from([((Owner::Kubernetes, "ready"), 1)])
    }

    fn count_tasks(&self) -> Counts {
        BTreeMap::from([((Owner::Nomad, "running"), 3)])
    }

    fn count_images(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(Some(5)))
    }

    fn count_launchers(&self) -> Option<u64> {
        Some(2)
    }

    fn swarm(&self) -> Option<&dyn SwarmControl> {
        self.swarm.get().map(|swarm| swarm as _)
    }

    fn is_swarm_enabled(&self) -> bool {
        true
    }

    fn plugins(&self) -> Option<PluginFigures> {
        Some(plugins::figures(&devices::reported()))
    }

    fn count_streaming(&self) -> Vec<(&'static str, u64)> {
        vec![("portforward", 4)]
    }

    fn logs(&self) -> BoxFuture<'_, Option<Stats>> {
        Box::pin(std::future::ready(Some(Stats { containers: 2, ..Stats::default() })))
    }

    fn objects(&self) -> Objects {
        if let Some(objects) = self.objects.lock().clone() {
            return objects;
        }
        Objects {
            sandboxes: vec![SandboxView {
                id: "ab".repeat(32),
                owner: "kubernetes".into(),
                name: "web_shop_u1_0".into(),
                display_name: "shop/web".into(),
                names: BTreeMap::from([("pod".to_owned(), "web".to_owned())]),
                state: "ready".into(),
                handler: String::new(),
                ips: vec!["10.0.0.2".parse().unwrap()],
                created_at: "2024-01-01T00:00:00Z".into(),
            }],
            tasks: Vec::new(),
        }
    }

    fn inspect(
        &self,
        name: String,
        disclosure: Disclosure,
    ) -> BoxFuture<'_, switchyard_core::Result<InspectionView>> {
        Box::pin(std::future::ready(match page::inspect(&name) {
            Some(found) => Ok(found),
            None => objects::inspect(&name, disclosure),
        }))
    }

    fn images(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<ImageView>>> {
        Box::pin(std::future::ready(Ok(objects::images())))
    }

    fn volumes(&self) -> BoxFuture<'_, switchyard_core::Result<Vec<VolumeView>>> {
        Box::pin(std::future::ready(Ok(volumes::all())))
    }

    fn remove_volume(&self, owner: Owner, name: String) -> BoxFuture<'_, switchyard_core::Result<()>> {
        Box::pin(std::future::ready(volumes::remove(owner, &name)))
    }

    fn devices(&self) -> DevicesView {
        devices::shown()
    }

    fn display_name(&self, sandbox: &str) -> Option<String> {
        (sandbox == "cd".repeat(32)).then(|| "jobs/train".to_owned())
    }

    fn programs(&self) -> BoxFuture<'_, Vec<ProgramView>> {
        let program = ProgramView {
            part: "containerd".into(),
            pid: 4711,
            path: "/usr/bin/containerd".into(),
            replaced: true,
        };
        Box::pin(std::future::ready(vec![program]))
    }

    fn restart(&self, part: &str) -> Option<BoxFuture<'_, Result<RestartReport, RestartError>>> {
        let answer = match part {
            "containerd" => Ok(RestartReport { part: part.to_owned(), before: Some(4711), after: 4712 }),
            "logkeeper" => Err(RestartError::External { name: "logkeeper", pid: 4713 }),
            _ => return None,
        };
        Some(Box::pin(std::future::ready(answer)))
    }

    fn read_containers(&self) -> BoxFuture<'static, switchyard_core::Result<ContainerReading>> {
        self.containers.read()
    }

    fn task_log<'a>(&'a self, task: &'a str) -> BoxFuture<'a, switchyard_core::Result<TaskLogView>> {
        Box::pin(std::future::ready(match page::log(task, &self.log) {
            Some(view) => Ok(view),
            None => logs::find(task),
        }))
    }

    fn release_lease(&self, token: LeaseToken) -> BoxFuture<'_, switchyard_core::Result<()>> {
        Box::pin(std::future::ready(if token == LeaseToken::from_bytes([7; 16]) {
            Ok(())
        } else {
            Err(Error::failed_precondition(format!(
                "lease {token} is in use by train of nomad: it ends with that"
            )))
        }))
    }
}
