//! The annotations of a layer that containerd hands to a snapshotter. All others are skipped while a manifest is parsed, so
//! that they take no memory.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Prefix of the keys of these annotations.
pub const SNAPSHOT_ANNOTATION: &str = "containerd.io/snapshot/";

/// Maximum number of annotations of one descriptor that are kept. The tools that build images for remote snapshotters set up
/// to five.
const MAX_KEPT: usize = 32;

/// Parses annotations; `null` is none. Of the same key the last value counts, as in Go.
pub(super) fn of_snapshots<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let kept = Option::<Kept>::deserialize(deserializer)?;
    Ok(kept.map(|kept| kept.0).unwrap_or_default())
}

struct Kept(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KeptVisitor)
    }
}

struct KeptVisitor;

impl<'de> Visitor<'de> for KeptVisitor {
    type Value = Kept;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations: a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kept, A::Error> {
        let mut kept = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            if !key.starts_with(SNAPSHOT_ANNOTATION) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<Option<String>>()?.unwrap_or_default();
            // Those beyond are left out: no snapshotter depends on so many.
            if kept.len() < MAX_KEPT || kept.contains_key(&key) {
                kept.insert(key, value);
            }
        }
        Ok(Kept(kept))
    }
}
