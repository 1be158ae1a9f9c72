//! Splits lists into the messages of the `Stream*` calls, so that no message grows too large.

use futures::stream::{self, BoxStream, StreamExt};
use prost::Message;
use tonic::Status;

/// The stream that answers a `Stream*` call.
pub(crate) type Stream<T> = BoxStream<'static, Result<T, Status>>;

/// The most items in a message.
const ITEMS: usize = 1000;

/// The most bytes in a message, unless a single item is larger.
const BYTES: usize = 2 << 20;

/// Sends `items` in messages that `wrap` builds; each item is sent once, in order, and no message is empty.
pub(crate) fn stream<I, T>(items: Vec<I>, wrap: impl Fn(Vec<I>) -> T) -> Stream<T>
where
    I: Message,
    T: Send + 'static,
{
    let batches: Vec<_> = batches(items, ITEMS, BYTES)
        .into_iter()
        .map(|batch| Ok(wrap(batch)))
        .collect();
    stream::iter(batches).boxed()
}

fn batches<I: Message>(items: Vec<I>, max_items: usize, max_bytes: usize) -> Vec<Vec<I>> {
    let mut all = Vec::new();
    let mut batch = Vec::new();
    let mut bytes = 0;
    for item in items {
        let size = item.encoded_len();
        if !batch.is_empty() && (batch.len() == max_items || bytes + size > max_bytes) {
            all.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += size;
        batch.push(item);
    }
    if !batch.is_empty() {
        all.push(batch);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_list_yields_no_message() {
        assert_eq!(
            batches(Vec::<String>::new(), 10, 10),
            Vec::<Vec<String>>::new()
        );
    }

    proptest! {
        #[test]
        fn items_are_batched_once_in_order_within_limits(sizes in prop::collection::vec(0_usize..40, 0..60)) {
            let items: Vec<String> = sizes.iter().map(|n| "x".repeat(*n)).collect();
            let cut = batches(items.clone(), 7, 64);
            prop_assert_eq!(cut.concat(), items);
            for batch in &cut {
                let bytes: usize = batch.iter().map(Message::encoded_len).sum();
                prop_assert!(!batch.is_empty() && batch.len() <= 7 && (bytes <= 64 || batch.len() == 1));
            }
        }
    }
}
