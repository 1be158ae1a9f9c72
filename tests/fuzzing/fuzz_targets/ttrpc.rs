//! Any bytes as what a shim answers over ttrpc.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_containerd::fuzzing::ttrpc(data));
