//! Any bytes as a CDI file.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_runtime_spec::fuzzing::cdi(data));
