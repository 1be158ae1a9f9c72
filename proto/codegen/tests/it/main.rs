//! The `.proto` files, and the code that is checked in for them.

mod descriptors;
mod swarm_descriptors;

use std::path::Path;

use prost_reflect::DescriptorPool;
use switchyard_codegen::{DESCRIPTORS, FRESH, checked_in, sources};

/// All descriptors of our `.proto` files.
fn pool() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).expect("the descriptors are complete")
}

#[test]
fn checked_in_code_is_what_the_proto_files_generate() {
    let fresh = sources(Path::new(FRESH)).expect("the build has written it");
    let found = sources(checked_in()).expect("it is part of the repository");
    assert!(fresh.len() > 20, "{} files were generated", fresh.len());
    let names = |files: &[(String, String)]| {
        files
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&found),
        names(&fresh),
        "run `cargo run -p switchyard-codegen`"
    );
    let outdated: Vec<_> = fresh
        .iter()
        .zip(&found)
        .filter(|(fresh, found)| fresh != found)
        .map(|(_, (name, _))| name)
        .collect();
    assert!(
        outdated.is_empty(),
        "{outdated:?} are outdated: run `cargo run -p switchyard-codegen`"
    );
}
