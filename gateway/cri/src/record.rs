//! The frontend's record of each object: the request that created it, so that status and lists can echo it
//! exactly, also after a restart.
//!
//! The [encoding](switchyard_proto::record) has a version. Recovery leaves an object alone whose record is of an unknown one
//! ([`check_request`]); an object without a record is described by the core's data.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use switchyard_core::backend::UnreadableKind;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::Meta;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
pub(crate) use switchyard_proto::record::encode;
use switchyard_proto::record::{check, decode};

/// Maximum number of decoded records of removed objects in the cache.
const STALE_MAX: usize = 64;

/// The request that created a sandbox.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxRecord {
    /// As requested.
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<cri::PodSandboxConfig>,
    /// As requested; empty for the default.
    #[prost(string, tag = "2")]
    pub(crate) runtime_handler: String,
}

/// The updates of a sandbox after its creation.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxNote {
    /// The overhead of the pod beyond its containers.
    #[prost(message, optional, tag = "1")]
    pub(crate) overhead: Option<cri::LinuxContainerResources>,
    /// The limits of the pod as a whole.
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<cri::LinuxContainerResources>,
}

/// The request that created a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerRecord {
    /// As requested.
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<cri::ContainerConfig>,
    /// The fields that were requested beyond v1, and nothing else.
    #[prost(message, optional, tag = "2")]
    pub(crate) additions: Option<old::LinuxContainerResources>,
    /// The names of mounts, by their index. A mount without a host path is a volume.
    #[prost(btree_map = "uint32, string", tag = "3")]
    pub(crate) names: BTreeMap<u32, String>,
    /// The priority of its traffic on the host's interfaces; 0 for none.
    #[prost(uint32, tag = "4")]
    pub(crate) net_priority: u32,
    /// The project id of its disk quota, as requested.
    #[prost(string, tag = "5")]
    pub(crate) quota_id: String,
}

/// The part of a [`SandboxRecord`] that has the pod's names and its log directory. The rest is skipped, so that the names of a thousand
/// objects cost little.
#[derive(Clone, PartialEq, Message)]
struct PodNames {
    #[prost(message, optional, tag = "1")]
    config: Option<PodNamesConfig>,
}

/// The part of `cri::PodSandboxConfig` that has the pod's names and its log directory.
#[derive(Clone, PartialEq, Message)]
struct PodNamesConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<cri::PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    log_directory: String,
}

/// The part of a [`ContainerRecord`] that has the container's names.
#[derive(Clone, PartialEq, Message)]
struct ContainerNames {
    #[prost(message, optional, tag = "1")]
    config: Option<ContainerNamesConfig>,
}

/// The part of `cri::ContainerConfig` that has the container's names.
#[derive(Clone, PartialEq, Message)]
struct ContainerNamesConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<cri::ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<cri::ImageSpec>,
}

/// Decoded records by id. Ids are never reused and records never change, so an entry never becomes stale.
#[derive(Debug, Default)]
pub(crate) struct Records {
    sandboxes: Cache<SandboxId, SandboxRecord>,
    tasks: Cache<TaskId, ContainerRecord>,
}

#[derive(Debug)]
struct Cache<I, R> {
    decoded: Mutex<HashMap<I, Option<Arc<R>>>>,
}

// === records ===

/// Checks that the record of a sandbox or container can be decoded, if it has one.
///
/// # Errors
/// The defect, for people.
pub fn check_request(kind: UnreadableKind, meta: &Meta) -> Result<(), String> {
    match kind {
        UnreadableKind::Sandbox => check::<SandboxRecord>(&meta.record),
        UnreadableKind::Task => check::<ContainerRecord>(&meta.record),
        UnreadableKind::Unknown => Ok(()),
    }
}

/// Appends `more` to an encoded record of the same type: concatenated protobuf messages are merged.
pub(crate) fn append(record: &mut Vec<u8>, more: &impl Message) {
    more.encode(record).expect("a vector grows as it must");
}

/// The updates of a sandbox after its creation; empty if they cannot be decoded.
pub(crate) fn note(sandbox: &Sandbox) -> SandboxNote {
    decode(&sandbox.details.note).unwrap_or_default()
}

/// The names of the pod, if its record can be decoded.
pub(crate) fn pod_metadata(sandbox: &Meta) -> Option<cri::PodSandboxMetadata> {
    decode::<PodNames>(&sandbox.record)?.config?.metadata
}

/// The directory of the logs of the pod's containers, if its record has one.
pub(crate) fn log_directory(sandbox: &Meta) -> Option<String> {
    let config = decode::<PodNames>(&sandbox.record)?.config?;
    (!config.log_directory.is_empty()).then_some(config.log_directory)
}

/// The names of the container and of its image as requested, as far as its record has them.
pub(crate) fn container_names(
    task: &Meta,
) -> (Option<cri::ContainerMetadata>, Option<cri::ImageSpec>) {
    let record = decode::<ContainerNames>(&task.record);
    let ContainerNamesConfig { metadata, image } =
        record.and_then(|record| record.config).unwrap_or_default();
    (metadata, image)
}

/// The annotations of the pod, if its record can be decoded.
pub(crate) fn pod_annotations(sandbox: &Meta) -> BTreeMap<String, String> {
    let config = decode::<SandboxRecord>(&sandbox.record).and_then(|record| record.config);
    config.map(|config| config.annotations).unwrap_or_default()
}

/// The annotations of the container, if its record can be decoded.
pub(crate) fn container_annotations(task: &Meta) -> BTreeMap<String, String> {
    let config = decode::<ContainerRecord>(&task.record).and_then(|record| record.config);
    config.map(|config| config.annotations).unwrap_or_default()
}

// === impl Records ===

impl Records {
    /// The request that created this sandbox, if it can be decoded.
    pub(crate) fn sandbox(&self, sandbox: &Sandbox) -> Option<Arc<SandboxRecord>> {
        self.sandboxes.get(sandbox.id, &sandbox.meta.record)
    }

    /// The request that created this container, if it can be decoded.
    pub(crate) fn task(&self, task: &Task) -> Option<Arc<ContainerRecord>> {
        self.tasks.get(task.id, &task.meta.record)
    }

    /// Drops sandboxes that are not in this full list from the cache.
    pub(crate) fn retain_sandboxes(&self, all: &[Arc<Sandbox>]) {
        self.sandboxes
            .retain(all.len(), || all.iter().map(|sandbox| sandbox.id).collect());
    }

    /// Drops containers that are not in this full list from the cache.
    pub(crate) fn retain_tasks(&self, all: &[Arc<Task>]) {
        self.tasks
            .retain(all.len(), || all.iter().map(|task| task.id).collect());
    }
}

// === impl Cache ===

impl<I, R> Default for Cache<I, R> {
    fn default() -> Self {
        Self {
            decoded: Mutex::default(),
        }
    }
}

impl<I: Eq + Hash + Copy, R: Message + Default> Cache<I, R> {
    fn lock(&self) -> MutexGuard<'_, HashMap<I, Option<Arc<R>>>> {
        // The cache is consistent after every single operation.
        self.decoded.lock()
    }

    fn get(&self, id: I, bytes: &[u8]) -> Option<Arc<R>> {
        if let Some(known) = self.lock().get(&id) {
            return known.clone();
        }
        // Decoding happens without the lock; if two callers decode at once, the results are equal.
        let record = decode(bytes).map(Arc::new);
        self.lock().insert(id, record.clone());
        record
    }

    fn retain(&self, living: usize, ids: impl Fn() -> HashSet<I>) {
        let mut decoded = self.lock();
        if decoded.len() > living + STALE_MAX {
            let ids = ids();
            decoded.retain(|id, _| ids.contains(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use switchyard_core::id::Owner;

    use super::*;

    fn record(name: &str) -> SandboxRecord {
        let metadata = cri::PodSandboxMetadata {
            name: name.into(),
            ..Default::default()
        };
        SandboxRecord {
            config: Some(cri::PodSandboxConfig {
                metadata: Some(metadata),
                ..Default::default()
            }),
            runtime_handler: "crun".into(),
        }
    }

    fn meta(record: Vec<u8>) -> Meta {
        Meta {
            owner: Owner::Kubernetes,
            name: "web".to_owned(),
            labels: BTreeMap::new(),
            created_at: SystemTime::UNIX_EPOCH,
            record,
        }
    }

    #[test]
    fn record_round_trips() {
        assert_eq!(decode(&encode(&record("a"))), Some(record("a")));
    }

    /// Fails unless a record is written as this golden file, and read from it.
    #[track_caller]
    fn check_golden<R>(record: &R, golden: &[u8])
    where
        R: Message + Default + PartialEq + std::fmt::Debug,
    {
        assert_eq!(encode(record), golden);
        assert_eq!(decode::<R>(golden).as_ref(), Some(record));
    }

    #[test]
    fn records_of_the_first_version_are_read_and_written() {
        let metadata = cri::PodSandboxMetadata {
            name: "web".into(),
            uid: "0af1".into(),
            namespace: "default".into(),
            attempt: 2,
        };
        let port = cri::PortMapping {
            protocol: cri::Protocol::Udp.into(),
            container_port: 53,
            host_port: 5353,
            ..Default::default()
        };
        let config = cri::PodSandboxConfig {
            metadata: Some(metadata.clone()),
            hostname: "web".into(),
            log_directory: "/var/log/pods/web".into(),
            port_mappings: vec![port],
            labels: BTreeMap::from([("app".into(), "web".into())]),
            annotations: BTreeMap::from([("note".into(), "kept".into())]),
            ..Default::default()
        };
        let sandbox = SandboxRecord {
            config: Some(config),
            runtime_handler: "runc".into(),
        };
        let golden = include_bytes!("golden/sandbox-1.bin");
        check_golden(&sandbox, golden);
        let pod = meta(golden.to_vec());
        assert_eq!(pod_metadata(&pod), Some(metadata));
        assert_eq!(log_directory(&pod).as_deref(), Some("/var/log/pods/web"));
        assert_eq!(pod_annotations(&pod)["note"], "kept");

        let overhead = cri::LinuxContainerResources {
            cpu_shares: 100,
            memory_limit_in_bytes: 1 << 20,
            ..Default::default()
        };
        let resources = cri::LinuxContainerResources {
            cpu_period: 100_000,
            ..Default::default()
        };
        let note = SandboxNote {
            overhead: Some(overhead),
            resources: Some(resources),
        };
        check_golden(&note, include_bytes!("golden/note-1.bin"));
    }

    #[test]
    fn container_record_of_the_first_version_is_read_and_written() {
        let metadata = cri::ContainerMetadata {
            name: "main".into(),
            attempt: 1,
        };
        let image = cri::ImageSpec {
            image: "busybox:1".into(),
            ..Default::default()
        };
        let volume = cri::Mount {
            container_path: "/data".into(),
            ..Default::default()
        };
        let config = cri::ContainerConfig {
            metadata: Some(metadata.clone()),
            image: Some(image.clone()),
            command: vec!["sh".into()],
            args: vec!["-c".into()],
            mounts: vec![volume],
            log_path: "main/1.log".into(),
            tty: true,
            ..Default::default()
        };
        let additions = old::LinuxContainerResources {
            blkio_weight: 500,
            ..Default::default()
        };
        let container = ContainerRecord {
            config: Some(config),
            additions: Some(additions),
            names: BTreeMap::from([(1, "data".into())]),
            net_priority: 3,
            quota_id: "70000".into(),
        };
        let golden = include_bytes!("golden/container-1.bin");
        check_golden(&container, golden);
        let names = container_names(&meta(golden.to_vec()));
        assert_eq!(names, (Some(metadata), Some(image)));
    }

    #[test]
    fn record_of_another_version_or_garbage_is_unreadable() {
        let mut bytes = encode(&record("a"));
        bytes[0] = 9;
        assert_eq!(decode::<SandboxRecord>(&bytes), None);
        assert_eq!(decode::<SandboxRecord>(&[]), None);
        assert_eq!(decode::<SandboxRecord>(&[1, 0xff]), None);
        let pod = meta(bytes);
        for kind in [UnreadableKind::Sandbox, UnreadableKind::Task] {
            let refused = check_request(kind, &pod);
            assert_eq!(refused, Err("it is of version 9".to_owned()));
            assert_eq!(check_request(kind, &meta(Vec::new())), Ok(()));
        }
        let container = meta(encode(&ContainerRecord::default()));
        assert_eq!(check_request(UnreadableKind::Task, &container), Ok(()));
        let pod = meta(encode(&record("a")));
        assert_eq!(check_request(UnreadableKind::Sandbox, &pod), Ok(()));
        // It has a string where a container has a message.
        assert!(check_request(UnreadableKind::Task, &pod).is_err());
    }

    #[test]
    fn equal_requests_have_equal_records() {
        let labelled = |pairs: [(&str, &str); 2]| {
            let mut record = record("a");
            let config = record.config.as_mut().expect("it is set");
            config.labels = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            encode(&record)
        };
        assert_eq!(
            labelled([("a", "1"), ("b", "2")]),
            labelled([("b", "2"), ("a", "1")])
        );
    }

    #[test]
    fn record_cache_evicts_removed_objects_when_large() {
        let cache = Cache::<usize, SandboxRecord>::default();
        let bytes = encode(&record("a"));
        for id in 0..STALE_MAX + 2 {
            cache.get(id, &bytes);
        }
        cache.retain(2, || HashSet::from([0, 1]));
        assert_eq!(cache.lock().len(), STALE_MAX + 2);
        cache.retain(1, || HashSet::from([0]));
        assert_eq!(cache.lock().len(), 1);
    }

    #[test]
    fn record_is_decoded_once() {
        let cache = Cache::<u8, SandboxRecord>::default();
        let bytes = encode(&record("a"));
        let first = cache.get(1, &bytes);
        let second = cache.get(1, &bytes);
        assert!(Arc::ptr_eq(
            &first.expect("it is readable"),
            &second.expect("it is readable")
        ));
    }
}
