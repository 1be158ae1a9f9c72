//! Any bytes as a CreateContainer request.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_cri::fuzzing::container(data));
