//! Any bytes as a network configuration.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cni::fuzzing::conf(data));
