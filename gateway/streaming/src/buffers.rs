//! Read buffers that are reused once nothing refers to their content: fresh memory costs a page fault for
//! each page.

use std::collections::VecDeque;

use bytes::BytesMut;

/// Number of buffers that are kept while pieces may still refer to them.
const SPARE: usize = 3;

/// The buffers of one reader.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// The oldest first: what was read first is written, and freed, first.
    spare: VecDeque<BytesMut>,
}

impl Buffers {
    /// Gives `buffer` room for `room` further bytes and keeps its content. New buffers have `size` bytes.
    pub(crate) fn make_room(&mut self, buffer: &mut BytesMut, room: usize, size: usize) {
        if buffer.capacity() - buffer.len() >= room || buffer.try_reclaim(room) {
            return;
        }
        let needed = buffer.len() + room;
        let free = self.spare.pop_front_if(|oldest| oldest.try_reclaim(needed));
        let mut next = free.unwrap_or_else(|| BytesMut::with_capacity(size.max(needed)));
        next.extend_from_slice(buffer);
        let mut used = std::mem::replace(buffer, next);
        used.clear();
        if self.spare.len() == SPARE {
            self.spare.pop_front();
        }
        self.spare.push_back(used);
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::{Buffers, SPARE};

    #[test]
    fn buffer_is_reused_after_release() {
        let mut buffers = Buffers::default();
        let mut buffer = BytesMut::new();
        let mut places = Vec::new();
        for _ in 0..20 {
            buffers.make_room(&mut buffer, 600, 1000);
            buffer.resize(600, 7);
            let piece = buffer.split().freeze();
            places.push(piece.as_ptr());
        }
        places.sort_unstable();
        places.dedup();
        assert!(places.len() <= 2, "{places:?}");
    }

    #[test]
    fn held_buffer_is_neither_overwritten_nor_pooled() {
        let mut buffers = Buffers::default();
        let mut buffer = BytesMut::new();
        let mut held = Vec::new();
        for turn in 0..20 {
            buffers.make_room(&mut buffer, 600, 1000);
            buffer.resize(600, turn);
            held.push(buffer.split().freeze());
            assert!(buffers.spare.len() <= SPARE);
        }
        for (turn, piece) in held.iter().enumerate() {
            assert!(piece.iter().all(|byte| usize::from(*byte) == turn));
        }
    }

    #[test]
    fn unread_bytes_stay_buffered() {
        let mut buffers = Buffers::default();
        let mut buffer = BytesMut::new();
        for room in [10, 100, 5000, 20_000] {
            buffer.extend_from_slice(b"x");
            buffers.make_room(&mut buffer, room, 1000);
            assert!(buffer.capacity() - buffer.len() >= room);
        }
        assert_eq!(buffer, "xxxx");
    }
}
