//! Any bytes as a manifest or an index.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_registry::fuzzing::manifest(data));
