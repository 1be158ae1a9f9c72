//! Any bytes as what a network plugin writes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cni::fuzzing::result(data));
