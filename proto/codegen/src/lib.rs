//! The code that this build generated from the `.proto` files, beside what is checked in.
//!
//! `proto/generated` is checked in, so that whoever builds the daemon compiles it and runs no generator. This crate belongs to the
//! workspace alone: its build generates the code again, its tests compare the two, and its program replaces what is checked in.

use std::path::Path;

/// The directory of what the build of this crate generated: Rust, and the descriptors of all files.
pub const FRESH: &str = env!("OUT_DIR");

/// The descriptors of all `.proto` files and of what they import: an encoded `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The directory of what is checked in.
#[must_use]
pub fn checked_in() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../generated"))
}

/// The files of Rust in a directory, sorted, each with its name and text.
///
/// # Errors
/// When the directory or a file in it cannot be read.
pub fn sources(dir: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            found.push((name, std::fs::read_to_string(&path)?));
        }
    }
    found.sort();
    Ok(found)
}
