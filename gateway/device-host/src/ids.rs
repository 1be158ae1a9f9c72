//! Derives our device ids from vendors' ids.
//!
//! Each of our ids is in one group only, has at most 56 of the characters `A-Z a-z 0-9 . _ : -`, and contains
//! no `::`, which separates a device id from the number of a slot. A vendor's id that meets this, and that is
//! long enough to be globally unique, is kept: tools that read which devices pods have, such as metrics
//! exporters, know devices by their vendors' ids. To any other id a hash of the id and its resource is
//! appended. The same id of the same resource always gives the same id of ours, independent of other devices.

use sha2::{Digest as _, Sha256};
use switchyard_core::device::DEVICE_ID_MAX;

/// A shorter id, such as `0` or `card1`, may be that of another vendor's device too. An address on the PCI
/// bus has this length.
const ALONE: usize = 12;

/// The number of digits of the hash in an id.
const HASH: usize = 12;

/// Our id of the device that its vendor's plugin calls `vendors`.
pub(crate) fn id(resource: &str, vendors: &str) -> String {
    if (ALONE..=DEVICE_ID_MAX).contains(&vendors.len()) && vendors == cleaned(vendors) {
        return vendors.to_owned();
    }
    let hash = hex::encode(Sha256::digest(format!("{resource}\0{vendors}")));
    let word = cleaned(vendors);
    let word = word[..word.len().min(DEVICE_ID_MAX - HASH - 1)].trim_end_matches(|c| !is_end(c));
    let word = if word.is_empty() { "device" } else { word };
    format!("{word}-{}", &hash[..HASH])
}

/// The longest prefix of a text without characters that are invalid in an id, and with a letter or digit at
/// both ends; it may be empty.
fn cleaned(text: &str) -> String {
    let mut id = String::with_capacity(DEVICE_ID_MAX);
    for c in text.chars().take(DEVICE_ID_MAX) {
        let kept = is_end(c) || matches!(c, '.' | '_' | '-') || (c == ':' && !id.ends_with(':'));
        id.push(if kept { c } else { '_' });
    }
    id.trim_matches(|c| !is_end(c)).to_owned()
}

const fn is_end(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use switchyard_core::id::device_of;

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    #[test]
    fn valid_id_is_unchanged() {
        for kept in [
            "GPU-8a2f3c11-1111-2222-3333-444455556666",
            "0000:3b:00.0",
            &"x".repeat(56),
        ] {
            assert_eq!(id(GPU, kept), kept);
        }
    }

    #[test]
    fn invalid_id_is_mapped_to_a_unique_valid_one() {
        let long = "x".repeat(300);
        let odd = [
            "0",
            "card1",
            "",
            "::",
            "GPU-8a2f3c11-1111-2222-3333-444455556666::0",
            "GPU-8a2f3c11-1111-2222-3333-444455556666::1",
            "/dev/ttyUSB0 (acme)",
            "-0000:3b:00.0",
            "grün-und-blau",
            &"ü".repeat(80),
            &long,
            &long[1..],
        ];
        let ids: BTreeSet<String> = odd.iter().map(|vendors| id(GPU, vendors)).collect();
        assert_eq!(ids.len(), odd.len(), "{ids:?}");
        for own in &ids {
            assert!(
                own.len() <= DEVICE_ID_MAX && own == &cleaned(own) && device_of(own) == own,
                "{own}"
            );
            assert_eq!(&id(GPU, own), own, "an id of ours stays as it is");
        }
        assert_eq!(id(GPU, "0"), id(GPU, "0"));
        assert_ne!(id(GPU, "0"), id("amd.com/gpu", "0"));
        assert!(
            id(GPU, "card1").starts_with("card1-"),
            "{}",
            id(GPU, "card1")
        );
    }
}
