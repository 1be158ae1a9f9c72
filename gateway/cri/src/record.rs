//! What the frontend keeps with each object: the request that made it, so that status and lists can echo it exactly, also after a
//! restart.
//!
//! A record is one byte that says the version, and a protobuf message. A version that this program does not know is no error: the
//! object is then described by what the core knows of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::table::{Sandbox, Task};
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;

/// The version that is written.
const VERSION: u8 = 1;

/// How many decoded records of objects that are gone may linger.
const STALE_MAX: usize = 64;

/// The request that made a sandbox.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxRecord {
    /// As it was asked for.
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<cri::PodSandboxConfig>,
    /// As it was asked for; empty for the default.
    #[prost(string, tag = "2")]
    pub(crate) runtime_handler: String,
}

/// What a client said of a sandbox after it was made.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxNote {
    /// What the pod takes beside its containers.
    #[prost(message, optional, tag = "1")]
    pub(crate) overhead: Option<cri::LinuxContainerResources>,
    /// The limits of the pod as a whole.
    #[prost(message, optional, tag = "2")]
    pub(crate) resources: Option<cri::LinuxContainerResources>,
}

/// The request that made a container.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerRecord {
    /// As it was asked for.
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<cri::ContainerConfig>,
    /// What was asked for beyond v1, and nothing else.
    #[prost(message, optional, tag = "2")]
    pub(crate) additions: Option<old::LinuxContainerResources>,
    /// The names of mounts by their numbers. One without a host path is a volume.
    #[prost(btree_map = "uint32, string", tag = "3")]
    pub(crate) names: BTreeMap<u32, String>,
    /// Priority of what it sends over the host's interfaces; 0 for none.
    #[prost(uint32, tag = "4")]
    pub(crate) net_priority: u32,
    /// What its disk quota was to be counted as.
    #[prost(string, tag = "5")]
    pub(crate) quota_id: String,
}

/// Decoded records by id. An id is never used twice and a record never changes, so an entry is true for as long as it stands.
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

/// A record, as the core keeps it.
pub(crate) fn encode(record: &impl Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + record.encoded_len());
    bytes.push(VERSION);
    record.encode(&mut bytes).expect("a vector grows as it must");
    bytes
}

/// Adds what is set in `more` to an encoded record of its kind: messages one after the other are one.
pub(crate) fn append(record: &mut Vec<u8>, more: &impl Message) {
    more.encode(record).expect("a vector grows as it must");
}

/// What a client said of a sandbox after it was made; nothing if that cannot be read.
pub(crate) fn note(sandbox: &Sandbox) -> SandboxNote {
    decode(&sandbox.details.note).unwrap_or_default()
}

/// The record in `bytes`; `None` if it is of another version.
fn decode<R: Message + Default>(bytes: &[u8]) -> Option<R> {
    let (version, message) = bytes.split_first()?;
    if *version != VERSION {
        return None;
    }
    R::decode(message).ok()
}

// === impl Records ===

impl Records {
    /// The request that made this sandbox, if it can be read.
    pub(crate) fn sandbox(&self, sandbox: &Sandbox) -> Option<Arc<SandboxRecord>> {
        self.sandboxes.get(sandbox.id, &sandbox.meta.record)
    }

    /// The request that made this container, if it can be read.
    pub(crate) fn task(&self, task: &Task) -> Option<Arc<ContainerRecord>> {
        self.tasks.get(task.id, &task.meta.record)
    }

    /// Forgets sandboxes that are not in this full list.
    pub(crate) fn retain_sandboxes(&self, all: &[Arc<Sandbox>]) {
        self.sandboxes.retain(all.len(), || all.iter().map(|sandbox| sandbox.id).collect());
    }

    /// Forgets containers that are not in this full list.
    pub(crate) fn retain_tasks(&self, all: &[Arc<Task>]) {
        self.tasks.retain(all.len(), || all.iter().map(|task| task.id).collect());
    }
}

// === impl Cache ===

impl<I, R> Default for Cache<I, R> {
    fn default() -> Self {
        Self { decoded: Mutex::default() }
    }
}

impl<I: Eq + Hash + Copy, R: Message + Default> Cache<I, R> {
    fn lock(&self) -> MutexGuard<'_, HashMap<I, Option<Arc<R>>>> {
        // A cache is right after every single step.
        self.decoded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: I, bytes: &[u8]) -> Option<Arc<R>> {
        if let Some(known) = self.lock().get(&id) {
            return known.clone();
        }
        // Decoding happens outside the lock; if two do it at once the results are equal.
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
    use super::*;

    fn record(name: &str) -> SandboxRecord {
        let metadata = cri::PodSandboxMetadata { name: name.into(), ..Default::default() };
        SandboxRecord {
            config: Some(cri::PodSandboxConfig { metadata: Some(metadata), ..Default::default() }),
            runtime_handler: "crun".into(),
        }
    }

    #[test]
    fn a_record_survives_being_kept() {
        assert_eq!(decode(&encode(&record("a"))), Some(record("a")));
    }

    #[test]
    fn a_record_of_another_version_or_none_at_all_is_unreadable() {
        let mut bytes = encode(&record("a"));
        bytes[0] = 9;
        assert_eq!(decode::<SandboxRecord>(&bytes), None);
        assert_eq!(decode::<SandboxRecord>(&[]), None);
        assert_eq!(decode::<SandboxRecord>(&[VERSION, 0xff]), None);
    }

    #[test]
    fn equal_requests_have_equal_records() {
        let labelled = |pairs: [(&str, &str); 2]| {
            let mut record = record("a");
            let config = record.config.as_mut().expect("it is set");
            config.labels = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            encode(&record)
        };
        assert_eq!(labelled([("a", "1"), ("b", "2")]), labelled([("b", "2"), ("a", "1")]));
    }

    #[test]
    fn the_cache_forgets_what_is_gone_once_there_is_much_of_it() {
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
    fn a_record_is_decoded_once() {
        let cache = Cache::<u8, SandboxRecord>::default();
        let bytes = encode(&record("a"));
        let first = cache.get(1, &bytes);
        let second = cache.get(1, &bytes);
        assert!(Arc::ptr_eq(&first.expect("it is readable"), &second.expect("it is readable")));
    }
}
