//! The record of a task: what must be known of it after a restart of the daemon, when the manager has not said
//! anything yet. It is stored with the sandbox and the task in it, and has no secret.

use std::time::Duration;

use prost::Message;
use sha2::{Digest as _, Sha256};
use swarm::task_spec::Runtime;
use switchyard_core::spec::{Meta, Protocol};
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::record;

use crate::from_proto::TaskIdentity;
use crate::health::{CheckSchedule, ResolvedCheck};
use crate::plan::{AssignedDevice, LogRotation, PublishedPort, TaskPlan};

/// The record of a sandbox and of the task in it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    /// The cluster: a task of another one is not this agent's.
    #[prost(string, tag = "1")]
    pub(crate) cluster_id: String,
    /// The node.
    #[prost(string, tag = "2")]
    pub(crate) node_id: String,
    /// The service; empty for a task without one.
    #[prost(string, tag = "3")]
    pub(crate) service_id: String,
    /// Its name.
    #[prost(string, tag = "4")]
    pub(crate) service_name: String,
    /// The task.
    #[prost(string, tag = "5")]
    pub(crate) task_id: String,
    /// Its slot, or the id of the node.
    #[prost(string, tag = "6")]
    pub(crate) slot: String,
    /// SHA-256 of the specification without the registry's credentials.
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) spec_digest: Vec<u8>,
    /// The image as the service names it.
    #[prost(string, tag = "8")]
    pub(crate) image: String,
    /// The published ports, with their numbers on the node.
    #[prost(message, repeated, tag = "9")]
    pub(crate) ports: Vec<PortRecord>,
    /// The volumes that are removed with the task.
    #[prost(string, repeated, tag = "10")]
    pub(crate) anonymous_volumes: Vec<String>,
    /// The time between the stop signal and SIGKILL.
    #[prost(uint64, tag = "11")]
    pub(crate) stop_grace_ms: u64,
    /// The size at which the log is rotated; 0 for never.
    #[prost(uint64, tag = "12")]
    pub(crate) log_max_size: u64,
    /// The number of files of the log.
    #[prost(uint32, tag = "13")]
    pub(crate) log_max_files: u32,
    /// The health check; missing if the health is not checked.
    #[prost(message, optional, tag = "14")]
    pub(crate) health: Option<HealthRecord>,
    /// The devices that the scheduler has chosen.
    #[prost(message, repeated, tag = "20")]
    pub(crate) devices: Vec<DeviceRecord>,
}

/// A published port.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PortRecord {
    /// Its name in the service.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// The name of the protocol.
    #[prost(string, tag = "2")]
    pub(crate) protocol: String,
    /// The port in the task.
    #[prost(uint32, tag = "3")]
    pub(crate) target: u32,
    /// The port on the node; 0 if it has none.
    #[prost(uint32, tag = "4")]
    pub(crate) published: u32,
}

/// A device.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeviceRecord {
    /// The kind of the generic resource.
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    /// The slot of the device.
    #[prost(string, tag = "2")]
    pub(crate) id: String,
}

/// A health check, in which nothing is left open.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthRecord {
    /// The command line.
    #[prost(string, repeated, tag = "1")]
    pub(crate) command: Vec<String>,
    #[prost(uint64, tag = "2")]
    pub(crate) interval_ms: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) timeout_ms: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) retries: u32,
    #[prost(uint64, tag = "5")]
    pub(crate) start_period_ms: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) start_interval_ms: u64,
}

/// Checks that the record of a sandbox or task can be decoded, if it has one.
///
/// # Errors
/// The defect, for people.
pub fn check_request(meta: &Meta) -> Result<(), String> {
    record::check::<Record>(&meta.record)
}

// === impl Record ===

impl Record {
    /// The record of a task with its plan, whose ports have their numbers, and with its health check.
    pub(crate) fn new(
        identity: &TaskIdentity,
        task: &swarm::Task,
        plan: &TaskPlan,
        check: Option<&ResolvedCheck>,
    ) -> Self {
        let LogRotation {
            max_size,
            max_files,
        } = plan.rotation;
        Self {
            cluster_id: identity.cluster_id.clone(),
            node_id: identity.node_id.clone(),
            service_id: identity.service_id.clone(),
            service_name: identity.service_name.clone(),
            task_id: identity.task_id.clone(),
            slot: identity.slot.clone(),
            spec_digest: digest(task),
            image: plan.image.reference.clone(),
            ports: plan.ports.iter().map(PortRecord::from).collect(),
            anonymous_volumes: plan.anonymous_volumes.clone(),
            stop_grace_ms: milliseconds(plan.stop_grace),
            log_max_size: max_size.unwrap_or_default(),
            log_max_files: max_files,
            health: check.map(HealthRecord::from),
            devices: plan.devices.iter().map(DeviceRecord::from).collect(),
        }
    }

    /// The encoding that the core stores.
    pub(crate) fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// The record of an object; empty if it has none. Recovery leaves an object alone whose record is of another version
    /// ([`check_request`]).
    pub(crate) fn of(meta: &Meta) -> Self {
        record::decode(&meta.record).unwrap_or_default()
    }

    /// The health check; `None` if the health is not checked.
    pub(crate) fn check(&self) -> Option<ResolvedCheck> {
        self.health.as_ref().and_then(HealthRecord::check)
    }

    /// The time between the stop signal and SIGKILL.
    pub(crate) const fn stop_grace(&self) -> Duration {
        Duration::from_millis(self.stop_grace_ms)
    }
}

/// The digest of a task's specification. The registry's credentials are not in it: nobody can try passwords by
/// it.
fn digest(task: &swarm::Task) -> Vec<u8> {
    let mut spec = task.spec.clone().unwrap_or_default();
    if let Some(Runtime::Container(container)) = &mut spec.runtime {
        container.pull_options = None;
    }
    Sha256::digest(spec.encode_to_vec()).to_vec()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<&PublishedPort> for PortRecord {
    fn from(port: &PublishedPort) -> Self {
        let PublishedPort {
            name,
            protocol,
            target,
            published,
        } = port;
        Self {
            name: name.clone(),
            protocol: protocol.as_str().to_owned(),
            target: u32::from(*target),
            published: published.map_or(0, u32::from),
        }
    }
}

impl PortRecord {
    /// The protocol; TCP if the record has none that is known.
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol::parse(&self.protocol).unwrap_or(Protocol::Tcp)
    }
}

impl From<&AssignedDevice> for DeviceRecord {
    fn from(device: &AssignedDevice) -> Self {
        let AssignedDevice { kind, id } = device;
        Self {
            kind: kind.clone(),
            id: id.clone(),
        }
    }
}

impl From<DeviceRecord> for AssignedDevice {
    fn from(device: DeviceRecord) -> Self {
        let DeviceRecord { kind, id } = device;
        Self { kind, id }
    }
}

impl From<&ResolvedCheck> for HealthRecord {
    fn from(check: &ResolvedCheck) -> Self {
        let ResolvedCheck {
            command,
            timeout,
            schedule,
        } = check;
        let CheckSchedule {
            interval,
            retries,
            start_period,
            start_interval,
        } = *schedule;
        Self {
            command: command.clone(),
            interval_ms: milliseconds(interval),
            timeout_ms: milliseconds(*timeout),
            retries,
            start_period_ms: milliseconds(start_period),
            start_interval_ms: milliseconds(start_interval),
        }
    }
}

impl HealthRecord {
    /// The health check, if there is a command.
    fn check(&self) -> Option<ResolvedCheck> {
        let Self {
            command,
            interval_ms,
            timeout_ms,
            retries,
            start_period_ms,
            start_interval_ms,
        } = self;
        if command.is_empty() {
            return None;
        }
        let at_least_one = |count: u64| Duration::from_millis(count.max(1));
        Some(ResolvedCheck {
            command: command.clone(),
            timeout: at_least_one(*timeout_ms),
            schedule: CheckSchedule {
                interval: at_least_one(*interval_ms),
                retries: (*retries).max(1),
                start_period: Duration::from_millis(*start_period_ms),
                start_interval: at_least_one(*start_interval_ms),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use proptest::prelude::*;
    use switchyard_core::id::Owner;

    use super::*;

    fn meta(record: Vec<u8>) -> Meta {
        let labels = BTreeMap::new();
        Meta {
            owner: Owner::Swarm,
            name: "t".into(),
            labels,
            created_at: SystemTime::UNIX_EPOCH,
            record,
        }
    }

    #[test]
    fn record_of_the_first_version_is_read_and_written() {
        let port = PortRecord {
            name: "http".into(),
            protocol: "tcp".into(),
            target: 80,
            published: 8080,
        };
        let health = HealthRecord {
            command: ["sh", "-c", "true"].map(str::to_owned).into(),
            interval_ms: 30_000,
            timeout_ms: 5000,
            retries: 3,
            start_period_ms: 1000,
            start_interval_ms: 500,
        };
        let device = DeviceRecord {
            kind: "acme/tpu/v2".into(),
            id: "acme0".into(),
        };
        let record = Record {
            cluster_id: "cluster".into(),
            node_id: "node".into(),
            service_id: "service".into(),
            service_name: "web".into(),
            task_id: "task".into(),
            slot: "1".into(),
            spec_digest: (0..32).collect(),
            image: "busybox:1".into(),
            ports: vec![port],
            anonymous_volumes: vec!["data".into()],
            stop_grace_ms: 10_000,
            log_max_size: 1 << 20,
            log_max_files: 5,
            health: Some(health),
            devices: vec![device],
        };
        let golden = include_bytes!("golden/task-1.bin");
        assert_eq!(record.encode(), golden);
        let read = Record::of(&meta(golden.to_vec()));
        assert_eq!(read, record);
        // What this version does with it.
        let seconds = Duration::from_secs;
        let check = ResolvedCheck {
            command: ["sh", "-c", "true"].map(str::to_owned).into(),
            timeout: seconds(5),
            schedule: CheckSchedule {
                interval: seconds(30),
                retries: 3,
                start_period: seconds(1),
                start_interval: Duration::from_millis(500),
            },
        };
        assert_eq!(
            read.health,
            Some(HealthRecord::from(&check)),
            "what is written of it now"
        );
        assert_eq!(read.check(), Some(check));
        assert_eq!(read.stop_grace(), seconds(10));
        assert_eq!(read.ports[0].protocol(), Protocol::Tcp);
        let device = AssignedDevice {
            kind: "acme/tpu/v2".into(),
            id: "acme0".into(),
        };
        assert_eq!(AssignedDevice::from(read.devices[0].clone()), device);
    }

    #[test]
    fn record_is_read_as_written() {
        let port = PortRecord {
            name: "web".into(),
            protocol: "udp".into(),
            target: 80,
            published: 8080,
        };
        let record = Record {
            task_id: "t1".into(),
            ports: vec![port],
            stop_grace_ms: 1500,
            ..Record::default()
        };
        let read = Record::of(&meta(record.encode()));
        assert_eq!(read, record);
        assert_eq!(
            (read.stop_grace(), read.ports[0].protocol()),
            (Duration::from_millis(1500), Protocol::Udp)
        );
    }

    #[test]
    fn health_check_is_read_as_written_and_is_never_without_a_pause() {
        let seconds = Duration::from_secs;
        let schedule = CheckSchedule {
            interval: seconds(30),
            retries: 3,
            start_period: Duration::ZERO,
            start_interval: Duration::from_millis(1),
        };
        let check = ResolvedCheck {
            command: vec!["true".into()],
            timeout: seconds(5),
            schedule,
        };
        let record = |health: HealthRecord| Record {
            health: Some(health),
            ..Record::default()
        };
        let read = Record::of(&meta(record(HealthRecord::from(&check)).encode()));
        assert_eq!(read.check(), Some(check));
        assert_eq!(
            (
                Record::default().check(),
                record(HealthRecord::default()).check()
            ),
            (None, None)
        );
        let zeros = HealthRecord {
            command: vec!["true".into()],
            ..HealthRecord::default()
        };
        let made = record(zeros).check().unwrap();
        assert!(made.schedule.interval > Duration::ZERO && made.schedule.retries > 0);
    }

    #[test]
    fn record_that_cannot_be_decoded_is_refused_and_one_that_is_absent_is_not() {
        let check = |record: Vec<u8>| check_request(&meta(record));
        let later = check(vec![2, 10, 1, b'c']);
        assert_eq!(later, Err("it is of version 2".to_owned()));
        assert!(check(vec![1, 10, 9]).is_err());
        assert_eq!(check(Record::default().encode()), Ok(()));
        assert_eq!(check(Vec::new()), Ok(()));
    }

    #[test]
    fn digest_leaves_out_credentials_alone() {
        let task = |image: &str, auth: &str| {
            let pull_options = Some(swarm::container_spec::PullOptions {
                registry_auth: auth.into(),
            });
            let container = swarm::ContainerSpec {
                image: image.into(),
                pull_options,
                ..Default::default()
            };
            let runtime = Some(Runtime::Container(Box::new(container)));
            swarm::Task {
                spec: Some(swarm::TaskSpec {
                    runtime,
                    ..Default::default()
                }),
                ..Default::default()
            }
        };
        assert_eq!(digest(&task("a", "x")), digest(&task("a", "y")));
        assert_ne!(digest(&task("a", "x")), digest(&task("b", "x")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let record = Record::of(&meta(bytes));
            prop_assert_eq!(Record::of(&meta(record.encode())), record);
        }
    }
}
