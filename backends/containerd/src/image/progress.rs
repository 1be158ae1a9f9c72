//! The progress of pulls: bytes are counted as layers arrive, and read by the key of a pull.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use switchyard_core::image::PullProgress;
use switchyard_registry::{Descriptor, Digest};

/// The bytes of one layer in the content store. All pulls of the layer share the counter.
pub(crate) type Counter = Arc<AtomicU64>;

/// The counters of the layers that are being pulled.
#[derive(Debug, Default)]
pub(crate) struct ByteCounters {
    by_digest: Mutex<HashMap<Digest, Weak<AtomicU64>>>,
}

/// The progress of one pull.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Size and counter of each of its layers; empty until the manifest is known.
    layers: OnceLock<Vec<(u64, Counter)>>,
}

/// The progress of the pulls in flight, by their keys.
#[derive(Debug, Default)]
pub(crate) struct RunningPulls {
    by_key: Mutex<HashMap<[u8; 32], Weak<Progress>>>,
}

// === impl ByteCounters ===

impl ByteCounters {
    /// The counter of a layer. It exists while somebody holds it.
    pub(crate) fn of(&self, digest: &Digest) -> Counter {
        let mut counters = self.by_digest.lock();
        counters.retain(|_, counter| counter.strong_count() > 0);
        if let Some(counter) = counters.get(digest).and_then(Weak::upgrade) {
            return counter;
        }
        let counter = Counter::default();
        counters.insert(digest.clone(), Arc::downgrade(&counter));
        counter
    }
}

// === impl Progress ===

impl Progress {
    /// Sets the layers of the pull. A later call has no effect: a pull that starts again has the same layers.
    pub(crate) fn set_layers(&self, layers: &[Descriptor], counters: &ByteCounters) {
        self.layers.get_or_init(|| {
            layers
                .iter()
                .map(|layer| (layer.size, counters.of(&layer.digest)))
                .collect()
        });
    }

    /// The progress; `None` while the layers are not known.
    pub(crate) fn read(&self) -> Option<PullProgress> {
        let mut progress = PullProgress::default();
        for (size, counter) in self.layers.get()? {
            let done = counter.load(Ordering::Relaxed).min(*size);
            progress.layers += 1;
            progress.layers_done += usize::from(done == *size);
            progress.bytes = progress.bytes.saturating_add(*size);
            progress.bytes_done = progress.bytes_done.saturating_add(done);
        }
        Some(progress)
    }
}

// === impl RunningPulls ===

impl RunningPulls {
    /// Adds a pull, for as long as its `progress` exists.
    pub(crate) fn track(&self, key: [u8; 32], progress: &Arc<Progress>) {
        let mut running = self.by_key.lock();
        running.retain(|_, progress| progress.strong_count() > 0);
        running.insert(key, Arc::downgrade(progress));
    }

    /// The progress of the pull with this key; `None` if there is none, or its layers are not known yet.
    pub(crate) fn read(&self, key: &[u8; 32]) -> Option<PullProgress> {
        let running = self.by_key.lock();
        running.get(key).and_then(Weak::upgrade)?.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(seed: char, size: u64) -> Descriptor {
        let digest: String = std::iter::repeat_n(seed, 64).collect();
        Descriptor::new(
            "",
            format!("sha256:{digest}").parse().expect("it is a digest"),
            size,
        )
    }

    #[test]
    fn pulls_of_one_layer_count_it_together_and_its_end_is_forgotten_with_them() {
        let counters = ByteCounters::default();
        let running = RunningPulls::default();
        let one = Arc::new(Progress::default());
        let two = Arc::new(Progress::default());
        running.track([1; 32], &one);
        assert_eq!(running.read(&[1; 32]), None);
        one.set_layers(&[layer('a', 10), layer('b', 5)], &counters);
        two.set_layers(&[layer('a', 10)], &counters);
        counters
            .of(&layer('a', 10).digest)
            .store(10, Ordering::Relaxed);
        let expected = PullProgress {
            layers: 2,
            layers_done: 1,
            bytes: 15,
            bytes_done: 10,
        };
        assert_eq!(running.read(&[1; 32]), Some(expected));
        assert_eq!(two.read().map(|two| two.layers_done), Some(1));
        drop((one, two));
        assert_eq!(running.read(&[1; 32]), None);
        assert_eq!(
            counters.of(&layer('a', 10).digest).load(Ordering::Relaxed),
            0
        );
    }
}
