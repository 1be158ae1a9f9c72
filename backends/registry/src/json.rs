//! Reading JSON as the programs do that write it.

use serde::{Deserialize, Deserializer};

/// A null is what is left out: programs in Go write empty lists and maps so.
pub(crate) fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
