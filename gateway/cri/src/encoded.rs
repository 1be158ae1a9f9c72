//! Caches the encoded items of list answers, one encoding for each state of an object.
//!
//! The table stores a new `Arc` whenever an object changes, and a record never changes, so the same pointer
//! means the same bytes. The cache holds the items of the last full list together with their `Arc`s, so that
//! no address is reused meanwhile. An object that is gone is dropped from the cache by the next full list.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use prost::bytes::Bytes;
use switchyard_core::object::{Sandbox, Task};

/// An answer to ListContainers or ListPodSandbox: both have one repeated message field with the number 1, and
/// an embedded message is encoded as its bytes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EncodedList {
    /// The encoding of each item.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(crate) items: Vec<Bytes>,
}

/// The encodings of all listed objects.
#[derive(Debug, Default)]
pub(crate) struct EncodedCache {
    sandboxes: EncodedPageCache<Sandbox>,
    tasks: EncodedPageCache<Task>,
}

/// Objects in the order of a list, each with its encoding.
#[derive(Debug)]
pub(crate) struct Page<T>(Vec<(Arc<T>, Bytes)>);

#[derive(Debug)]
struct EncodedPageCache<T> {
    last: Mutex<Arc<Page<T>>>,
}

// === impl EncodedList ===

impl EncodedList {
    /// This answer with further items at its end.
    pub(crate) fn with<M: Message>(mut self, more: &[M]) -> Self {
        let encoded = more.iter().map(|item| Bytes::from(item.encode_to_vec()));
        self.items.extend(encoded);
        self
    }
}

// === impl EncodedCache ===

impl EncodedCache {
    /// The page of a full list of sandboxes, each encoded as the message that `message` builds of it.
    pub(crate) fn sandboxes<M: Message>(
        &self,
        all: &[Arc<Sandbox>],
        message: impl Fn(&Sandbox) -> M,
    ) -> Arc<Page<Sandbox>> {
        self.sandboxes.refresh(all, |sandbox| sandbox.id, message)
    }

    /// The page of a full list of tasks, each encoded as the message that `message` builds of it.
    pub(crate) fn tasks<M: Message>(
        &self,
        all: &[Arc<Task>],
        message: impl Fn(&Task) -> M,
    ) -> Arc<Page<Task>> {
        self.tasks.refresh(all, |task| task.id, message)
    }
}

// === impl Page ===

impl<T> Page<T> {
    /// An answer with those of the page's objects that are in `chosen`, which has the same order.
    pub(crate) fn of(&self, chosen: &[Arc<T>]) -> EncodedList {
        let mut page = self.0.iter();
        let bytes = |object| {
            page.find(|(known, _)| Arc::ptr_eq(known, object))
                .map(|(_, bytes)| bytes.clone())
        };
        EncodedList {
            items: chosen.iter().filter_map(bytes).collect(),
        }
    }
}

// === impl EncodedPageCache ===

impl<T> Default for EncodedPageCache<T> {
    fn default() -> Self {
        Self {
            last: Mutex::new(Arc::new(Page(Vec::new()))),
        }
    }
}

impl<T> EncodedPageCache<T> {
    fn lock(&self) -> MutexGuard<'_, Arc<Page<T>>> {
        // A panic cannot leave the page inconsistent: pages are replaced as a whole.
        self.last.lock()
    }

    /// The page of this list, which is sorted by `id`. Two concurrent callers may encode the same objects
    /// twice.
    fn refresh<I: Ord, M: Message>(
        &self,
        all: &[Arc<T>],
        id: impl Fn(&T) -> I,
        message: impl Fn(&T) -> M,
    ) -> Arc<Page<T>> {
        let last = Arc::clone(&self.lock());
        if last.0.len() == all.len()
            && last
                .0
                .iter()
                .zip(all)
                .all(|((known, _), object)| Arc::ptr_eq(known, object))
        {
            return last;
        }
        let mut known = last.0.iter().peekable();
        let page = all.iter().map(|object| {
            while known.next_if(|(other, _)| id(other) < id(object)).is_some() {}
            let bytes = match known.peek() {
                Some((other, bytes)) if Arc::ptr_eq(other, object) => bytes.clone(),
                Some(_) | None => message(object).encode_to_vec().into(),
            };
            (Arc::clone(object), bytes)
        });
        let page = Arc::new(Page(page.collect()));
        *self.lock() = Arc::clone(&page);
        page
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// A test object: its id, and its state.
    type Object = (u8, u8);

    fn text(object: &Object) -> String {
        format!("{object:?}")
    }

    /// The expected answer with these objects.
    fn wire(objects: &[Arc<Object>]) -> EncodedList {
        EncodedList {
            items: objects
                .iter()
                .map(|object| text(object).encode_to_vec().into())
                .collect(),
        }
    }

    #[test]
    fn only_changed_objects_are_reencoded_and_removed_ones_dropped() {
        let kept = EncodedPageCache::default();
        let made = Cell::new(0);
        let message = |object: &Object| {
            made.set(made.get() + 1);
            text(object)
        };
        let mut all: Vec<_> = (0..9).map(|id| Arc::new((id, 0))).collect();
        assert_eq!(
            kept.refresh(&all, |object| object.0, message).of(&all),
            wire(&all)
        );
        assert_eq!(made.replace(0), 9);
        assert_eq!(
            kept.refresh(&all, |object| object.0, message).of(&all),
            wire(&all)
        );
        assert_eq!(made.get(), 0);
        all[4] = Arc::new((4, 1));
        let gone = all.remove(2);
        assert_eq!(
            kept.refresh(&all, |object| object.0, message).of(&all),
            wire(&all)
        );
        assert_eq!(made.get(), 1);
        assert_eq!(Arc::strong_count(&gone), 1, "nothing of it is kept");
    }

    proptest! {
            #[test]
            fn cached_lists_always_match_current_objects(
                changes in prop::collection::vec((0_u8..12, prop::option::of(any::<u8>())), 0..60),
                chosen in prop::collection::vec(any::<bool>(), 12),
            ) {
                let kept = EncodedPageCache::default();
    let mut objects = std::collections::BTreeMap::new();
                for (id, change) in changes {
                    match change {
                        Some(value) => objects.insert(id, Arc::new((id, value))),
                        None => objects.remove(&id),
                    };
                    let all: Vec<_> = objects.values().cloned().collect();
                    let page = kept.refresh(&all, |object| object.0, text);
                    let some: Vec<_> = all.iter().filter(|object| chosen[usize::from(object.0)]).cloned().collect();
                    prop_assert_eq!(page.of(&all), wire(&all));
                    prop_assert_eq!(page.of(&some), wire(&some));
                }
            }
        }
}
