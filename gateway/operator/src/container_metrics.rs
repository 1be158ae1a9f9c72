//! The metrics of all running containers: read for every owner, and labelled with the names that it uses. One
//! reading serves scrapes and `switchyard top`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::{join_all, try_join};
use switchyard_container_metrics::{Figures, Subject};
use switchyard_core::gateway::{Gateway, Scope};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::stats::{InterfaceStats, TaskMetrics};
use switchyard_core::{Error, Result};
use tokio::time::timeout;

use crate::owners::Owners;

mod reading;

pub use reading::{ContainerReading, SandboxTraffic, TaskUsage};

/// The labels of a pod's samples. They are written even if they are empty: queries distinguish the samples of
/// a pod from those of its containers by the empty name of the container.
const POD_LABELS: [&str; 4] = ["pod", "namespace", "container", "image"];

/// The running containers of one owner with their readings.
struct OwnReadings {
    sandboxes: Vec<Arc<Sandbox>>,
    tasks: Vec<Arc<Task>>,
    traffic: BTreeMap<SandboxId, Vec<InterfaceStats>>,
    metrics: BTreeMap<TaskId, TaskMetrics>,
}

/// Reads the metrics of the ready sandboxes and their running tasks, of all owners, each within `limit`. An owner whose
/// containers cannot be read hides no others. It can be dropped at any time.
///
/// # Errors
/// `Unavailable` before recovery; the first error if nothing can be read.
pub async fn read(gateway: &Gateway, owners: &Owners, limit: Duration) -> Result<ContainerReading> {
    let read = Owner::ALL.map(|owner| read_within(gateway.scope(owner), limit));
    let mut readings = Vec::with_capacity(Owner::ALL.len());
    let mut failures = BTreeMap::new();
    for (owner, read) in Owner::ALL.into_iter().zip(join_all(read).await) {
        match read {
            Ok(reading) => readings.push(reading),
            Err(error) => drop(failures.insert(owner, error)),
        }
    }
    if readings.is_empty()
        && let Some((_, error)) = failures.pop_first()
    {
        return Err(error);
    }
    let now = SystemTime::now();
    let mut figures = Figures::default();
    let mut usage = Vec::new();
    let mut all_traffic = Vec::new();
    for OwnReadings {
        sandboxes,
        tasks,
        traffic,
        metrics,
    } in &readings
    {
        let mut ready = HashMap::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            ready.insert(sandbox.id, sandbox);
            if let Some(interfaces) = traffic.get(&sandbox.id) {
                let id = sandbox.id.to_string();
                all_traffic.push(SandboxTraffic::of(sandbox.id, interfaces));
                figures.add_sandbox(
                    subject(sandbox.meta.owner, &id, &owners.names(sandbox, None)),
                    interfaces,
                );
            }
        }
        for task in tasks {
            // A task that has exited meanwhile has no readings; one whose sandbox is not ready is left out.
            let (Some(sandbox), Some(read)) = (ready.get(&task.sandbox), metrics.get(&task.id))
            else {
                continue;
            };
            let subject = subject(
                task.meta.owner,
                &task.id.to_string(),
                &owners.names(sandbox, Some(task)),
            );
            figures.add_task(subject, task, read, now);
            usage.push(TaskUsage::of(Arc::clone(task), Arc::clone(sandbox), read));
        }
    }
    Ok(ContainerReading {
        at: now,
        figures: Arc::new(figures),
        tasks: usage,
        traffic: all_traffic,
        failures,
    })
}

async fn read_within(scope: Scope, limit: Duration) -> Result<OwnReadings> {
    let owner = scope.owner();
    timeout(limit, read_owned(scope)).await.unwrap_or_else(|_| {
        Err(Error::deadline(format!(
            "the containers of {owner} were not read within {limit:?}: try again"
        )))
    })
}

async fn read_owned(scope: Scope) -> Result<OwnReadings> {
    // The tasks come first: then the sandboxes of new ones are in the list.
    let mut tasks = scope.tasks().list()?;
    tasks.retain(|task| task.state.is_running());
    let mut sandboxes = scope.sandboxes().list()?;
    sandboxes.retain(|sandbox| sandbox.state.is_ready());
    let sandbox_ids: Vec<SandboxId> = sandboxes.iter().map(|sandbox| sandbox.id).collect();
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let (traffic, metrics) = try_join(
        scope.sandboxes().traffic(&sandbox_ids),
        scope.tasks().metrics(&ids),
    )
    .await?;
    Ok(OwnReadings {
        sandboxes,
        tasks,
        traffic,
        metrics,
    })
}

/// An object with the labels that its owner's users know.
fn subject(owner: Owner, id: &str, names: &Names) -> Subject {
    match owner {
        Owner::Kubernetes => {
            let labels = POD_LABELS.map(|label| (label, names.get(label).unwrap_or_default()));
            Subject::new(owner, id, labels)
        }
        Owner::Nomad | Owner::Swarm | Owner::Host => Subject::new(owner, id, names.iter()),
    }
}

#[cfg(test)]
mod tests {
    use switchyard_container_metrics::samples;

    use super::*;

    /// The label set of the first sample of an object with these names.
    fn labels(owner: Owner, names: &Names) -> String {
        let mut figures = Figures::default();
        figures.add_sandbox(subject(owner, "ab", names), &[samples::interface()]);
        let text: String = Arc::new(figures).chunks(None).collect();
        let sample = text.lines().find(|line| !line.starts_with('#')).unwrap();
        sample
            .split_once('{')
            .unwrap()
            .1
            .split_once('}')
            .unwrap()
            .0
            .to_owned()
    }

    #[test]
    fn pods_have_the_labels_of_cadvisor_and_jobs_those_of_nomad() {
        let pod = Names::new("shop/web")
            .with("namespace", "shop")
            .with("pod", "web")
            .with("uid", "u-1");
        assert_eq!(
            labels(Owner::Kubernetes, &pod),
            r#"owner="kubernetes",id="ab",pod="web",namespace="shop",container="",image="",interface="eth0""#
        );
        let container = pod.with("container", "nginx").with("image", "nginx:1");
        assert_eq!(
            labels(Owner::Kubernetes, &container),
            r#"owner="kubernetes",id="ab",pod="web",namespace="shop",container="nginx",image="nginx:1",interface="eth0""#
        );
        let job = Names::new("web")
            .with("nomad_job", "shop")
            .with("nomad_task", "web")
            .with("image", "w:1");
        assert_eq!(
            labels(Owner::Nomad, &job),
            r#"owner="nomad",id="ab",nomad_job="shop",nomad_task="web",image="w:1",interface="eth0""#
        );
    }
}
