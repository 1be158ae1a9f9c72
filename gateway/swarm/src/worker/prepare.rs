//! The preparation of a task: image, files, ports, sandbox and task.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::SystemTime;

use switchyard_core::image::PullRequest;
use switchyard_core::spec::{
    HostPort, MissingSource, Mount, MountSource, Relabel, SandboxNetwork, SandboxSpec, TaskSpec,
};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::blocking;

use super::{Performed, Worker, wanted_otherwise};
use crate::from_image::{self, ImageHealth};
use crate::from_proto::{self, claims, mappings};
use crate::health::{self, ResolvedCheck};
use crate::life::Outcome;
use crate::plan::{PublishedPort, ServiceImage, TaskPlan};
use crate::record::Record;

/// Number of times that ports are chosen again if others take them meanwhile.
const PORT_TRIES: usize = 16;

/// The specs to create for a task.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    sandbox: SandboxSpec,
    task: TaskSpec,
}

impl Worker {
    /// Prepares the task. A failure for good leaves nothing behind.
    pub(super) async fn prepare(&mut self) -> Performed {
        if let Some(plan) = &self.plan {
            let image = plan.image.clone();
            let pulled = tokio::select! {
                pulled = self.ensure_image(&image) => pulled,
                // A pull without another waiter stops.
                () = wanted_otherwise(self.wanted.clone()) => return None,
            };
            if let Err(error) = pulled {
                return Some(Outcome::Fatal(error.status_text()));
            }
        }
        // From here on nothing is interrupted: what is created would be without anyone who knows it.
        let created = Box::pin(self.create()).await;
        let outcome = match created {
            Ok(()) => {
                self.forget_assignment();
                self.plan = None;
                self.prepared = None;
                return Some(Outcome::Done);
            }
            // The image was removed between the check and the creation: it is pulled again.
            Err(error) if error.kind() == ErrorKind::NotFound && self.tries == 0 => {
                self.tries += 1;
                Outcome::Temporary(error.status_text())
            }
            Err(error) => self.outcome(&error),
        };
        if matches!(outcome, Outcome::Fatal(_))
            && let Err(error) = self.remove_objects().await
        {
            tracing::warn!(
                swarm_task = self.id,
                error = error.report(),
                "cannot remove what was created for a rejected task: it is removed with the task"
            );
        }
        Some(outcome)
    }

    /// Makes sure that the node has the image. An image that a digest names is not pulled again; otherwise a
    /// pull that fails is no failure if the node has the image.
    async fn ensure_image(&self, image: &ServiceImage) -> Result<()> {
        let scope = &self.shared.scope;
        let ServiceImage {
            reference,
            has_digest,
            credentials,
        } = image;
        if *has_digest && scope.images().find(reference).await?.is_some() {
            return Ok(());
        }
        let request = PullRequest {
            reference: reference.clone(),
            credentials: credentials.clone(),
            handler: String::new(),
            owner: scope.owner(),
        };
        let limit = self.shared.settings.pull_timeout;
        let late = async {
            tokio::time::sleep(limit).await;
            Error::deadline(format!("it did not end within {limit:?}"))
        };
        match scope.images().pull_unless(&request, late).await {
            Ok(_) => Ok(()),
            Err(error) => match scope.images().find(reference).await {
                Ok(Some(_)) => {
                    tracing::warn!(
                        swarm_task = self.id,
                        image = reference,
                        error = error.report(),
                        "cannot pull the image of a task: the one on the node is used"
                    );
                    Ok(())
                }
                Ok(None) | Err(_) => Err(error.context(format!("pull image {reference:?}"))),
            },
        }
    }

    async fn create(&mut self) -> Result<()> {
        let scope = self.shared.scope.clone();
        let mut taken = Error::exhausted(
            "endpoint.ports: each port that was chosen has been taken by others meanwhile",
        );
        for _ in 0..PORT_TRIES {
            let Prepared { sandbox, task } = match &self.prepared {
                Some(prepared) => prepared.clone(),
                None => {
                    let prepared = self.specs().await?;
                    self.prepared.insert(prepared).clone()
                }
            };
            let sandbox = match scope.sandboxes().create(sandbox).await {
                Ok(sandbox) => sandbox,
                Err(error)
                    if error.kind() == ErrorKind::FailedPrecondition && self.chooses_ports() =>
                {
                    tracing::debug!(
                        swarm_task = self.id,
                        error = error.report(),
                        "choosing other ports for a task"
                    );
                    self.prepared = None;
                    taken = taken.with_source(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            return scope
                .tasks()
                .create(&sandbox.id.to_string(), task)
                .await
                .map(drop);
        }
        Err(taken)
    }

    fn chooses_ports(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.ports.iter().any(|port| port.published.is_none()))
    }

    /// Makes the specs, with the files written, the ports chosen and the devices leased.
    async fn specs(&mut self) -> Result<Prepared> {
        let (Some(plan), Some(assigned)) = (&self.plan, &self.task) else {
            return Err(self.unassigned());
        };
        let mut plan = plan.clone();
        let is_host = plan.sandbox.network == SandboxNetwork::Host;
        if !is_host {
            self.choose_ports(&mut plan.ports)?;
        }
        plan.sandbox.host_ports = claims(&self.id, is_host, &plan.ports)?;
        if let SandboxNetwork::Pod(network) = &mut plan.sandbox.network {
            network.ports = mappings(&plan.ports);
        }
        let identity = from_proto::identity(assigned, &self.shared.plan_context())?;
        let check = self.health_check(&plan).await?;
        let record = Record::new(&identity, assigned, &plan, check.as_ref()).encode();
        let TaskPlan {
            mut sandbox,
            mut task,
            files,
            devices,
            ..
        } = plan;
        let destinations: Vec<PathBuf> =
            files.iter().map(|file| file.destination.clone()).collect();
        let store = self.shared.files.clone();
        let id = self.id.clone();
        let paths = blocking("write of secrets", move || store.write(&id, &files)).await?;
        task.mounts.extend(
            paths
                .into_iter()
                .zip(destinations)
                .map(|(path, destination)| bound(path, destination)),
        );
        self.lease_devices(&mut task, &devices).await?;
        let now = SystemTime::now();
        for meta in [&mut sandbox.meta, &mut task.meta] {
            meta.created_at = now;
            meta.record.clone_from(&record);
        }
        Ok(Prepared { sandbox, task })
    }

    /// The health check of the task, whose image is on the node.
    async fn health_check(&self, plan: &TaskPlan) -> Result<Option<ResolvedCheck>> {
        let TaskPlan {
            image,
            health: service,
            ..
        } = plan;
        if !health::depends_on_image(service) {
            return health::resolve(service, &ImageHealth::default());
        }
        let scope = &self.shared.scope;
        let reference = &image.reference;
        let found = scope.images().find(reference).await?.ok_or_else(|| {
            Error::not_found(format!(
                "image {reference:?} was removed while the task was prepared"
            ))
        })?;
        health::resolve(
            service,
            &from_image::health(&scope.images().config(&found.id).await?)?,
        )
    }

    /// Chooses ports of the node for those that have none.
    fn choose_ports(&self, ports: &mut [PublishedPort]) -> Result<()> {
        let range = self.shared.settings.port_range.clone();
        let mut taken: BTreeSet<HostPort> =
            claims(&self.id, false, ports)?.ports.into_iter().collect();
        // By protocol: a number that was passed over stays taken for the other ports of the task.
        let mut numbers = BTreeMap::new();
        for port in ports.iter_mut().filter(|port| port.published.is_none()) {
            let mut chosen = None;
            for number in numbers
                .entry(port.protocol)
                .or_insert_with(|| from_random_start(&range))
            {
                let candidate = HostPort {
                    protocol: port.protocol,
                    port: number,
                    ip: None,
                };
                if !taken.contains(&candidate)
                    && self.shared.scope.claims().is_host_port_free(&candidate)?
                {
                    chosen = Some(candidate);
                    break;
                }
            }
            let candidate = chosen.ok_or_else(|| {
                let shown = format!("{}-{}", range.start(), range.end());
                Error::exhausted(format!(
                    "endpoint.ports: no port of {shown} (swarm.port_range) is free"
                ))
            })?;
            port.published = Some(candidate.port);
            taken.insert(candidate);
        }
        Ok(())
    }
}

/// All numbers of a range, beginning at a random one: two tasks that choose at the same time rarely meet.
fn from_random_start(range: &RangeInclusive<u16>) -> impl Iterator<Item = u16> + use<> {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).expect("the kernel's random source is always available");
    let first = u32::from(*range.start());
    let count = (u32::from(*range.end()) + 1).saturating_sub(first);
    let offset = u32::from(u16::from_le_bytes(bytes)) % count.max(1);
    (0..count).filter_map(move |number| u16::try_from(first + (number + offset) % count).ok())
}

/// The mount of a file with a secret or config.
fn bound(path: PathBuf, destination: PathBuf) -> Mount {
    let source = MountSource::Host {
        path,
        missing: MissingSource::Fail,
    };
    Mount {
        readonly: true,
        selinux_relabel: Relabel::Private,
        ..Mount::new(destination, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_a_range_is_tried_once() {
        for range in [0..=0, 65535..=65535, 61000..=61009, 0..=65535] {
            let tried: Vec<u16> = from_random_start(&range).collect();
            let distinct: BTreeSet<u16> = tried.iter().copied().collect();
            assert_eq!((tried.len(), distinct), (range.len(), range.collect()));
        }
        let empty = RangeInclusive::new(2, 1);
        assert_eq!(from_random_start(&empty).count(), 0);
    }
}
