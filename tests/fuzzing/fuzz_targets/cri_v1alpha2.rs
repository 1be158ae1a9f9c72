//! Any bytes as requests of CRI v1alpha2.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cri::fuzzing::old_version(data));
