//! Any bytes as the header of a challenge.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| switchyard_registry::fuzzing::auth_challenge(data));
