//! Shared by the tests: what the kernel sent, kept as inputs of the fuzz target.

use std::path::Path;

use super::family::NftFamily;

/// Returns what is kept under this name.
pub(super) fn kept(name: &str) -> Vec<u8> {
    let dir = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fuzzing/corpus/netfilter"
    );
    std::fs::read(Path::new(dir).join(name)).unwrap()
}

/// Returns all dumps of a table with some elements.
pub(super) fn dumps_of(family: NftFamily) -> Vec<u8> {
    kept(&format!("whole-{}", family.name()))
}
