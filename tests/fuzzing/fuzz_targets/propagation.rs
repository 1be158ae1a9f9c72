//! Any bytes as a mount table, for the propagation of its mounts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_runtime_spec::fuzzing::propagation(data));
