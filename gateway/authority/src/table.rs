//! The dynamic table of a client's HPACK encoder, tracked by the sizes of its entries (RFC 7541, sections 2.3
//! and 4).

use std::collections::VecDeque;

use crate::malformed::Malformed;

/// The largest table that a server allows by default; tonic has no setting for it.
const MAX_SIZE: usize = 4096;

/// The size of an entry in addition to its name and value.
const OVERHEAD: usize = 32;

/// The lengths of the names in the static table; the first is `:authority`.
#[rustfmt::skip]
const STATIC_NAMES: [usize; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12,
    6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];

/// The sizes of the entries.
#[derive(Debug)]
pub(crate) struct Table {
    /// The newest entry is first.
    entries: VecDeque<Entry>,
    size: usize,
    max: usize,
}

#[derive(Debug)]
struct Entry {
    name: Name,
    size: usize,
}

/// The properties of a header's name that are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) len: usize,
    pub(crate) is_authority: bool,
}

// === impl Table ===

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max: MAX_SIZE,
        }
    }
}

impl Table {
    /// The name of the header at an index into the static or the dynamic table.
    pub(crate) fn name(&self, index: usize) -> Result<Name, Malformed> {
        let place = index.checked_sub(1).ok_or(Malformed)?;
        match STATIC_NAMES.get(place) {
            Some(len) => Ok(Name {
                len: *len,
                is_authority: place == 0,
            }),
            None => self
                .entries
                .get(place - STATIC_NAMES.len())
                .map(|entry| entry.name)
                .ok_or(Malformed),
        }
    }

    /// Inserts a header. Entries that no longer fit are evicted, and the header itself if it is larger than
    /// the table.
    pub(crate) fn insert(&mut self, name: Name, value_len: usize) {
        let size = name.len + value_len + OVERHEAD;
        self.evict(self.max.saturating_sub(size));
        if size <= self.max {
            self.entries.push_front(Entry { name, size });
            self.size += size;
        }
    }

    /// Applies a table size update of the client.
    pub(crate) fn resize(&mut self, max: usize) -> Result<(), Malformed> {
        if max > MAX_SIZE {
            return Err(Malformed);
        }
        self.max = max;
        self.evict(max);
        Ok(())
    }

    fn evict(&mut self, to: usize) {
        while self.size > to
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.size;
        }
    }
}
