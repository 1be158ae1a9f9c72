//! Any bytes as the records of containers in containerd.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_containerd::fuzzing::records(data));
